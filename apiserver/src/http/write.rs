//! Creating, changing and deleting.

mod apply;
pub(super) mod binding;
mod change;
mod create;
mod delete;
pub(super) mod eviction;
mod scale;
mod validate;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::Value;

use super::access::{self, Asker};
use super::blocking::run_blocking;
use super::query::{Query, Unknown};
use super::route::Object;
use super::table::{Form, shown};
use super::{ApiError, Server, body, json_of};
use crate::admission::Admission;
use crate::managed_fields::{Author, Managers, Type};
use crate::resource::{Cause, EVENTS, Registry};
use crate::store::{Change, Limits, Object as Stored, Space, Store};
use crate::{managed_fields, meta, objects};

pub(super) use change::{patch, replace};
pub(super) use create::create;
pub(super) use delete::{delete, delete_all};
pub(super) use scale::scale;

const MANAGED_FIELDS: &str = "managedFields";
/// Bytes of a field manager's name.
const LONGEST_MANAGER: usize = 128;

/// A request that writes.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) server: Arc<Server>,
    pub(super) object: Object,
    pub(super) query: Query,
    pub(super) form: Form,
    pub(super) request: Request,
}

impl WriteRequest {
    fn split(self) -> Result<(Writer, Form, Request), ApiError> {
        let writer = Writer {
            author: self.author()?,
            store: Arc::clone(&self.server.store),
            registry: Arc::clone(self.server.served.registry()),
            admission: Arc::clone(&self.server.admission),
            dry: self.query.dry_run,
            unknown: self.query.unknown,
            asker: access::asker(&self.request)?.clone(),
            object: self.object,
        };
        Ok((writer, self.form, self.request))
    }

    /// Who writes: what they call themselves, else what their program is called.
    fn author(&self) -> Result<Author, ApiError> {
        let agent = self.request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let program = agent.and_then(|agent| agent.split('/').next()).unwrap_or_default();
        let manager: String = match &self.query.manager {
            Some(manager) if manager.len() > LONGEST_MANAGER => {
                let why = format!("Too long: may not be more than {LONGEST_MANAGER} bytes");
                let cause = Cause { reason: "FieldValueTooLong", ..Cause::invalid("fieldManager", why) };
                return Err(ApiError::invalid_options("PatchOptions", cause));
            }
            Some(manager) if manager.chars().any(char::is_control) => {
                let why = "Invalid value: should only contain printable characters";
                return Err(ApiError::invalid_options("PatchOptions", Cause::invalid("fieldManager", why)));
            }
            Some(manager) => manager.clone(),
            None if program.is_empty() => "unknown".to_owned(),
            None => program.chars().take(LONGEST_MANAGER).collect(),
        };
        let subresource = if self.object.status.is_some() { "status" } else { "" };
        Ok(Author {
            manager,
            api_version: self.object.resource.api_version(),
            subresource: subresource.to_owned(),
        })
    }
}

/// What is written to, and how.
#[derive(Debug)]
struct Writer {
    store: Arc<Store>,
    registry: Arc<Registry>,
    admission: Arc<dyn Admission>,
    object: Object,
    /// Whether it is only asked what would be.
    dry: bool,
    unknown: Unknown,
    author: Author,
    asker: Asker,
}

/// What became of a write, or would have.
#[derive(Debug)]
struct Written {
    code: StatusCode,
    value: Arc<Value>,
    warnings: Vec<String>,
}

impl Writer {
    /// Writes beside the runtime, as a commit waits for the disk, and answers with what was written.
    async fn answer(
        self,
        form: Form,
        work: impl FnOnce(&Self) -> Result<Written, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let resource = Arc::clone(&self.object.resource);
        let written = run_blocking(move || work(&self)).await?;
        let mut response = json_of(written.code, &shown(&resource, &written.value, form));
        for warning in &written.warnings {
            let text = warning.replace(['\\', '"'], "'");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
                response.headers_mut().append("warning", value);
            }
        }
        Ok(response)
    }
}

impl Writer {
    fn name(&self) -> &str {
        self.object.name.as_deref().unwrap_or_default()
    }

    /// What this write may use of a full disk.
    fn space(&self) -> Space {
        let is_event = self.object.resource.is(&EVENTS);
        match !is_event && self.admission.may_use_reserve(&self.asker.user) {
            true => Space::Reserved,
            false => Space::Free,
        }
    }

    fn absent(&self) -> ApiError {
        ApiError::not_found(&self.object.resource, self.name())
    }

    /// Records the update in the managed fields. `requested` is what the client sent of them.
    fn record_update(&self, value: &mut Value, before: Option<&Value>, requested: Managers) {
        managed_fields::update(
            Type::of_resource(&self.object.resource),
            before,
            value,
            requested,
            &self.author,
        );
    }

    /// Stores a new state and removes an object without finalizers; a dry run does nothing.
    fn decide(&self, value: Value) -> Change {
        if self.dry {
            Change::Nothing
        } else if meta::is_being_deleted(&value) && !objects::is_held(&value) {
            Change::Remove(value)
        } else {
            Change::Recorded(value)
        }
    }

    /// Whether an object is as large and as deep as a client may make one; one that is larger already may stay so. The
    /// server's account of its fields does not count.
    fn check_limits(&self, value: &mut Value, before: Option<&Stored>) -> Result<(), ApiError> {
        let metadata = |value: &mut Value| value.get_mut("metadata")?.as_object_mut()?.remove(MANAGED_FIELDS);
        let managed = metadata(value);
        let bytes = before.map_or(Limits::REQUEST.bytes, |before| before.size.max(Limits::REQUEST.bytes));
        let within = Limits { bytes, ..Limits::REQUEST }.check(value);
        if let Some(managed) = managed {
            meta::of(value).insert(MANAGED_FIELDS.to_owned(), managed);
        }
        within.map(drop).map_err(|excess| {
            let resource = &self.object.resource;
            ApiError::excess((&resource.group, &resource.kind), meta::text(value, "name"), &excess)
        })
    }

    /// What is answered: what is stored now, or would be.
    fn written(&self, done: Option<Written>, stored: Option<Arc<Stored>>) -> Result<Written, ApiError> {
        let mut written = done.ok_or_else(|| ApiError::internal("the write was not decided"))?;
        if let Some(stored) = stored.filter(|_| !self.dry) {
            written.value = stored.value();
        }
        Ok(written)
    }
}

/// The object in a request. `apiVersion` and `kind` of Kubernetes' own kinds default to those of the path.
async fn given_as(object: &Object, request: Request) -> Result<Value, ApiError> {
    let mut value = given(request).await?;
    if object.resource.is_kubernetes() {
        let fills =
            [("apiVersion", object.resource.api_version()), ("kind", object.resource.kind.to_string())];
        for (field, word) in fills {
            if value.get(field).and_then(Value::as_str).is_none_or(str::is_empty) {
                value[field] = word.into();
            }
        }
    }
    Ok(value)
}

async fn given(request: Request) -> Result<Value, ApiError> {
    body::object(request).await?.ok_or_else(|| ApiError::bad_request("the request has no body"))
}
