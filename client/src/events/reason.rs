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
        }
    }

    /// Whether the type of the event is `Warning`, and not `Normal`.
    pub fn is_warning(self) -> bool {
        match self {
            Self::FailedCreate | Self::FailedUpdate | Self::FailedScheduling => true,
            Self::SuccessfulCreate
            | Self::SuccessfulUpdate
            | Self::SuccessfulDelete
            | Self::SuccessfulPaused
            | Self::SuccessfulResumed
            | Self::SuccessfulResume => false,
        }
    }
}
