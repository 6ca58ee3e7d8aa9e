//! API errors in the form of Kubernetes: `metav1.Status`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// The error of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) code: StatusCode,
    reason: &'static str,
    pub(super) message: String,
}

impl ApiError {
    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self { code: StatusCode::NOT_FOUND, reason: "NotFound", message: message.into() }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into() }
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self { code: StatusCode::CONFLICT, reason: "Conflict", message: message.into() }
    }

    /// The conflict error for an operation that is not possible in the VMI's current state.
    pub(super) fn not_now(name: &str, why: &str) -> Self {
        Self::conflict(format!(
            "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io \"{name}\": {why}"
        ))
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self { code: StatusCode::FORBIDDEN, reason: "Forbidden", message: message.into() }
    }

    pub(super) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self { code: StatusCode::METHOD_NOT_ALLOWED, reason: "MethodNotAllowed", message: message.into() }
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: StatusCode::SERVICE_UNAVAILABLE, reason: "ServiceUnavailable", message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self { code: StatusCode::INTERNAL_SERVER_ERROR, reason: "InternalError", message: message.into() }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        (self.code, Json(body)).into_response()
    }
}
