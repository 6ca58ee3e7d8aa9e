use vireo_api::spec::HYPERVISOR_CONDITION;
use vireo_api::v1::{Condition, VirtualMachineInstanceStatus as Status};

/// The conditions that a node sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionType {
    /// Whether the guest is ready, and why it is not; KubeVirt's.
    Ready,
    /// The guest is paused; KubeVirt's.
    Paused,
    /// The guest has an agent that answers; KubeVirt's.
    AgentConnected,
    /// The guest agent lacks commands that the status is made of; KubeVirt's.
    AgentVersionNotSupported,
    /// The guest has the keys and passwords that its agent sets; KubeVirt's.
    AccessCredentialsSynchronized,
    /// The VMI can migrate; KubeVirt's.
    LiveMigratable,
    /// The VMI is as its spec requests, or why it is not; KubeVirt's.
    Synchronized,
    /// The manifest of a running VMI was changed.
    ManifestChanged,
    /// The firmware found nothing to start.
    NoBootableDevice,
    /// The guest is shut down because its livenessProbe failed.
    Unhealthy,
    /// The guest is shut down because its launcher Pod is being deleted.
    PodTerminating,
    /// Limits of resources are not in force.
    LimitsNotInForce,
    /// The hypervisor that was chosen.
    Hypervisor,
}

impl ConditionType {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Paused => "Paused",
            Self::AgentConnected => "AgentConnected",
            Self::AgentVersionNotSupported => "AgentVersionNotSupported",
            Self::AccessCredentialsSynchronized => "AccessCredentialsSynchronized",
            Self::LiveMigratable => "LiveMigratable",
            Self::Synchronized => "Synchronized",
            Self::ManifestChanged => "vireo.io/manifest-changed",
            Self::NoBootableDevice => "vireo.io/no-bootable-device",
            Self::Unhealthy => "vireo.io/unhealthy",
            Self::PodTerminating => "vireo.io/pod-terminating",
            Self::LimitsNotInForce => "vireo.io/limits-not-in-force",
            Self::Hypervisor => HYPERVISOR_CONDITION,
        }
    }

    /// That of a VMI, if it has one.
    pub fn find(self, status: &Status) -> Option<&Condition> {
        status.conditions.iter().find(|condition| condition.r#type == self.as_str())
    }

    /// Whether that of a VMI is `True`.
    pub fn holds(self, status: &Status) -> bool {
        self.find(status).is_some_and(|condition| condition.status == "True")
    }

    /// Sets that of a VMI to whether it holds, a reason and a message, or removes it. Its time changes when its status does.
    pub(super) fn put(self, conditions: &mut Vec<Condition>, value: Option<(bool, &str, String)>, now: &str) {
        let kind = self.as_str();
        let Some((holds, reason, message)) = value else {
            conditions.retain(|condition| condition.r#type != kind);
            return;
        };
        let text = if holds { "True" } else { "False" };
        let position =
            conditions.iter().position(|condition| condition.r#type == kind).unwrap_or_else(|| {
                conditions.push(Condition { r#type: kind.to_owned(), ..Condition::default() });
                conditions.len() - 1
            });
        let Some(condition) = conditions.get_mut(position) else { return };
        if condition.status != text {
            text.clone_into(&mut condition.status);
            condition.last_transition_time = Some(now.to_owned());
        }
        reason.clone_into(&mut condition.reason);
        condition.message = message;
    }
}
