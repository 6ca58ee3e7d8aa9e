use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use procfs::process::{Process, Task};
use vireo_proto::launcher::{BalloonStatistics, DiskStatistics, OperationStatistics};
use vireo_vmm::config::{Balloon, DiskCounters, MemoryStatistics, Operations};

use crate::hypervisor::{HypervisorStats, StatsRequests};

/// How soon the guest's answer is looked for again, and how often. One that is paused, or has no driver, does not answer.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_POLLS: u32 = 10;

/// The counters of volumes that are attached, with their names.
pub(super) type PluggedCounters = Arc<Mutex<Vec<(String, Arc<DiskCounters>)>>>;

/// Locks them.
pub(super) fn lock(counters: &PluggedCounters) -> MutexGuard<'_, Vec<(String, Arc<DiskCounters>)>> {
    counters.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers requests for the statistics of a VM with so much memory.
pub(super) async fn serve(
    mut stats_requests: StatsRequests,
    (counters, plugged): (Vec<Arc<DiskCounters>>, PluggedCounters),
    (memory_bytes, balloon): (u64, Option<Balloon>),
) {
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    while let Some(reply) = stats_requests.recv().await {
        let disks = counters.iter().map(|counters| disk(counters)).enumerate().collect();
        let balloon = match &balloon {
            Some(balloon) => Some(statistics_of(balloon, memory_bytes).await),
            None => None,
        };
        let named = |(name, counters): &(String, Arc<DiskCounters>)| DiskStatistics {
            name: name.clone(),
            ..disk(counters)
        };
        let plugged = lock(&plugged).iter().map(named).collect();
        // The requester may have stopped waiting.
        let _ = reply.send(HypervisorStats { pid, vcpus: vcpus_of_this_process(), disks, plugged, balloon });
    }
}

/// What the balloon knows, and the guest says now.
async fn statistics_of(balloon: &Balloon, memory_bytes: u64) -> BalloonStatistics {
    let (before, _) = balloon.reported();
    balloon.request();
    let mut guest = MemoryStatistics::default();
    for _ in 0..MAX_POLLS {
        if let (reports, Some(statistics)) = balloon.reported()
            && reports > before
        {
            guest = statistics;
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    BalloonStatistics {
        actual_bytes: memory_bytes.checked_sub(balloon.inflated()),
        available_bytes: guest.total,
        unused_bytes: guest.free,
        usable_bytes: guest.available,
        cached_bytes: guest.caches,
        swap_in_bytes: guest.swap_in,
        swap_out_bytes: guest.swap_out,
        major_faults: guest.major_faults,
        minor_faults: guest.minor_faults,
    }
}

fn disk(counters: &DiskCounters) -> DiskStatistics {
    DiskStatistics {
        name: String::new(),
        reads: Some(operations(counters.reads())),
        writes: Some(operations(counters.writes())),
        flushes: Some(operations(counters.flushes())),
    }
}

fn operations(of: Operations) -> OperationStatistics {
    let Operations { requests, bytes, nanoseconds } = of;
    OperationStatistics { requests, bytes, nanoseconds }
}

/// The threads of this process that are vCPUs of the monitor's VM.
fn vcpus_of_this_process() -> Vec<(u32, i32)> {
    let tasks = Process::myself().and_then(|process| process.tasks());
    let number = |task: Task| {
        let name = task.stat().ok()?.comm;
        Some((name.strip_prefix("vcpu")?.parse().ok()?, task.tid))
    };
    let mut vcpus: Vec<_> = tasks.into_iter().flatten().flatten().filter_map(number).collect();
    vcpus.sort_unstable();
    vcpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_found_by_their_names() {
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let (up, ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("vcpu41".to_owned()).spawn(move || {
            up.send(()).unwrap();
            wait.recv().unwrap_err();
        });
        ready.recv().unwrap();
        assert!(vcpus_of_this_process().iter().any(|(number, _)| *number == 41));
        drop(stop);
        thread.unwrap().join().unwrap();
    }
}
