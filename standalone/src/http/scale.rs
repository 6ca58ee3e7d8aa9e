//! `/scale`: the number of replicas alone, as `autoscaling/v1` has it.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use super::query::Query;
use super::target::Object;
use super::{Refusal, Server, body, json_of};
use crate::patch::{self, Kind, PatchError};
use crate::resource::Cause;
use crate::store::{Change, Store};
use crate::{meta, store};

/// Most replicas that a set may want.
const MOST: i64 = i32::MAX as i64;

/// What a client sends.
enum Asked {
    Whole(Value),
    Patch(Kind, Value),
}

/// GET, PUT and PATCH of the scale of an object.
pub(super) async fn serve(
    server: &Arc<Server>,
    object: Object,
    query: &Query,
    request: Request,
) -> Result<Response, Refusal> {
    let asked = match *request.method() {
        Method::GET | Method::HEAD => None,
        Method::PUT => {
            let whole = body::object(request).await?;
            Some(Asked::Whole(whole.ok_or_else(|| Refusal::bad_request("a Scale is needed"))?))
        }
        Method::PATCH => match body::patch(request, false).await? {
            body::Patch::Change(kind, patch) => Some(Asked::Patch(kind, patch)),
            body::Patch::Manifest(_) => {
                let why = "a Scale is not applied: apply the object that has it";
                return Err(Refusal::unsupported(why));
            }
        },
        _ => return Err(Refusal::method_not_allowed()),
    };
    let (store, dry) = (Arc::clone(&server.store), query.dry_run);
    let done = tokio::task::spawn_blocking(move || scale(&store, &object, asked, dry)).await;
    let scale = done.map_err(|error| Refusal::internal(format!("the scale broke off: {error}")))??;
    Ok(json_of(StatusCode::OK, &scale))
}

/// Writes what is asked, if anything; the scale then.
fn scale(store: &Store, object: &Object, asked: Option<Asked>, dry: bool) -> Result<Value, Refusal> {
    let name = object.name.as_deref().unwrap_or_default();
    let absent = || Refusal::not_found(object.resource, name);
    let key = object.key(name);
    let Some(asked) = asked else {
        let object = store.get(&key).ok_or_else(absent)?;
        return Ok(of(&object));
    };
    let mut answer = Value::Null;
    let stored = store.write(&key, |before, _| {
        let before = before.ok_or_else(absent)?;
        let wanted = match asked {
            Asked::Whole(whole) => whole,
            Asked::Patch(kind, patch) => patch::apply(kind, &of(before), patch, &[]).map_err(|error| match error {
                PatchError::Malformed(message) => Refusal::bad_request(message),
                PatchError::Unfit(message) => Refusal::unfit(message),
            })?,
        };
        for field in ["resourceVersion", "uid"] {
            let given = meta::text(&wanted, field);
            if !given.is_empty() && given != meta::text(&before.value, field) {
                let why = "the object has been modified; please apply your changes to the latest version and try again";
                return Err(Refusal::conflict(object.resource, name, why));
            }
        }
        let replicas = replicas(&wanted).map_err(|cause| Refusal::invalid(object.resource, name, &[cause]))?;
        let mut value = before.value.clone();
        value["spec"]["replicas"] = json!(replicas);
        meta::count_generation(&mut value, &before.value);
        answer = of_value(&value);
        Ok(if dry { Change::Nothing } else { Change::Put(value) })
    })?;
    Ok(match stored.filter(|_| !dry) {
        Some(stored) => of(&stored),
        None => answer,
    })
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
            _ => Err(cause("is no number of replicas")),
        },
    }
}

fn of(object: &store::Object) -> Value {
    of_value(&object.value)
}

/// The scale of an object that has one.
fn of_value(value: &Value) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        metadata[field] = json!(meta::text(value, field));
    }
    let number = |at: &str| value.pointer(at).and_then(Value::as_i64).unwrap_or_default();
    let selector = value.pointer("/status/labelSelector").and_then(Value::as_str).unwrap_or_default();
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number("/spec/replicas")},
        "status": {"replicas": number("/status/replicas"), "selector": selector},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_a_number_that_fits() {
        let told =
            |value: Value| replicas(&json!({"spec": {"replicas": value}})).map_err(|cause| cause.field);
        assert_eq!((told(json!(3)), told(Value::Null)), (Ok(3), Ok(0)));
        for odd in [json!(-1), json!("3"), json!(MOST + 1), json!(1.5)] {
            assert_eq!(told(odd), Err("spec.replicas".to_owned()));
        }
        let scale = of_value(&json!({"metadata": {"name": "x", "uid": "u"}, "spec": {"replicas": 2},
            "status": {"replicas": 1, "labelSelector": "a=b"}}));
        assert_eq!(scale["metadata"]["name"], "x");
        assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(2), &json!("a=b")));
    }
}
