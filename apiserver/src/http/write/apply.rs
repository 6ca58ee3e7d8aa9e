//! PATCH with a manifest: server-side apply.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::Value;

use super::validate::{check_namespace, is_called, match_request};
use super::{Writer, Written};
use crate::http::ApiError;
use crate::managed_fields::{self, Application, Applied, Type};
use crate::meta;
use crate::store::{Object as Stored, Store};

impl Writer {
    /// Applies a manifest to an object, or makes the object.
    pub(super) fn apply(&self, mut manifest: Value, force: bool) -> Result<Written, ApiError> {
        self.read_manifest(&mut manifest)?;
        let resource = &*self.object.resource;
        let application =
            Application { of: Type::of_resource(resource), author: &self.author, manifest: &manifest, force };
        let mut done: Option<Written> = None;
        let decide = |stored: Option<&Arc<Stored>>| {
            let before = stored.map(|stored| stored.value());
            let before = before.as_deref();
            if before.is_none() {
                self.may_begin(&manifest)?;
                self.may_create()?;
                check_namespace(&self.store, &self.object, self.name())?;
            }
            let Applied { object: mut value, managers } = managed_fields::apply(before, &application)
                .map_err(|why| ApiError::unapplied(resource, &manifest, why))?;
            managed_fields::note_for_the_client(&mut value, &application);
            let (code, warnings) = match before {
                Some(before) => (StatusCode::OK, self.update(&mut value, before)?),
                None => {
                    meta::create(
                        &mut value,
                        self.object.namespace.as_deref().unwrap_or_default(),
                        self.name(),
                    );
                    (StatusCode::CREATED, self.validate(&mut value, None)?)
                }
            };
            self.check_limits(&mut value, stored.map(|stored| &**stored))?;
            managers.write(&mut value);
            done = Some(Written { code, value: Arc::new(value.clone()), warnings });
            Ok(self.decide(value))
        };
        // Once more, under the lock of the key.
        let (object, name) = (self.object.clone(), self.name().to_owned());
        let confirm = move |store: &Store| match store.get(&object.key(&name)) {
            None => check_namespace(store, &object, &name),
            Some(_) => Ok(()),
        };
        let stored = self.store.update(&self.object.key(self.name()), self.space(), decide, confirm)?;
        self.written(done, stored)
    }

    /// Checks a manifest, and leaves of it what is written here.
    fn read_manifest(&self, manifest: &mut Value) -> Result<(), ApiError> {
        match_request(&self.object, manifest)?;
        if manifest.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        // The URL has it too.
        if !meta::text(manifest, "name").is_empty() {
            is_called(manifest, self.name())?;
        }
        let findings = self.object.resource.check(manifest);
        if let Some(unknown) = findings.unknown.first() {
            let why =
                managed_fields::Unapplied::Malformed(format!(".{unknown}: field not declared in schema"));
            return Err(ApiError::unapplied(&self.object.resource, manifest, why));
        }
        let Some(fields) = manifest.as_object_mut() else { return Ok(()) };
        match self.object.status {
            Some(_) => {
                fields.retain(|name, _| ["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()))
            }
            None if self.object.resource.status => drop(fields.remove("status")),
            None => {}
        }
        if self.object.status.is_some()
            && let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata
                .retain(|name, _| ["name", "namespace", "uid", "resourceVersion"].contains(&name.as_str()));
        }
        Ok(())
    }

    /// Whether an object may be made by applying.
    fn may_begin(&self, manifest: &Value) -> Result<(), ApiError> {
        let resource = &*self.object.resource;
        if self.object.status.is_some() {
            return Err(ApiError::not_found(resource, self.name()));
        }
        let uid = meta::text(manifest, "uid");
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(ApiError::conflict(resource, self.name(), &why));
        }
        self.check_name(self.name())
    }
}
