use thiserror::Error;

/// Why an object is reconciled again.
#[derive(Debug, Error)]
pub enum ReconcileError {
    /// The API server refuses an object that is needed.
    #[error("the API server refuses an object: {0}")]
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
