//! `/scale`: the number of replicas alone, as `autoscaling/v1` has it.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use super::change::patch_error;
use super::{WriteRequest, Writer, Written, given};
use crate::http::blocking::run_blocking;
use crate::http::body::{self, PatchBody};
use crate::http::{ApiError, json_of};
use crate::managed_fields::Managers;
use crate::meta;
use crate::patch::Patch;
use crate::resource::{Cause, Scale};
use crate::store::Object as Stored;

/// Most replicas that a set may want.
const MOST: i64 = i32::MAX as i64;

/// What a client sends.
enum Wanted {
    Whole(Value),
    Patch(Patch),
}

/// GET, PUT and PATCH of the scale of an object.
pub(in crate::http) async fn scale(request: WriteRequest) -> Result<Response, ApiError> {
    let method = request.request.method().clone();
    let (mut writer, _, request) = request.split()?;
    "scale".clone_into(&mut writer.author.subresource);
    let wanted = match method {
        Method::GET | Method::HEAD => None,
        Method::PUT => Some(Wanted::Whole(given(request).await?)),
        Method::PATCH => match body::patch(request, false).await? {
            PatchBody::Change(kind, patch) => {
                Some(Wanted::Patch(Patch::read(kind, patch).map_err(patch_error)?))
            }
            PatchBody::Manifest(_) => {
                let why = "a Scale is not applied: apply the object that has it";
                return Err(ApiError::unsupported(why));
            }
        },
        _ => return Err(ApiError::method_not_allowed()),
    };
    let scale = match wanted {
        None => {
            let object = writer.store.get(&writer.object.key(writer.name()));
            of(writer.scale_at()?, &object.ok_or_else(|| writer.absent())?.value())
        }
        Some(wanted) => run_blocking(move || writer.scale(&wanted)).await?,
    };
    Ok(json_of(StatusCode::OK, &scale))
}

impl Writer {
    fn scale_at(&self) -> Result<&Scale, ApiError> {
        self.object.resource.scale.as_ref().ok_or_else(ApiError::path_not_found)
    }

    fn scale(&self, wanted: &Wanted) -> Result<Value, ApiError> {
        let at = self.scale_at()?;
        let mut done = None;
        let decide = |before: Option<&Arc<Stored>>| {
            let before = &*before.ok_or_else(|| self.absent())?.value();
            let wanted = match wanted {
                Wanted::Whole(whole) => Cow::Borrowed(whole),
                Wanted::Patch(patch) => Cow::Owned(patch.apply(&of(at, before), &[]).map_err(patch_error)?),
            };
            self.check_identity(&wanted, before)?;
            let replicas = replicas(&wanted)
                .map_err(|cause| ApiError::invalid(&self.object.resource, self.name(), &[cause]))?;
            let mut value = before.clone();
            put(&mut value, &at.wanted, json!(replicas));
            // Its schema may allow less than any number.
            if self.object.resource.custom.is_some() {
                self.validate(&mut value, Some(before))?;
            }
            meta::count_generation(&mut value, before);
            self.record_update(&mut value, Some(before), Managers::requested(before, Some(before)));
            done =
                Some(Written { code: StatusCode::OK, value: Arc::new(value.clone()), warnings: Vec::new() });
            Ok(self.decide(value))
        };
        let stored = self.store.update(&self.object.key(self.name()), self.space(), decide, |_| Ok(()))?;
        Ok(of(at, &self.written(done, stored)?.value))
    }
}

fn replicas(scale: &Value) -> Result<i64, Cause> {
    let cause = |message: &str| Cause {
        reason: "FieldValueInvalid",
        message: message.to_owned(),
        field: "spec.replicas".to_owned(),
    };
    match scale.pointer("/spec/replicas") {
        None | Some(Value::Null) => Ok(0),
        Some(value) => match value.as_i64() {
            Some(number @ 0..=MOST) => Ok(number),
            Some(..0) => Err(cause("must be greater than or equal to 0")),
            _ => Err(cause("must be a number of replicas")),
        },
    }
}

/// Puts a value where a pointer leads, and makes the objects on the way.
fn put(value: &mut Value, pointer: &str, new: Value) {
    let mut field_value = value;
    for field in pointer.split('/').skip(1) {
        if !field_value.is_object() {
            *field_value = json!({});
        }
        field_value = &mut field_value[field];
    }
    *field_value = new;
}

/// The scale of an object that has one.
fn of(at: &Scale, value: &Value) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        metadata[field] = json!(meta::text(value, field));
    }
    let number = |at: &str| value.pointer(at).and_then(Value::as_i64).unwrap_or_default();
    let selector = at.selector.as_ref().and_then(|at| value.pointer(at)?.as_str()).unwrap_or_default();
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number(&at.wanted)},
        "status": {"replicas": number(&at.there), "selector": selector},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_a_number_that_fits() {
        let replicas_of =
            |value: Value| replicas(&json!({"spec": {"replicas": value}})).map_err(|cause| cause.field);
        assert_eq!((replicas_of(json!(3)), replicas_of(Value::Null)), (Ok(3), Ok(0)));
        for odd in [json!(-1), json!("3"), json!(MOST + 1), json!(1.5)] {
            assert_eq!(replicas_of(odd), Err("spec.replicas".to_owned()));
        }
        let at = &Scale {
            wanted: "/spec/replicas".into(),
            there: "/status/replicas".into(),
            selector: Some("/status/labelSelector".into()),
        };
        let scale = of(
            at,
            &json!({"metadata": {"name": "x", "uid": "u"}, "spec": {"replicas": 2},
            "status": {"replicas": 1, "labelSelector": "a=b"}}),
        );
        assert_eq!(scale["metadata"]["name"], "x");
        assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(2), &json!("a=b")));
    }
}
