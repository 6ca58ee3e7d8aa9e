//! Errors as the Kubernetes API answers them: `metav1.Status`.

use std::collections::BTreeMap;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::flow_control::Rejected;
use crate::managed_fields::{Conflict, Unapplied};
use crate::meta;
use crate::rbac::action::Action;
use crate::resource::{Cause, Resource};
use crate::store::{DiskError, Excess, Expired, UpdateError, WriteError};

/// How many causes the message lists, as in KubeVirt's API.
const MAX_CAUSES: usize = 10;

/// Seconds after which requests that came too many are to be tried again; as a Kubernetes API server's.
const RETRY_AFTER: u32 = 1;

/// A refused request.
#[derive(Debug, Clone)]
pub struct ApiError {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Value>,
    /// Whether the connection ends with it, as not all of the request was read.
    closes: bool,
    /// Whether the response has the header `Retry-After`.
    retries: bool,
}

/// A `metav1.Status` of a failure.
pub fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "message": message, "reason": reason, "code": code,
    })
}

impl ApiError {
    /// An error with a code and a reason, such as `NotFound`.
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, closes: false, retries: false }
    }

    fn about(self, resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        let kind = if causes.is_empty() { &resource.plural } else { &resource.kind };
        self.about_the((&resource.group, kind), name, causes)
    }

    fn about_the(mut self, (group, kind): (&str, &str), name: &str, causes: &[Cause]) -> Self {
        let known = [("name", name), ("group", group), ("kind", kind)];
        let known = known.into_iter().filter(|(_, word)| !word.is_empty());
        let mut details = Value::Object(known.map(|(field, word)| (field.to_owned(), json!(word))).collect());
        if !causes.is_empty() {
            let detail = |cause: &Cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field});
            details["causes"] = causes.iter().map(detail).collect();
        }
        self.details = Some(details);
        self
    }

    /// 404: the path does not exist.
    pub fn path_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    /// 404: the object does not exist.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.name());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(resource, name, &[])
    }

    /// 409: the name is taken.
    pub fn exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.name());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(resource, name, &[])
    }

    /// 409: the object was changed meanwhile, or is another one.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        Self { details: None, ..Self::conflict_on(&resource.name(), name, why) }.about(resource, name, &[])
    }

    /// The same of a resource of the core group, or one of its subresources.
    pub fn conflict_on(resource: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about_the(("", resource), name, &[])
    }

    /// The same, and the connection ends with it: the rest of the request is not read.
    #[must_use]
    pub(crate) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    /// 429: not now; the client may try again later.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    /// The client is asked to try again after a second.
    #[must_use]
    pub(crate) fn retried(self) -> Self {
        Self { details: Some(json!({"retryAfterSeconds": RETRY_AFTER})), retries: true, ..self }
    }

    /// 403: it is not allowed now.
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", resource.name());
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(resource, name, &[])
    }

    /// 403: they may not do that, in Kubernetes' words; `why` may be empty.
    pub fn denied(action: &Action, user: &str, why: &str) -> Self {
        let denied = action.denied(user);
        let why = if why.is_empty() { denied } else { format!("{denied}: {why}") };
        let (group, resource, name) = match action {
            Action::Path { .. } => ("", "", ""),
            Action::Object(access) => (access.group.as_str(), access.resource.as_str(), access.name.as_str()),
        };
        let subject = match (resource, group) {
            ("", _) => String::new(),
            (resource, "") => format!("{resource} "),
            (resource, group) => format!("{resource}.{group} "),
        };
        let subject = if name.is_empty() { subject } else { format!("{subject}{name:?} is ") };
        let is = if name.is_empty() && !subject.is_empty() { "is " } else { "" };
        let message = format!("{subject}{is}forbidden: {why}");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about_the((group, resource), name, &[])
    }

    /// 422: the object does not hold together.
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        Self::unsound((&resource.group, &resource.kind), name, causes)
    }

    /// The same for a resource that is not in the table, by its group and kind.
    pub fn unsound((group, kind): (&str, &str), name: &str, causes: &[Cause]) -> Self {
        let listed: Vec<String> = causes
            .iter()
            .take(MAX_CAUSES)
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect();
        let mut listed = listed.join(", ");
        if causes.len() > MAX_CAUSES {
            listed.push_str(&format!(", and {} more", causes.len() - MAX_CAUSES));
        }
        let subject = match group {
            "" => kind.to_owned(),
            group => format!("{kind}.{group}"),
        };
        let message = format!("{subject} {name:?} is invalid: {listed}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about_the((group, kind), name, causes)
    }

    /// 422: a patch does not fit.
    pub fn unfit(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    /// 422: the options of a request do not hold together.
    pub fn invalid_options(kind: &str, cause: Cause) -> Self {
        Self::unsound(("meta.k8s.io", kind), "", &[cause])
    }

    /// 400 or 409: a manifest cannot be applied, in the words that `kubectl` looks for.
    pub fn unapplied(resource: &Resource, manifest: &Value, why: Unapplied) -> Self {
        let conflicts = match why {
            Unapplied::Conflicts(conflicts) => conflicts,
            Unapplied::Malformed(why) => {
                let (namespace, name) = (meta::text(manifest, "namespace"), meta::text(manifest, "name"));
                return Self::bad_request(format!(
                    "failed to create typed patch object ({namespace}/{name}; {}, Kind={}): {why}",
                    resource.api_version(),
                    resource.kind
                ));
            }
        };
        let mut error = Self::new(StatusCode::CONFLICT, "Conflict", conflict_message(&conflicts));
        let cause = |conflict: &Conflict| {
            json!({
                "reason": "FieldManagerConflict", "message": format!("conflict with {}", conflict.owner),
                "field": conflict.field,
            })
        };
        error.details = Some(json!({ "causes": conflicts.iter().map(cause).collect::<Vec<_>>() }));
        error
    }

    /// 400: the request means nothing.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401: who are you?
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// 405: not on this.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// 406: none of the forms that the client accepts is served.
    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, application/json;as=Table;v=v1;g=meta.k8s.io";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// 415: the body is of a kind that is not read.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// 413: a body that is not read to its end.
    pub fn too_large(limit: usize) -> Self {
        Self { closes: true, ..Self::entity_too_large(&format!("limit is {limit}")) }
    }

    /// 413: a limit is exceeded; the message names it.
    pub fn entity_too_large(what: &str) -> Self {
        let message = format!("Request entity too large: {what}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// 413 or 422: the object is too large or too deep to be stored.
    pub fn excess(of: (&str, &str), name: &str, excess: &Excess) -> Self {
        match excess {
            Excess::Size { .. } => Self::entity_too_large(&excess.to_string()),
            Excess::Depth { field, most } => {
                let why =
                    format!("Invalid value: objects and arrays may be nested at most {most} levels deep");
                Self::unsound(of, name, &[Cause::invalid(field.as_str(), why)])
            }
        }
    }

    /// 408: the body did not come.
    pub fn too_slow() -> Self {
        let message = "the request's body did not arrive in time";
        Self { closes: true, ..Self::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message) }
    }

    /// 504: that has not happened yet.
    pub fn too_early(asked: u64, now: u64) -> Self {
        let mut error = Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Too large resource version: {asked}, current: {now}"),
        );
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        error.details = Some(json!({"retryAfterSeconds": 1, "causes": [cause]}));
        error
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// The same as a value.
    pub fn to_value(&self) -> Value {
        let mut value = status(self.code.as_u16(), self.reason, &self.message);
        if let Some(details) = &self.details {
            value["details"] = details.clone();
        }
        value
    }
}

/// Conflicts in Kubernetes' form.
fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [conflict] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", conflict.owner, conflict.field);
    }
    let mut owners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for conflict in conflicts {
        owners.entry(&conflict.owner).or_default().push(&conflict.field);
    }
    let owner = |(owner, fields): (&str, Vec<&str>)| match fields.as_slice() {
        [field] => format!("conflict with {owner}: {field}"),
        fields => format!("conflicts with {owner}:\n- {}", fields.join("\n- ")),
    };
    let owners: Vec<String> = owners.into_iter().map(owner).collect();
    format!(
        "Apply failed with {} conflicts: {}",
        conflicts.len(),
        owners.join(
            "
"
        )
    )
}

