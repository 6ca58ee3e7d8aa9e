//! Reasons of events.

/// Why there is an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// An object was created for another.
    SuccessfulCreate,
    /// It could not be created.
    FailedCreate,
    /// It was changed.
    SuccessfulUpdate,
    /// It could not be changed.
    FailedUpdate,
    /// It was deleted.
    SuccessfulDelete,
    /// A controller's object was paused.
    SuccessfulPaused,
    /// A replica set was resumed.
    SuccessfulResumed,
    /// A pool was resumed.
    SuccessfulResume,
    /// No node has room for an instance.
    FailedScheduling,
    /// A claim got its disk.
    ProvisioningSucceeded,
    /// A claim gets no disk.
    ProvisioningFailed,
    /// A disk was enlarged.
    VolumeResizeSuccessful,
    /// A disk cannot be enlarged.
    VolumeResizeFailed,
    /// A disk cannot be removed.
    VolumeFailedDelete,
    /// The disk of a claim is gone.
    ClaimLost,
}

impl Reason {
    /// As KubeVirt and Kubernetes spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SuccessfulCreate => "SuccessfulCreate",
            Self::FailedCreate => "FailedCreate",
            Self::SuccessfulUpdate => "SuccessfulUpdate",
            Self::FailedUpdate => "FailedUpdate",
            Self::SuccessfulDelete => "SuccessfulDelete",
            Self::SuccessfulPaused => "SuccessfulPaused",
            Self::SuccessfulResumed => "SuccessfulResumed",
            Self::SuccessfulResume => "SuccessfulResume",
            Self::FailedScheduling => "FailedScheduling",
            Self::ProvisioningSucceeded => "ProvisioningSucceeded",
            Self::ProvisioningFailed => "ProvisioningFailed",
            Self::VolumeResizeSuccessful => "VolumeResizeSuccessful",
            Self::VolumeResizeFailed => "VolumeResizeFailed",
            Self::VolumeFailedDelete => "VolumeFailedDelete",
            Self::ClaimLost => "ClaimLost",
        }
    }

    /// Whether the type of the event is `Warning`, and not `Normal`.
    pub fn is_warning(self) -> bool {
        match self {
            Self::FailedCreate
            | Self::FailedUpdate
            | Self::FailedScheduling
            | Self::ProvisioningFailed
            | Self::VolumeResizeFailed
            | Self::VolumeFailedDelete
            | Self::ClaimLost => true,
            Self::SuccessfulCreate
            | Self::SuccessfulUpdate
            | Self::SuccessfulDelete
            | Self::SuccessfulPaused
            | Self::SuccessfulResumed
            | Self::SuccessfulResume
            | Self::ProvisioningSucceeded
            | Self::VolumeResizeSuccessful => false,
        }
    }
}
