//! POST.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use super::validate::{check_namespace, match_request};
use super::{WriteRequest, Writer, Written, given_as};
use crate::http::ApiError;
use crate::managed_fields::Managers;
use crate::meta;
use crate::resource::Cause;
use crate::store::{Change, Object as Stored, Store};

/// How often a made-up name may be taken.
const NAMES_TRIED: usize = 8;

/// POST of a collection.
pub(in crate::http) async fn create(request: WriteRequest) -> Result<Response, ApiError> {
    let (writer, form, request) = request.split()?;
    if writer.object.resource.namespaced && writer.object.namespace.is_none() {
        return Err(ApiError::bad_request("an empty namespace may not be set during creation"));
    }
    let value = given_as(&writer.object, request).await?;
    match_request(&writer.object, &value)?;
    writer.answer(form, move |writer| writer.create(value)).await
}

impl Writer {
    fn create(&self, value: Value) -> Result<Written, ApiError> {
        let given = meta::text(&value, "name").to_owned();
        if !given.is_empty() {
            return self.create_as(value, &given);
        }
        let prefix = meta::text(&value, "generateName").to_owned();
        if prefix.is_empty() {
            let cause = Cause {
                reason: "FieldValueRequired",
                message: "Required value: name or generateName is required".to_owned(),
                field: "metadata.name".to_owned(),
            };
            return Err(ApiError::invalid(&self.object.resource, "", &[cause]));
        }
        let mut names = (0..NAMES_TRIED).map(|_| meta::made_up(&prefix));
        let free = names.find(|name| self.store.get(&self.object.key(name)).is_none());
        self.create_as(value, &free.unwrap_or_else(|| meta::made_up(&prefix)))
    }

    fn create_as(&self, mut value: Value, name: &str) -> Result<Written, ApiError> {
        self.check_name(name)?;
        check_namespace(&self.store, &self.object, name)?;
        meta::create(&mut value, self.object.namespace.as_deref().unwrap_or_default(), name);
        let requested = Managers::requested(&value, None);
        let warnings = self.validate(&mut value, None)?;
        self.check_limits(&mut value, None)?;
        self.record_update(&mut value, None, requested);
        let decide = |before: Option<&Arc<Stored>>| match before {
            Some(_) => Err(ApiError::exists(&self.object.resource, name)),
            None if self.dry => Ok(Change::Nothing),
            None => Ok(Change::Recorded(value.clone())),
        };
        // Once more, under the lock of the key.
        let (object, new) = (self.object.clone(), name.to_owned());
        let confirm = move |store: &Store| check_namespace(store, &object, &new);
        let stored = self.store.update(&self.object.key(name), self.space(), decide, confirm)?;
        let value = stored.map_or_else(|| Arc::new(value), |stored| stored.value());
        Ok(Written { code: StatusCode::CREATED, value, warnings })
    }

    pub(super) fn check_name(&self, name: &str) -> Result<(), ApiError> {
        if (self.object.resource.name_fits)(name) {
            return Ok(());
        }
        let message = format!(
            "Invalid value: {name:?}: a lowercase RFC 1123 name must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
        );
        let cause = Cause { reason: "FieldValueInvalid", message, field: "metadata.name".to_owned() };
        Err(ApiError::invalid(&self.object.resource, name, &[cause]))
    }
}
