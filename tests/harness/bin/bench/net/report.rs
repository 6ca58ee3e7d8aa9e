//! Tables of medians.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::monitor::Monitor;
use super::workload::Workload;
use crate::io::report::cell;
use crate::report::median;

/// One job of one guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) pairs: u32,
    pub(crate) workload: Workload,
    pub(crate) monitor: Monitor,
    /// Operations per second.
    pub(crate) rate: f64,
    /// The host's processor time for one of them, in microseconds.
    pub(crate) processor: f64,
}

/// A figure of samples, and whether the best is the lowest.
type Figure = (&'static str, fn(&Sample) -> f64, bool);

const FIGURES: [Figure; 2] =
    [("per second", |sample| sample.rate, false), ("host CPU of one, us", |sample| sample.processor, true)];

/// A table for each figure: medians, and their ratios to the better QEMU.
pub(crate) fn tables(samples: &[Sample]) -> String {
    FIGURES.iter().map(|figure| table(samples, figure)).collect::<Vec<_>>().join("\n")
}

fn table(samples: &[Sample], (title, of, low_is_good): &Figure) -> String {
    let measured = |monitor| samples.iter().any(|sample| sample.monitor == monitor);
    let monitors: Vec<Monitor> = Monitor::ALL.into_iter().filter(|monitor| measured(*monitor)).collect();
    let mut text = format!("{title:<28}");
    for monitor in &monitors {
        text += &format!("{monitor:>18}");
    }
    text.push('\n');
    let mut pairs: Vec<u32> = samples.iter().map(|sample| sample.pairs).collect();
    pairs.sort_unstable();
    pairs.dedup();
    for (pairs, workload) in pairs.into_iter().flat_map(|pairs| Workload::ALL.map(|one| (pairs, one))) {
        let value = |monitor: &Monitor| {
            let key = (pairs, workload, *monitor);
            let of_cell = samples.iter().filter(|one| (one.pairs, one.workload, one.monitor) == key);
            median(of_cell.map(of).collect())
        };
        let qemu = monitors.iter().filter(|monitor| monitor.is_qemu()).filter_map(value);
        let best = if *low_is_good { qemu.min_by(f64::total_cmp) } else { qemu.max_by(f64::total_cmp) };
        // Writing to a String does not fail.
        let _ = write!(text, "{pairs} {workload:<26}");
        for monitor in &monitors {
            let _ = write!(text, "{:>18}", cell(value(monitor), best));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_medians_and_ratios_to_the_better_qemu() {
        let sample = |monitor, rate| Sample {
            pairs: 2,
            workload: Workload::RoundTrips,
            monitor,
            rate,
            processor: 1e6 / rate,
        };
        let samples = [
            sample(Monitor::Vmm, 300.0),
            sample(Monitor::Vmm, 100.0),
            sample(Monitor::Qemu, 400.0),
            sample(Monitor::QemuVhost, 800.0),
        ];
        let text = tables(&samples);
        let words = |start: &str| -> Vec<Vec<&str>> {
            text.lines()
                .filter(|line| line.starts_with(start))
                .map(|l| l.split_whitespace().collect())
                .collect()
        };
        let rows = words("2 round trips");
        assert_eq!(rows[0], ["2", "round", "trips", "200", "(0.25)", "400", "(0.50)", "800", "(1.00)"]);
        assert_eq!(rows[1][3..5], ["6667", "(5.33)"]);
        assert_eq!(words("2 UDP")[0], ["2", "UDP", "to", "host", "-", "-", "-"]);
    }
}
