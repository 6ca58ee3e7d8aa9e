//! Resource usage of a VM: from its hypervisor, and from the kernel for its threads and taps.
//!
//! Collected on request only, so that an idle VM is not disturbed.

mod kernel;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use vireo_proto::launcher::{Fault, Statistics};

use crate::fault::{Code, fault};
use crate::hypervisor::{HypervisorStats, StatsClient};
use crate::launch::Launch;

/// How long a hypervisor may take; one whose disk hangs takes forever.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The hypervisor of a running VM and its launch message; absent while no VM runs.
pub type StatsSource = Option<(StatsClient, Arc<Launch>)>;

/// Reads everything now.
///
/// # Errors
/// When no VM runs, or its hypervisor does not answer.
pub async fn read(stats_source: StatsSource) -> Result<Statistics, Fault> {
    let Some((meter, launch)) = stats_source else {
        return Err(fault(Code::Conflict, "no VM runs"));
    };
    match tokio::time::timeout(TIMEOUT, meter.read()).await {
        Ok(Some(stats)) => Ok(complete(&launch, stats)),
        Ok(None) => Err(fault(Code::Conflict, "the VM is gone")),
        Err(_) => {
            let detail = format!("the hypervisor does not answer within {} s", TIMEOUT.as_secs());
            Err(fault(Code::Hypervisor, detail))
        }
    }
}

/// Gives disks their names, and adds what the kernel knows.
fn complete(launch: &Launch, stats: HypervisorStats) -> Statistics {
    let mut statistics = kernel::of_process(stats.pid, &stats.vcpus);
    statistics.domain_bytes = launch.memory_bytes;
    statistics.balloon = stats.balloon;
    let mut disks: BTreeMap<usize, _> = stats.disks.into_iter().collect();
    let named = launch.disks.iter().enumerate().filter_map(|(index, disk)| {
        let mut known = disks.remove(&index)?;
        known.name.clone_from(&disk.name);
        Some(known)
    });
    statistics.disks = named.chain(stats.plugged).collect();
    let taps = launch
        .interfaces
        .iter()
        .filter_map(|interface| Some((interface.name.as_str(), interface.peer.tap()?)));
    statistics.interfaces = kernel::of_taps(taps);
    statistics
}

#[cfg(test)]
mod tests {
    use vireo_proto::launcher::{DiskStatistics, OperationStatistics};

    use super::*;
    use crate::launch::sample;

    #[test]
    fn only_known_values_are_reported_by_name() {
        let mut launch = sample::kernel_boot();
        launch.disks = vec![launch.disks[0].clone(), launch.disks[0].clone()];
        launch.disks[1].name = "second".to_owned();
        let busy = |requests| DiskStatistics {
            reads: Some(OperationStatistics { requests, ..OperationStatistics::default() }),
            ..DiskStatistics::default()
        };
        let pid = i32::try_from(std::process::id()).unwrap();
        let stats = HypervisorStats {
            pid,
            vcpus: vec![(0, pid), (1, -1)],
            disks: vec![(1, busy(5)), (9, busy(6))],
            plugged: vec![DiskStatistics { name: "data".to_owned(), ..busy(7) }],
            balloon: None,
        };
        let statistics = complete(&launch, stats);
        let known = [("second", 5), ("data", 7)];
        let known = known.map(|(name, requests)| DiskStatistics { name: name.to_owned(), ..busy(requests) });
        assert_eq!(statistics.disks, known);
        assert_eq!(statistics.domain_bytes, launch.memory_bytes);
        assert!(statistics.resident_bytes.is_some_and(|bytes| bytes > 0));
        let times: Vec<_> = statistics.vcpus.iter().map(|vcpu| vcpu.nanoseconds.is_some()).collect();
        assert_eq!(times, [true, false]);
        assert!(statistics.interfaces.is_empty(), "there is no such tap here");
    }
}
