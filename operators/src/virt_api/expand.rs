//! `expand-spec` and `expand-vm-spec`: a VM whose template has the values of its instance type and its preference.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use vireo_api::v1::{VM_KIND, VirtualMachine};
use vireo_client::{Kind, ObjectKey};

use super::{ApiError, VirtApi, body, json_response};
use crate::Problem;
use crate::instancetype::{self, reads};

/// GET of a VM that exists.
pub(super) async fn of_stored(
    server: &VirtApi,
    key: ObjectKey,
    method: &Method,
) -> Result<Response, ApiError> {
    if method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let vm = Kind::VM.namespaced(&server.client, &key.namespace).get(&key.name).await?;
    expand(server, &json!(vm)).await
}

/// PUT of any VM.
pub(super) async fn of_given(
    server: &VirtApi,
    namespace: String,
    request: Request,
) -> Result<Response, ApiError> {
    if request.method() != Method::PUT {
        return Err(ApiError::method_not_allowed());
    }
    let value = body::object(request).await?;
    let value = value.ok_or_else(|| ApiError::bad_request("Request with no body"))?;
    expand(server, &in_namespace(value, namespace)?).await
}

/// The VM of a request, in the namespace of the path.
fn in_namespace(mut vm: Value, namespace: String) -> Result<Value, ApiError> {
    if vm.get("kind").and_then(Value::as_str) != Some(VM_KIND) {
        return Err(ApiError::bad_request("the body is no VirtualMachine"));
    }
    let has = vm.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
    if !has.is_empty() && has != namespace {
        let message = format!("VM namespace must be {namespace}, as in the path, and not {has}");
        return Err(ApiError::bad_request(message));
    }
    if !vm["metadata"].is_object() {
        vm["metadata"] = json!({});
    }
    vm["metadata"]["namespace"] = json!(namespace);
    Ok(vm)
}

async fn expand(server: &VirtApi, vm: &Value) -> Result<Response, ApiError> {
    let expanded = reads::read_for(&server.client, |reads| expanded(reads, vm.clone())).await?;
    match expanded? {
        Ok(vm) => Ok(json_response(StatusCode::OK, &vm)),
        Err(problems) => {
            let name = vm.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            Err(ApiError::invalid((Kind::VM.group, VM_KIND), name, &problems))
        }
    }
}

fn expanded(reads: &reads::Reads, mut value: Value) -> Result<Result<Value, Vec<Problem>>, ApiError> {
    let problems =
        instancetype::infer_names(&mut value, None, |namespace, claim| reads.labels(namespace, claim));
    if !problems.is_empty() {
        return Ok(Err(problems));
    }
    let vm: VirtualMachine = serde_json::from_value(value.clone())
        .map_err(|error| ApiError::bad_request(format!("the VirtualMachine cannot be read: {error}")))?;
    Ok(instancetype::expand(reads, &vm).map(|template| {
        if let Some(template) = template {
            value["spec"]["template"] = json!(template);
            if let Some(spec) = value["spec"].as_object_mut() {
                spec.remove("instancetype");
                spec.remove("preference");
            }
        }
        value
    }))
}

#[cfg(test)]
mod tests {
    use vireo_api::v1::API_VERSION;

    use super::*;

    #[test]
    fn a_vm_is_of_the_namespace_of_the_path() {
        let of = |metadata: Value| {
            let vm = json!({"apiVersion": API_VERSION, "kind": VM_KIND, "metadata": metadata});
            in_namespace(vm, "a".to_owned())
        };
        for metadata in [json!({}), Value::Null, json!({"namespace": "a"})] {
            assert_eq!(of(metadata).unwrap()["metadata"]["namespace"], "a");
        }
        assert!(of(json!({"namespace": "b"})).is_err());
        assert!(in_namespace(json!({"kind": "Pod"}), "a".to_owned()).is_err());
    }
}
