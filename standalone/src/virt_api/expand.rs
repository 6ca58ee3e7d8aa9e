//! `expand-spec` and `expand-vm-spec`: a machine as if its template said itself what its instance type and preference say.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use vireo_api::v1::VirtualMachine;
use vireo_apiserver::http::{ApiError, body, json_of};
use vireo_apiserver::meta;
use vireo_apiserver::store::Store;

use super::{Expand, VirtApi};
use crate::instancetypes;
use crate::resource::kubevirt;

/// GET of a machine that is there, PUT of any.
pub(super) async fn serve(server: &VirtApi, expand: Expand, request: Request) -> Result<Response, ApiError> {
    let store = Arc::clone(&server.store);
    let value = match (&expand.name, request.method()) {
        (Some(name), &Method::GET) => {
            let object = store.get(&kubevirt::VMS.key(&expand.namespace, name));
            object.ok_or_else(|| ApiError::not_found(&kubevirt::VMS, name))?.value.clone()
        }
        (None, &Method::PUT) => given(&expand.namespace, request).await?,
        _ => return Err(ApiError::method_not_allowed()),
    };
    let expanded = tokio::task::spawn_blocking(move || expanded(&store, value)).await;
    let expanded = expanded.map_err(|error| ApiError::internal(format!("it broke off: {error}")))??;
    Ok(json_of(StatusCode::OK, &expanded))
}

async fn given(namespace: &str, request: Request) -> Result<Value, ApiError> {
    let value = body::object(request).await?;
    let mut value = value.ok_or_else(|| ApiError::bad_request("Request with no body"))?;
    if value.get("kind").and_then(Value::as_str) != Some(vireo_api::v1::VM_KIND) {
        return Err(ApiError::bad_request("the body is no VirtualMachine"));
    }
    match meta::text(&value, "namespace") {
        "" => drop(meta::of(&mut value).insert("namespace".to_owned(), json!(namespace))),
        has if has == namespace => {}
        has => {
            let message = format!("VM namespace must be {namespace}, as in the path, and not {has}");
            return Err(ApiError::bad_request(message));
        }
    }
    Ok(value)
}

fn expanded(store: &Store, mut value: Value) -> Result<Value, ApiError> {
    let causes = instancetypes::find_names(store, &kubevirt::VMS, &mut value, None);
    if !causes.is_empty() {
        return Err(ApiError::invalid(&kubevirt::VMS, meta::text(&value, "name"), &causes));
    }
    let vm: VirtualMachine = serde_json::from_value(value.clone())
        .map_err(|error| ApiError::bad_request(format!("the VirtualMachine cannot be read: {error}")))?;
    let expanded = instancetypes::expand(store, &vm)
        .map_err(|causes| ApiError::invalid(&kubevirt::VMS, &vm.metadata.name, &causes))?;
    if let Some(template) = expanded {
        value["spec"]["template"] = json!(template);
        if let Some(spec) = value["spec"].as_object_mut() {
            spec.remove("instancetype");
            spec.remove("preference");
        }
    }
    Ok(value)
}