impl From<Rejected> for ApiError {
    fn from(Rejected: Rejected) -> Self {
        Self::too_many_requests("Too many requests, please try again later.").retried()
    }
}

impl From<Expired> for ApiError {
    fn from(expired: Expired) -> Self {
        Self::new(StatusCode::GONE, "Expired", expired.to_string())
    }
}

impl From<DiskError> for ApiError {
    fn from(error: DiskError) -> Self {
        if let DiskError::Excess { key, excess } = &error {
            let (plural, group) = key.resource.split_once('.').unwrap_or((&key.resource, ""));
            return Self::excess((group, plural), &key.name, excess);
        }
        let error = chain(&error);
        tracing::error!(error, "a write failed");
        Self::internal(format!("the write was not done: {error}"))
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl From<WriteError<ApiError>> for ApiError {
    fn from(error: WriteError<Self>) -> Self {
        match error {
            WriteError::Refused(error) => error,
            WriteError::Disk(error) => error.into(),
        }
    }
}

impl From<UpdateError<ApiError>> for ApiError {
    fn from(error: UpdateError<Self>) -> Self {
        match error {
            UpdateError::Write(error) => error.into(),
            UpdateError::Contended => Self::new(
                StatusCode::CONFLICT,
                "Conflict",
                "the object has been modified; please apply your changes to the latest version and try again",
            ),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.code, Json(self.to_value())).into_response();
        if self.code == StatusCode::UNAUTHORIZED {
            let value = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
        if self.retries {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER.into());
        }
        if self.closes {
            let value = header::HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, value);
        }
        response
    }
}
