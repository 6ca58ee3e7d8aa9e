//! Durations for people.

use std::time::Duration;

/// The duration below which `part` of all are, from 0 to 100.
pub(super) fn percentile(all: &mut [Duration], part: usize) -> Duration {
    all.sort_unstable();
    let at = all.len().saturating_sub(1) * part.min(100) / 100;
    all.get(at).copied().unwrap_or_default()
}

/// Median, 99th percentile and the longest.
pub(super) fn spread(all: &mut [Duration]) -> String {
    let [median, most, longest] = [50, 99, 100].map(|part| percentile(all, part));
    format!("median {median:.2?}, 99 % below {most:.2?}, longest {longest:.2?}")
}

/// So many in so long, per second.
pub(super) fn rate(count: usize, took: Duration) -> String {
    let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    format!("{} a second", count.saturating_mul(1000) / milliseconds)
}
