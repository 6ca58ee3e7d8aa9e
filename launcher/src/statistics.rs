//! What a machine has used: what its hypervisor says, and what the kernel says of its threads and taps.
//!
//! Nothing is kept and nobody looks ahead of time: a machine that nobody asks about is not disturbed.

mod kernel;

use std::collections::BTreeMap;
use std::time::Duration;

use vireo_proto::launcher::{Fault, Statistics};

use crate::fault::{Code, fault};
use crate::hypervisor::Figures;
use crate::launch::Launch;
use crate::session::Metered;

pub use kernel::vcpus_of_this_process;

/// How long a hypervisor may take; one whose disk hangs takes forever.
const PATIENCE: Duration = Duration::from_secs(3);

/// Reads everything now.
///
/// # Errors
/// When no machine runs, or its hypervisor does not answer.
pub async fn read(metered: Metered) -> Result<Statistics, Fault> {
    let Some((meter, launch)) = metered else {
        return Err(fault(Code::Conflict, "no machine runs"));
    };
    match tokio::time::timeout(PATIENCE, meter.read()).await {
        Ok(Some(figures)) => Ok(complete(&launch, figures)),
        Ok(None) => Err(fault(Code::Conflict, "the machine is gone")),
        Err(_) => {
            let detail = format!("the hypervisor does not answer within {} s", PATIENCE.as_secs());
            Err(fault(Code::Hypervisor, detail))
        }
    }
}

/// Gives disks their names, and adds what the kernel knows.
fn complete(launch: &Launch, figures: Figures) -> Statistics {
    let mut statistics = kernel::of_process(figures.pid, &figures.vcpus);
    statistics.domain_bytes = launch.memory_bytes;
    statistics.balloon = figures.balloon;
    let mut disks: BTreeMap<usize, _> = figures.disks.into_iter().collect();
    let named = launch.disks.iter().enumerate().filter_map(|(place, disk)| {
        let mut known = disks.remove(&place)?;
        known.name.clone_from(&disk.name);
        Some(known)
    });
    statistics.disks = named.collect();
    let taps = launch.interfaces.iter().map(|interface| (interface.name.as_str(), interface.tap.as_str()));
    statistics.interfaces = kernel::of_taps(taps);
    statistics
}

#[cfg(test)]
mod tests {
    use vireo_proto::launcher::{DiskStatistics, OperationStatistics};

    use super::*;
    use crate::launch::sample;

    #[test]
    fn only_what_is_known_is_told_and_by_its_name() {
        let mut launch = sample::kernel_boot();
        launch.disks = vec![launch.disks[0].clone(), launch.disks[0].clone()];
        launch.disks[1].name = "second".to_owned();
        let busy = |requests| DiskStatistics {
            reads: Some(OperationStatistics { requests, ..OperationStatistics::default() }),
            ..DiskStatistics::default()
        };
        let pid = i32::try_from(std::process::id()).unwrap();
        let figures = Figures {
            pid,
            vcpus: vec![(0, pid), (1, -1)],
            disks: vec![(1, busy(5)), (9, busy(6))],
            balloon: None,
        };
        let statistics = complete(&launch, figures);
        assert_eq!(statistics.disks, [DiskStatistics { name: "second".to_owned(), ..busy(5) }]);
        assert_eq!(statistics.domain_bytes, launch.memory_bytes);
        assert!(statistics.resident_bytes.is_some_and(|bytes| bytes > 0));
        let times: Vec<_> = statistics.vcpus.iter().map(|vcpu| vcpu.nanoseconds.is_some()).collect();
        assert_eq!(times, [true, false]);
        assert!(statistics.interfaces.is_empty(), "there is no such tap here");
    }
}
