//! Blocking work of requests.

use super::ApiError;

/// Runs work that blocks on a thread of its own, off the runtime.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("the work panicked: {error}")))?
}
