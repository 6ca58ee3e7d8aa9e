//! Errors as the Kubernetes API answers them: `metav1.Status`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};
use serde_json::{Value, json};
use vireo_client::{Kind, write};

use crate::Problem;

/// How many causes the message lists, as in KubeVirt's API.
const MAX_CAUSES: usize = 10;

/// A request that is not done.
#[derive(Debug, Clone)]
pub struct ApiError {
    status: Box<Status>,
    /// Whether an object was changed while the request was decided: it can be tried again.
    is_stale: bool,
    /// Whether the connection ends with it, as not all of the request was read.
    closes: bool,
}

impl ApiError {
    fn new(code: StatusCode, reason: &str, message: impl AsRef<str>) -> Self {
        let status = Status::failure(message.as_ref(), reason).with_code(code.as_u16()).boxed();
        Self { status, is_stale: false, closes: false }
    }

    fn about(mut self, (group, kind): (&str, &str), name: &str, problems: &[Problem]) -> Self {
        let causes = problems.iter().map(|problem| StatusCause {
            reason: problem.cause.as_str().to_owned(),
            message: problem.message.clone(),
            field: problem.field.clone(),
        });
        self.status.details = Some(StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            uid: String::new(),
            causes: causes.collect(),
            retry_after_seconds: 0,
        });
        self
    }

    /// 404: nothing is served at the path.
    pub(super) fn path_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    /// 404.
    pub(super) fn not_found(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// 405.
    pub(super) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// 400.
    pub(super) fn bad_request(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 409: the state of the object does not permit it.
    pub(super) fn conflict(kind: Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.resource_name());
        let error = Self::new(StatusCode::CONFLICT, "Conflict", message);
        error.about((kind.group, kind.plural), name, &[])
    }

    /// 422: an object is not valid.
    pub(super) fn invalid((group, kind): (&str, &str), name: &str, problems: &[Problem]) -> Self {
        let listed = problems.iter().take(MAX_CAUSES);
        let listed: Vec<String> =
            listed.map(|problem| format!("{}: {}", problem.field, problem.message)).collect();
        let mut listed = listed.join(", ");
        if problems.len() > MAX_CAUSES {
            listed.push_str(&format!(", and {} more", problems.len() - MAX_CAUSES));
        }
        let message = format!("{kind}.{group} {name:?} is invalid: {listed}");
        let error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        error.about((group, kind), name, problems)
    }

    /// 413: the body is too large, and not read to its end.
    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        let error = Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message);
        Self { closes: true, ..error }
    }

    /// 408: the body did not arrive in time.
    pub(super) fn too_slow() -> Self {
        let message = "the request's body did not arrive in time";
        Self { closes: true, ..Self::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message) }
    }

    /// 415: the body is in a format that is not read.
    pub(super) fn unsupported_media_type(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// 403.
    pub(super) fn forbidden(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 503: a part that is needed does not answer now.
    pub(super) fn unavailable(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    /// 500.
    pub(super) fn internal(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// Whether an object was changed while the request was decided: it can be tried again.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    fn to_value(&self) -> Value {
        let mut value = serde_json::to_value(&self.status).unwrap_or_default();
        value["kind"] = json!("Status");
        value["apiVersion"] = json!("v1");
        value["metadata"] = json!({});
        value
    }
}

/// What the API server answers is answered to the client.
impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        let is_stale = write::is_conflict(&error);
        match error {
            kube::Error::Api(status) => Self { status, is_stale, closes: false },
            error => Self::internal(format!("a request to the API server failed: {error}")),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (code, Json(self.to_value())).into_response();
        if self.closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_status_with_its_causes() {
        let problems = [Problem::invalid("spec.running", "must not be set")];
        let error = ApiError::invalid(("kubevirt.io", "VirtualMachine"), "web", &problems);
        assert_eq!(
            error.to_value(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 422,
                "reason": "Invalid",
                "message": "VirtualMachine.kubevirt.io \"web\" is invalid: spec.running: must not be set",
                "details": {"name": "web", "group": "kubevirt.io", "kind": "VirtualMachine", "causes": [
                    {"reason": "FieldValueInvalid", "message": "must not be set", "field": "spec.running"},
                ]},
            })
        );
        let conflict = ApiError::conflict(Kind::VM, "web", "VM is not running");
        assert_eq!(
            conflict.to_value()["message"],
            "Operation cannot be fulfilled on virtualmachines.kubevirt.io \"web\": VM is not running"
        );
        assert!(!conflict.is_stale());
    }
}
