use vireo_api::v1::VirtualMachineInstance;

/// How far an instance has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// There is none.
    Absent,
    /// It runs or is on its way to.
    Alive,
    Succeeded,
    Failed,
    /// It is being deleted and still runs.
    Stopping,
    /// It is being deleted and has ended.
    Ended,
}

impl Life {
    pub(super) fn of(instance: Option<&VirtualMachineInstance>) -> Self {
        let Some(instance) = instance else { return Self::Absent };
        let deleting = instance.metadata.deletion_timestamp.is_some();
        match (instance.status.phase.as_str(), deleting) {
            ("Succeeded" | "Failed", true) => Self::Ended,
            ("Succeeded", false) => Self::Succeeded,
            ("Failed", false) => Self::Failed,
            (_, true) => Self::Stopping,
            (_, false) => Self::Alive,
        }
    }

    /// Whether nothing runs.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Self::Absent | Self::Succeeded | Self::Failed | Self::Ended)
    }
}

/// Whether an instance has ever run.
pub(super) fn has_run(instance: &VirtualMachineInstance) -> bool {
    let reached = &instance.status.phase_transition_timestamps;
    instance.status.phase == "Running" || reached.iter().any(|one| one.phase == "Running")
}

/// Whether it has the condition with the status `True`.
pub(super) fn holds(instance: &VirtualMachineInstance, kind: &str) -> bool {
    instance.status.conditions.iter().any(|one| one.r#type == kind && one.status == "True")
}

/// Whether it has the condition with the status `False`, and for this reason.
pub(super) fn lacks(instance: &VirtualMachineInstance, kind: &str, reason: &str) -> bool {
    let conditions = &instance.status.conditions;
    conditions.iter().any(|one| one.r#type == kind && one.status == "False" && one.reason == reason)
}
