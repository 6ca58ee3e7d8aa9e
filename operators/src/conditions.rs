//! Conditions that are there while they hold.

use jiff::Timestamp;
use vireo_api::v1::Condition;

/// A condition that holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holds<'a> {
    pub(crate) kind: &'a str,
    /// In a word.
    pub(crate) reason: &'a str,
    /// For people.
    pub(crate) message: &'a str,
}

/// The conditions that hold, each since when it was said first.
pub(crate) fn standing(before: &[Condition], now: Timestamp, holding: &[Holds<'_>]) -> Vec<Condition> {
    let condition = |holds: &Holds<'_>| {
        let old = before.iter().find(|old| old.r#type == holds.kind);
        let since = old.and_then(|old| old.last_transition_time.clone());
        Condition {
            r#type: holds.kind.to_owned(),
            status: "True".to_owned(),
            reason: holds.reason.to_owned(),
            message: holds.message.to_owned(),
            last_transition_time: Some(since.unwrap_or_else(|| now.to_string())),
            ..Condition::default()
        }
    };
    holding.iter().map(condition).collect()
}

/// Whether there is a condition of this kind and status.
pub(crate) fn has(conditions: &[Condition], kind: &str, status: &str) -> bool {
    conditions.iter().any(|one| one.r#type == kind && one.status == status)
}
