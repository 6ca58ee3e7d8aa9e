//! Subresources and documents of KubeVirt's API that are not served, each with its reason.

use vireo_client::Kind;

use super::ApiError;

const SEV: &str = "guests with encrypted memory are not started yet, whatever the nodes offer: spec.domain.launchSecurity is refused";
const MIGRATION: &str = "VirtualMachineInstances are not migrated yet";
const PROFILER: &str = "there is no cluster profiler";
const BACKUP: &str = "backups are not taken yet";

/// What is not served, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unserved {
    /// The path below the name of an object, or below the version.
    name: &'static str,
    /// What is missing.
    why: &'static str,
}

/// Subresources of a VirtualMachineInstance.
const OF_VMI: [Unserved; 7] = [
    Unserved { name: "backup", why: BACKUP },
    Unserved { name: "evacuate/cancel", why: MIGRATION },
    Unserved { name: "redefine-checkpoint", why: BACKUP },
    Unserved { name: "sev/fetchcertchain", why: SEV },
    Unserved { name: "sev/injectlaunchsecret", why: SEV },
    Unserved { name: "sev/querylaunchmeasurement", why: SEV },
    Unserved { name: "sev/setupsession", why: SEV },
];

/// Subresources of a VirtualMachine.
const OF_VM: [Unserved; 2] =
    [Unserved { name: "evacuate/cancel", why: MIGRATION }, Unserved { name: "migrate", why: MIGRATION }];

/// Documents.
const DOCUMENTS: [Unserved; 3] = [
    Unserved { name: "dump-cluster-profiler", why: PROFILER },
    Unserved { name: "start-cluster-profiler", why: PROFILER },
    Unserved { name: "stop-cluster-profiler", why: PROFILER },
];

impl Unserved {
    /// The subresource of a kind, if it is one of KubeVirt's.
    pub(super) fn of_object(kind: Kind, subresource: &[&str]) -> Option<Self> {
        let name = subresource.join("/");
        let all: &[Self] = if kind == Kind::VM { &OF_VM } else { &OF_VMI };
        all.iter().find(|one| one.name == name).copied()
    }

    /// The document of a name, if it is one of KubeVirt's.
    pub(super) fn document(name: &str) -> Option<Self> {
        DOCUMENTS.iter().find(|one| one.name == name).copied()
    }

    /// The answer: 400, as KubeVirt's for a feature that is switched off.
    pub(super) fn error(self) -> ApiError {
        ApiError::bad_request(format!("{} is not available: {}", self.name, self.why))
    }
}
