//! The resource usage of this process.

use procfs::process::Process;
use procfs::{CurrentSI as _, KernelStats};

use super::metric_set::{Metric, MetricSet, Value, counter, gauge};

const CPU: Metric = counter("process_cpu_seconds_total", "CPU time of this process.");
const RESIDENT: Metric = gauge("process_resident_memory_bytes", "Memory of this process that is in RAM.");
const VIRTUAL: Metric = gauge("process_virtual_memory_bytes", "Addresses that this process has taken.");
const THREADS: Metric = gauge("process_threads", "Threads of this process.");
const OPEN: Metric = gauge("process_open_fds", "Files that this process has open.");
const MOST: Metric = gauge("process_max_fds", "Files that this process may have open.");
const START: Metric =
    gauge("process_start_time_seconds", "When this process started, in seconds since 1970.");

pub(super) fn add(metric_set: &mut MetricSet) {
    let Ok(process) = Process::myself() else { return };
    if let Ok(stat) = process.stat() {
        let ticks = stat.utime.saturating_add(stat.stime);
        metric_set.add(&CPU, Vec::new(), Some(of_ticks(ticks)));
        metric_set.add(&RESIDENT, Vec::new(), Some(stat.rss.saturating_mul(procfs::page_size()).into()));
        metric_set.add(&VIRTUAL, Vec::new(), Some(stat.vsize.into()));
        metric_set.add(&THREADS, Vec::new(), u64::try_from(stat.num_threads).ok().map(Value::Whole));
        let boot = KernelStats::current().ok().map(|kernel| kernel.btime);
        let start = boot.map(|boot| {
            Value::Whole(boot.saturating_add(stat.starttime / procfs::ticks_per_second().max(1)))
        });
        metric_set.add(&START, Vec::new(), start);
    }
    let open = process.fd_count().ok().and_then(|count| u64::try_from(count).ok());
    metric_set.add(&OPEN, Vec::new(), open.map(Value::Whole));
    let limit = process.limits().ok().map(|limits| limits.max_open_files.soft_limit);
    let limit = match limit {
        Some(procfs::process::LimitValue::Value(most)) => Some(Value::Whole(most)),
        Some(procfs::process::LimitValue::Unlimited) | None => None,
    };
    metric_set.add(&MOST, Vec::new(), limit);
}

fn of_ticks(ticks: u64) -> Value {
    let second = procfs::ticks_per_second().max(1);
    super::metric_set::seconds(
        (ticks / second).saturating_mul(1_000_000_000) + ticks % second * 1_000_000_000 / second,
    )
}
