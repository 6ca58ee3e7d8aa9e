//! Tables of medians.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::monitor::Monitor;
use super::store::Store;
use super::workload::Workload;
use crate::report::median;

/// One job of one guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) store: Store,
    pub(crate) workload: Workload,
    pub(crate) monitor: Monitor,
    /// Reads and writes per second.
    pub(crate) iops: f64,
    /// Latencies in microseconds.
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    /// The host's processor time for one of them, in microseconds.
    pub(crate) processor: f64,
}

/// A figure of samples.
struct Figure {
    title: &'static str,
    of: fn(&Sample) -> f64,
    /// Whether the best is the lowest.
    low_is_good: bool,
}

const FIGURES: [Figure; 4] = [
    Figure { title: "IOPS", of: |sample| sample.iops, low_is_good: false },
    Figure { title: "latency, median, us", of: |sample| sample.p50 as f64, low_is_good: true },
    Figure { title: "latency, 99 %, us", of: |sample| sample.p99 as f64, low_is_good: true },
    Figure { title: "host CPU per request, us", of: |sample| sample.processor, low_is_good: true },
];

/// A table for each figure: medians, and their ratios to the best QEMU.
pub(crate) fn tables(samples: &[Sample]) -> String {
    FIGURES.iter().map(|figure| table(samples, figure)).collect::<Vec<_>>().join("\n")
}

fn table(samples: &[Sample], figure: &Figure) -> String {
    let measured = |monitor| samples.iter().any(|sample| sample.monitor == monitor);
    let monitors: Vec<Monitor> = Monitor::ALL.into_iter().filter(|monitor| measured(*monitor)).collect();
    let mut text = format!("{:<28}", figure.title);
    for monitor in &monitors {
        text += &format!("{monitor:>18}");
    }
    text.push('\n');
    for store in Store::ALL {
        for workload in Workload::ALL {
            let row: Vec<(Monitor, Option<f64>)> = monitors
                .iter()
                .map(|monitor| (*monitor, median_of(samples, figure, (store, workload, *monitor))))
                .collect();
            if row.iter().all(|(_, value)| value.is_none()) {
                continue;
            }
            let best = best_of_qemu(&row, figure.low_is_good);
            // Writing to a String does not fail.
            let _ = write!(text, "{store:<7} {workload:<20}");
            for (_, value) in row {
                let _ = write!(text, "{:>18}", cell(value, best));
            }
            text.push('\n');
        }
    }
    text
}

fn median_of(samples: &[Sample], figure: &Figure, key: (Store, Workload, Monitor)) -> Option<f64> {
    let of_row = samples.iter().filter(|sample| (sample.store, sample.workload, sample.monitor) == key);
    median(of_row.map(figure.of).collect())
}

fn best_of_qemu(row: &[(Monitor, Option<f64>)], low_is_good: bool) -> Option<f64> {
    let values = row.iter().filter(|(monitor, _)| monitor.is_qemu()).filter_map(|(_, value)| *value);
    if low_is_good { values.min_by(f64::total_cmp) } else { values.max_by(f64::total_cmp) }
}

/// A value and its ratio, where there is something to divide by.
pub(crate) fn cell(value: Option<f64>, best: Option<f64>) -> String {
    match (value, best.filter(|best| *best > 0.0)) {
        (None, _) => "-".to_owned(),
        (Some(value), None) => format!("{value:.0}    - "),
        (Some(value), Some(best)) => format!("{value:.0} {:>6}", format!("({:.2})", value / best)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(store: Store, monitor: Monitor, iops: f64) -> Sample {
        let workload = Workload::RandomRead32;
        Sample { store, workload, monitor, iops, p50: 64_000, p99: 65_000, processor: 20.0 }
    }

    fn words(text: &str, line: usize) -> Vec<&str> {
        text.lines().nth(line).unwrap().split_whitespace().collect()
    }

    #[test]
    fn rows_are_medians_and_ratios_to_the_best_qemu() {
        let samples = [
            sample(Store::Null, Monitor::Vmm, 490.0),
            sample(Store::Null, Monitor::Vmm, 510.0),
            sample(Store::Null, Monitor::Vmm, 500.0),
            sample(Store::Null, Monitor::QemuDirect, 8000.0),
            sample(Store::Null, Monitor::QemuCached, 10_000.0),
        ];
        let text = table(&samples, &FIGURES[0]);
        assert_eq!(words(&text, 0), ["IOPS", "vmm", "qemu-direct", "qemu-cached"]);
        let expected = ["null", "read", "4k,", "32", "500", "(0.05)", "8000", "(0.80)", "10000", "(1.00)"];
        assert_eq!(words(&text, 1), expected);
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let samples = [
            sample(Store::Warm, Monitor::Vmm, 500.0),
            sample(Store::Qcow2, Monitor::Launcher, 400.0),
            sample(Store::Qcow2, Monitor::QemuCached, 800.0),
        ];
        let text = table(&samples, &FIGURES[0]);
        assert_eq!(words(&text, 1), ["warm", "read", "4k,", "32", "500", "-", "-", "-"]);
        assert_eq!(words(&text, 2), ["qcow2", "read", "4k,", "32", "-", "400", "(0.50)", "800", "(1.00)"]);
    }

    #[test]
    fn the_best_of_a_cost_is_the_lowest() {
        let row =
            [(Monitor::Vmm, Some(1.0)), (Monitor::QemuDirect, Some(3.0)), (Monitor::QemuCached, Some(2.0))];
        assert_eq!(best_of_qemu(&row, true), Some(2.0));
        assert_eq!(best_of_qemu(&row, false), Some(3.0));
        assert_eq!(best_of_qemu(&row[..1], true), None);
        // No processor time was seen: no ratio.
        assert_eq!(cell(Some(5.0), Some(0.0)).trim(), "5    -");
    }
}
