//! What the answers to a probe amount to, and when it is asked next: pure, as kubelet has it.

use std::time::Duration;

use tokio::time::Instant;
use vireo_api::spec::Probe;

/// A guest that fails in another way each time does not make news more often.
const NEWS: Duration = Duration::from_secs(30);

/// What one question brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The guest is well.
    Well,
    /// It is not, and why.
    Ill(String),
    /// It could not be asked.
    Unknown,
}

/// What counts.
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

/// What is known by a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Whether the guest is well; not known until a threshold is reached.
    pub well: Option<bool>,
    /// Why the last question was not answered well, while the guest is not known to be well.
    pub cause: String,
}

/// The answers so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Course {
    pub(super) standing: Standing,
    /// When it is asked next.
    pub(super) due: Instant,
    /// The last answer, and how many like it there were in a row.
    last: Option<bool>,
    row: u32,
    /// When the cause was last another one.
    told: Option<Instant>,
}

impl Course {
    pub(super) fn begin(due: Instant) -> Self {
        Self { standing: Standing::default(), due, last: None, row: 0, told: None }
    }

    /// After a question that was put at `asked`.
    pub(super) fn next(self, rules: &Rules, outcome: Outcome, asked: Instant, now: Instant) -> Self {
        // What was missed while the guest was slow is not made up for.
        let due = (asked + rules.period).max(now);
        let (well, cause) = match outcome {
            Outcome::Well => (true, String::new()),
            Outcome::Ill(cause) => (false, cause),
            Outcome::Unknown => return Self { due, ..self },
        };
        let row = if self.last == Some(well) { self.row.saturating_add(1) } else { 1 };
        let enough = row >= if well { rules.success_threshold } else { rules.failure_threshold };
        let Self { mut standing, mut told, .. } = self;
        let turned = enough && standing.well != Some(well);
        if enough {
            standing.well = Some(well);
        }
        if standing.well == Some(true) {
            standing.cause.clear();
            told = None;
        } else if !well && standing.cause != cause {
            let fresh = turned || told.is_none_or(|told| now >= told + NEWS);
            if fresh {
                (standing.cause, told) = (cause, Some(now));
            }
        }
        Self { standing, due, last: Some(well), row, told }
    }
}

#[cfg(test)]
mod tests;
