//! The status of a probe after its results so far, and the time of the next probe: pure, with the kubelet's rules.

use std::time::Duration;

use tokio::time::Instant;
use vireo_api::spec::Probe;

use crate::reconcile::status::ProbeStatus;

/// The minimum time between two changes of the cause, for a guest that fails in another way each time.
const CAUSE_INTERVAL: Duration = Duration::from_secs(30);

/// The result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The probe succeeded.
    Success,
    /// The probe failed, and why.
    Failure(String),
    /// The probe could not run.
    Unknown,
}

/// The period and the thresholds of a probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) period: Duration,
    pub(super) success_threshold: u32,
    pub(super) failure_threshold: u32,
}

impl Rules {
    pub(super) fn of(probe: &Probe) -> Self {
        Self {
            period: probe.period(),
            success_threshold: probe.success_threshold(),
            failure_threshold: probe.failure_threshold(),
        }
    }
}

/// The state of a probe after its results so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeState {
    pub(super) status: ProbeStatus,
    /// The time of the next probe.
    pub(super) due: Instant,
    /// The last result, and how often it came in a row.
    last: Option<bool>,
    row: u32,
    /// When the cause last changed.
    cause_changed: Option<Instant>,
}

impl ProbeState {
    pub(super) fn new(due: Instant) -> Self {
        Self { status: ProbeStatus::default(), due, last: None, row: 0, cause_changed: None }
    }

    /// The state after a probe that was sent at `sent`.
    pub(super) fn next(self, rules: &Rules, outcome: Outcome, sent: Instant, now: Instant) -> Self {
        // Probes that were missed while the guest was slow are not repeated.
        let due = (sent + rules.period).max(now);
        let (healthy, cause) = match outcome {
            Outcome::Success => (true, String::new()),
            Outcome::Failure(cause) => (false, cause),
            Outcome::Unknown => return Self { due, ..self },
        };
        let row = if self.last == Some(healthy) { self.row.saturating_add(1) } else { 1 };
        let enough = row >= if healthy { rules.success_threshold } else { rules.failure_threshold };
        let Self { mut status, mut cause_changed, .. } = self;
        let turned = enough && status.healthy != Some(healthy);
        if enough {
            status.healthy = Some(healthy);
        }
        if status.healthy == Some(true) {
            status.cause.clear();
            cause_changed = None;
        } else if !healthy && status.cause != cause {
            let is_due = turned || cause_changed.is_none_or(|changed| now >= changed + CAUSE_INTERVAL);
            if is_due {
                (status.cause, cause_changed) = (cause, Some(now));
            }
        }
        Self { status, due, last: Some(healthy), row, cause_changed }
    }
}

#[cfg(test)]
mod tests;
