//! DELETE.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::{WriteRequest, Writer};
use crate::admission::Operation;
use crate::http::blocking::run_blocking;
use crate::http::query::{Query, dry_run};
use crate::http::table::shown;
use crate::http::{ApiError, body, json_of, success};
use crate::meta::{FOREGROUND, ORPHAN};
use crate::resource::{Cause, mark_disrupted};
use crate::selector::Selector;
use crate::store::{Change, Object};
use crate::{meta, objects};

/// How a deletion is wanted.
#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    pub(super) dry: bool,
    pub(super) uid: String,
    revision: String,
    finalizer: Option<&'static str>,
    /// `gracePeriodSeconds`.
    grace: Option<i64>,
    /// Whether it is an eviction.
    pub(super) evicts: bool,
}

impl Options {
    pub(super) fn read(query: &Query, options: Option<Value>) -> Result<Self, ApiError> {
        let options = options.unwrap_or_default();
        if let Some(kind) =
            options.get("kind").and_then(Value::as_str).filter(|kind| *kind != "DeleteOptions")
        {
            let why = format!(
                "the kind in the data ({kind:?}) does not match the expected kind (\"DeleteOptions\")"
            );
            return Err(ApiError::bad_request(why));
        }
        let mut dry = query.dry_run;
        for word in options.get("dryRun").and_then(Value::as_array).into_iter().flatten() {
            dry |= dry_run(word.as_str().unwrap_or("?"))?;
        }
        let asked = options.get("propagationPolicy").and_then(Value::as_str).or(query.propagation.as_deref());
        let finalizer = match asked {
            None | Some("" | "Background") => None,
            Some("Foreground") => Some(FOREGROUND),
            Some("Orphan") => Some(ORPHAN),
            Some(other) => {
                let why = format!(
                    "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\""
                );
                let cause = Cause::unsupported("propagationPolicy", why);
                return Err(ApiError::invalid_options("DeleteOptions", cause));
            }
        };
        let precondition = |field: &str| {
            let value = options.pointer(&format!("/preconditions/{field}")).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let grace = options.get("gracePeriodSeconds").and_then(Value::as_i64).or(query.grace);
        // As a Kubernetes API server reads it.
        let grace = grace.map(|grace| if grace < 0 { 1 } else { grace });
        Ok(Self {
            dry,
            uid: precondition("uid"),
            revision: precondition("resourceVersion"),
            finalizer,
            grace,
            evicts: false,
        })
    }
}

/// DELETE of an object.
pub(in crate::http) async fn delete(request: WriteRequest) -> Result<Response, ApiError> {
    let query = request.query.clone();
    let (writer, form, request) = request.split()?;
    let options = Options::read(&query, body::object(request).await?)?;
    let resource = Arc::clone(&writer.object.resource);
    let name = writer.object.name.clone().unwrap_or_default();
    Ok(match run_blocking(move || writer.remove(&name, &options)).await? {
        DeleteOutcome::Pending(value) => json_of(StatusCode::OK, &shown(&resource, &value, form)),
        DeleteOutcome::Deleted(value) if resource.grace.is_some() => {
            json_of(StatusCode::OK, &shown(&resource, &value, form))
        }
        DeleteOutcome::Deleted(value) => {
            let details = json!({
                "name": meta::text(&value, "name"), "group": resource.group, "kind": resource.plural,
                "uid": meta::text(&value, "uid"),
            });
            json_of(StatusCode::OK, &success(details))
        }
    })
}

/// DELETE of a collection: each of it, as if by itself.
pub(in crate::http) async fn delete_all(request: WriteRequest) -> Result<Response, ApiError> {
    let query = request.query.clone();
    let (writer, _, request) = request.split()?;
    let resource = Arc::clone(&writer.object.resource);
    if resource.namespaced && writer.object.namespace.is_none() {
        return Err(ApiError::method_not_allowed());
    }
    let selector = Selector::read(|field| resource.selects_by(field), &query.labels, &query.fields)
        .map_err(ApiError::bad_request)?;
    let options = Options::read(&query, body::object(request).await?)?;
    let answer = run_blocking(move || writer.remove_all(&selector, &options)).await?;
    Ok(json_of(StatusCode::OK, &answer))
}

pub(super) enum DeleteOutcome {
    /// It has finalizers or a grace period.
    Pending(Value),
    Deleted(Value),
}

impl Writer {
    pub(super) fn remove(&self, name: &str, options: &Options) -> Result<DeleteOutcome, ApiError> {
        let resource = &*self.object.resource;
        let mut left = None;
        self.store.write(&self.object.key(name), |before, _| {
            let before = before.ok_or_else(|| ApiError::not_found(resource, name))?;
            self.check_preconditions(before, options)?;
            let had = before.value();
            let mut value = Value::clone(&had);
            if let Some(finalizer) = options.finalizer.filter(|_| !meta::is_being_deleted(&value)) {
                let mut finalizers = meta::finalizers(&value);
                if !finalizers.iter().any(|one| one == finalizer) {
                    finalizers.push(finalizer.to_owned());
                }
                meta::of(&mut value).insert("finalizers".to_owned(), json!(finalizers));
            }
            if options.evicts {
                mark_disrupted(&mut value);
            }
            let attributes = self.attributes(Operation::Delete, Some(&had));
            self.admission.delete(&attributes, &mut value, options.grace)?;
            let change = objects::mark_for_deletion(&mut value, resource.grace, options.grace);
            if !meta::is_being_deleted(&had) && resource.grace.is_some() && meta::is_being_deleted(&value) {
                meta::increment_generation(&mut value);
            }
            left = Some(match change {
                objects::Deletion::Held => DeleteOutcome::Pending(value.clone()),
                objects::Deletion::Free => DeleteOutcome::Deleted(value.clone()),
            });
            Ok(match (options.dry, change) {
                (true, _) => Change::Nothing,
                (false, objects::Deletion::Held) => Change::Recorded(value),
                (false, objects::Deletion::Free) => Change::Remove(value),
            })
        })?;
        left.ok_or_else(|| ApiError::internal("the deletion was not decided"))
    }

    pub(super) fn check_preconditions(&self, before: &Object, options: &Options) -> Result<(), ApiError> {
        let (resource, name) = (&*self.object.resource, before.key.name.as_str());
        let had = before.value();
        for (wanted, field) in [(&options.uid, "uid"), (&options.revision, "resourceVersion")] {
            let has = meta::text(&had, field);
            if !wanted.is_empty() && wanted != has {
                let why =
                    format!("Precondition failed: {field} in precondition: {wanted}, in object meta: {has}");
                return Err(ApiError::conflict(resource, name, &why));
            }
        }
        if objects::is_permanent(resource, name) {
            return Err(ApiError::forbidden(resource, name, "this namespace may not be deleted"));
        }
        Ok(())
    }

    fn remove_all(&self, selector: &Selector, options: &Options) -> Result<Value, ApiError> {
        let Self { store, object, .. } = self;
        let listing = store.list(&object.resource.name(), object.namespace.as_deref());
        let mut items = Vec::new();
        for found in listing.objects.iter().filter(|found| selector.selects_stored(found)) {
            match self.remove(&found.key.name, options) {
                Ok(DeleteOutcome::Pending(value) | DeleteOutcome::Deleted(value)) => items.push(value),
                // It was deleted meanwhile.
                Err(_) if store.get(&found.key).is_none() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(json!({
            "kind": format!("{}List", object.resource.kind), "apiVersion": object.resource.api_version(),
            "metadata": {"resourceVersion": store.revision().to_string()}, "items": items,
        }))
    }
}
