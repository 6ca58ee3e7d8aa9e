use jiff::Timestamp;
use vireo_api::v1::{Condition, VirtualMachineInstance};

/// Why a VM has the condition `Failure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureReason {
    /// Its instance, or what that needs, cannot be created.
    FailedCreate,
    /// Its instance cannot be deleted.
    FailedDelete,
}

impl FailureReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::FailedCreate => "FailedCreate",
            Self::FailedDelete => "FailedDelete",
        }
    }
}

/// What the conditions of a VM report beside those of its instance.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Why the last step cannot be taken, and its explanation.
    pub(super) failure: Option<(FailureReason, String)>,
    /// The template changed under a running instance.
    pub(super) restart_required: bool,
}

/// The condition that another controller sets, and that stays.
const KEPT: &str = "ManualRecoveryRequired";

/// The conditions of a VM: those of its instance, and its own.
pub(super) fn conditions(
    before: &[Condition],
    instance: Option<&VirtualMachineInstance>,
    own: &Own,
    now: Timestamp,
) -> Vec<Condition> {
    let mut all: Vec<Condition> = instance.map(|one| one.status.conditions.clone()).unwrap_or_default();
    if !all.iter().any(|one| one.r#type == "Ready") {
        all.push(not_ready(instance.is_some()));
    }
    all.extend(before.iter().filter(|one| one.r#type == KEPT).cloned());
    if let Some((reason, message)) = &own.failure {
        all.push(condition("Failure", ("True", reason.as_str()), message));
    }
    if own.restart_required {
        let message = "the template has changed since the instance was started; a restart applies it";
        all.push(condition("RestartRequired", ("True", ""), message));
    }
    // The instance's own have their times; the VM's begin when they change.
    for one in all.iter_mut().filter(|one| one.last_transition_time.is_none()) {
        let old = before.iter().find(|old| old.r#type == one.r#type && old.status == one.status);
        let since = old.and_then(|old| old.last_transition_time.clone());
        let own = matches!(one.r#type.as_str(), "Ready" | "Failure" | "RestartRequired");
        one.last_transition_time = since.or_else(|| own.then(|| now.to_string()));
    }
    all
}

fn not_ready(exists: bool) -> Condition {
    let (reason, message) = match exists {
        true => ("VMIConditionMissing", "the instance does not say whether it is ready"),
        false => ("VMINotExists", "VMI does not exist"),
    };
    condition("Ready", ("False", reason), message)
}

fn condition(kind: &str, (status, reason): (&str, &str), message: &str) -> Condition {
    Condition {
        r#type: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..Condition::default()
    }
}
