use thiserror::Error;

/// Why an object is reconciled again.
#[derive(Debug, Error)]
pub enum ReconcileError {
    /// An instance cannot be created.
    #[error("the API server refuses the virtual machine instance: {0}")]
    Refused(String),
    /// Something that it needs does not exist yet.
    #[error("{0}")]
    Waits(String),
    /// A request failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// An object cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}
