use std::sync::Arc;

use vireo_proto::launcher::{DiskStatistics, OperationStatistics};
use vireo_vmm::config::{DiskCounters, Operations};

use crate::hypervisor::{Figures, Readings};
use crate::statistics::vcpus_of_this_process;

/// Tells what the machine has used, to all who ask.
pub(super) async fn answer(mut readings: Readings, counters: Vec<Arc<DiskCounters>>) {
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    while let Some(reader) = readings.recv().await {
        let disks = counters.iter().map(|counters| disk(counters)).enumerate().collect();
        // Whoever asked may have lost patience.
        let _ = reader.send(Figures { pid, vcpus: vcpus_of_this_process(), disks, balloon: None });
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
