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

/// The conditions that hold, each with its first transition time.
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

/// Sets a condition to `False` with a reason and a message, or removes it. Whether that changed it.
pub(crate) fn set_false(
    conditions: &mut Vec<Condition>,
    kind: &str,
    why: Option<(&str, &str)>,
    now: Timestamp,
) -> bool {
    set(conditions, kind, "False", why, now)
}

/// Sets a condition to a status with a reason and a message, or removes it. Whether that changed it.
pub(crate) fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: &str,
    why: Option<(&str, &str)>,
    now: Timestamp,
) -> bool {
    let position = conditions.iter().position(|one| one.r#type == kind);
    let old = position.map(|position| conditions.remove(position));
    let Some((reason, message)) = why else { return old.is_some() };
    let since = old.as_ref().filter(|old| old.status == status);
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let new = Condition {
        r#type: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since
            .and_then(|old| old.last_transition_time.clone())
            .or(Some(now.to_string())),
        ..Condition::default()
    };
    let changed = old.as_ref() != Some(&new);
    conditions.insert(position.unwrap_or(conditions.len()), new);
    changed
}
