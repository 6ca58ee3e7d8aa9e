//! PUT and PATCH.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use super::validate::{is_called, match_request};
use super::{WriteRequest, Writer, Written, given_as};
use crate::http::ApiError;
use crate::http::body::{self, PatchBody};
use crate::managed_fields::Managers;
use crate::meta;
use crate::patch::{Patch, PatchError};
use crate::resource::Cause;
use crate::store::Object as Stored;

/// PUT of an object or its status.
pub(in crate::http) async fn replace(request: WriteRequest) -> Result<Response, ApiError> {
    let (writer, form, request) = request.split()?;
    let value = given_as(&writer.object, request).await?;
    match_request(&writer.object, &value)?;
    is_called(&value, writer.name())?;
    let resource = &*writer.object.resource;
    // An update of such an object needs its resourceVersion, or changes of others would be lost.
    if !resource.is_kubernetes() && meta::text(&value, "resourceVersion").is_empty() {
        let why = "Invalid value: 0x0: must be specified for an update";
        let cause = Cause::invalid("metadata.resourceVersion", why);
        return Err(ApiError::invalid(resource, writer.name(), &[cause]));
    }
    writer.answer(form, move |writer| writer.change(|_| Ok(value.clone()))).await
}

/// PATCH of an object or its status.
pub(in crate::http) async fn patch(request: WriteRequest) -> Result<Response, ApiError> {
    let (named, force) = (request.query.manager.is_some(), request.query.force);
    let (writer, form, request) = request.split()?;
    let keys = writer.object.resource.merge;
    let (kind, patch) = match body::patch(request, keys.is_some()).await? {
        PatchBody::Manifest(_) if !named => {
            let why = "Required value: is required for apply patch";
            return Err(ApiError::invalid_options("PatchOptions", Cause::required("fieldManager", why)));
        }
        PatchBody::Manifest(manifest) => {
            let force = force.unwrap_or_default();
            return writer.answer(form, move |writer| writer.apply(manifest, force)).await;
        }
        PatchBody::Change(..) if force.is_some() => {
            let why = "Forbidden: may not be specified for non-apply patch";
            return Err(ApiError::invalid_options("PatchOptions", Cause::forbidden("force", why)));
        }
        PatchBody::Change(kind, patch) => (kind, patch),
    };
    let patch = Patch::read(kind, patch).map_err(patch_error)?;
    let change = move |before: &Value| {
        let value = patch.apply(before, keys.unwrap_or_default()).map_err(patch_error)?;
        is_called(&value, meta::text(before, "name"))?;
        for field in ["apiVersion", "kind"] {
            if value.get(field) != before.get(field) {
                return Err(ApiError::unfit(format!("a patch cannot change {field}")));
            }
        }
        Ok(value)
    };
    writer.answer(form, move |writer| writer.change(change)).await
}

/// Why a patch is refused.
pub(super) fn patch_error(error: PatchError) -> ApiError {
    match error {
        PatchError::Malformed(message) => ApiError::bad_request(message),
        PatchError::Unfit(message) => ApiError::unfit(message),
        PatchError::TooLarge(message) => ApiError::entity_too_large(&message),
    }
}

impl Writer {
    /// Changes an object to what `make` makes of it.
    fn change(&self, make: impl Fn(&Value) -> Result<Value, ApiError>) -> Result<Written, ApiError> {
        let mut done: Option<Written> = None;
        let decide = |before: Option<&Arc<Stored>>| {
            let stored = before.ok_or_else(|| self.absent())?;
            let before = &*stored.value();
            let mut value = make(before)?;
            // A subresource does not change managers.
            let given = if self.object.status.is_some() { before } else { &value };
            let requested = Managers::requested(given, Some(before));
            let warnings = self.update(&mut value, before)?;
            self.check_limits(&mut value, Some(stored))?;
            self.record_update(&mut value, Some(before), requested);
            done = Some(Written { code: StatusCode::OK, value: Arc::new(value.clone()), warnings });
            Ok(self.decide(value))
        };
        let stored = self.store.update(&self.object.key(self.name()), self.space(), decide, |_| Ok(()))?;
        self.written(done, stored)
    }

    /// Makes of a new value what an update of `before` may be. Warnings for the user.
    pub(super) fn update(&self, value: &mut Value, before: &Value) -> Result<Vec<String>, ApiError> {
        if !value.is_object() {
            return Err(ApiError::bad_request("the result of the patch is not an object"));
        }
        self.check_identity(value, before)?;
        for field in ["apiVersion", "kind"] {
            value[field] = before[field].clone();
        }
        match self.object.status {
            Some(_) => {
                let status = value.get("status").cloned();
                value.clone_from(before);
                set_status(value, status);
            }
            None if self.object.resource.status => set_status(value, before.get("status").cloned()),
            None => {}
        }
        meta::update(value, before);
        let warnings = self.validate(value, Some(before))?;
        self.check_finalizers(value, before)?;
        meta::count_generation(value, before);
        Ok(warnings)
    }

    /// The preconditions of the client on revision and UID.
    pub(super) fn check_identity(&self, value: &Value, before: &Value) -> Result<(), ApiError> {
        let differs = |field: &str| {
            let has = meta::text(value, field);
            !has.is_empty() && has != meta::text(before, field)
        };
        let conflict = |why: &str| Err(ApiError::conflict(&self.object.resource, self.name(), why));
        if differs("resourceVersion") {
            return conflict(
                "the object has been modified; please apply your changes to the latest version and try again",
            );
        }
        if differs("uid") {
            return conflict(&format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                meta::text(value, "uid"),
                meta::text(before, "uid")
            ));
        }
        Ok(())
    }

    /// Finalizers cannot be added to an object that is being deleted.
    fn check_finalizers(&self, value: &Value, before: &Value) -> Result<(), ApiError> {
        if !meta::is_being_deleted(before) {
            return Ok(());
        }
        let had = meta::finalizers(before);
        let Some(fresh) = meta::finalizers(value).into_iter().find(|one| !had.contains(one)) else {
            return Ok(());
        };
        let message = format!(
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizer {fresh:?}"
        );
        let cause = Cause { reason: "FieldValueForbidden", message, field: "metadata.finalizers".to_owned() };
        Err(ApiError::invalid(&self.object.resource, self.name(), &[cause]))
    }
}

fn set_status(value: &mut Value, status: Option<Value>) {
    if let Some(fields) = value.as_object_mut() {
        match status {
            Some(status) => fields.insert("status".to_owned(), status),
            None => fields.remove("status"),
        };
    }
}
