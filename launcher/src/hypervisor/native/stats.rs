use std::sync::Arc;

use procfs::process::{Process, Task};
use vireo_proto::launcher::{DiskStatistics, OperationStatistics};
use vireo_vmm::config::{DiskCounters, Operations};

use crate::hypervisor::{HypervisorStats, StatsRequests};

/// Answers requests for the VM's statistics.
pub(super) async fn serve(mut stats_requests: StatsRequests, counters: Vec<Arc<DiskCounters>>) {
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    while let Some(reply) = stats_requests.recv().await {
        let disks = counters.iter().map(|counters| disk(counters)).enumerate().collect();
        // The requester may have stopped waiting.
        let _ = reply.send(HypervisorStats { pid, vcpus: vcpus_of_this_process(), disks, balloon: None });
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
