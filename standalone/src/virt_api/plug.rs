//! `addvolume` and `removevolume`: of a VirtualMachine, whose controller does it, and of an instance alone.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use vireo_api::v1::{
    AddVolumeOptions, RemoveVolumeOptions, Shape, VirtualMachine, VirtualMachineInstance, VolumeRequest,
};
use vireo_apiserver::http::{ApiError, body, dry_run};
use vireo_apiserver::meta;
use vireo_apiserver::resource::{Cause, Resource};
use vireo_apiserver::store::{Change, Object, Space, Store};
use vireo_operators::vm;

use super::{Plug, VirtApi, vmi_of};
use crate::instancetypes;
use crate::resource::kubevirt;

/// Writes down what is to be plugged in or out; the node does it.
pub(super) async fn serve(server: &VirtApi, plug: Plug, request: Request) -> Result<Response, ApiError> {
    if request.method() != Method::PUT {
        return Err(ApiError::method_not_allowed());
    }
    let options = body::object(request).await?;
    let options =
        options.ok_or_else(|| ApiError::bad_request("Request with no body, a new name is expected"))?;
    let store = Arc::clone(&server.store);
    let done = tokio::task::spawn_blocking(move || write(&store, &plug, options)).await;
    done.map_err(|error| ApiError::internal(format!("the write broke off: {error}")))??;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

fn row(plug: &Plug) -> &'static Resource {
    if plug.of_machine { &kubevirt::VMS } else { &kubevirt::VMIS }
}

fn write(store: &Store, plug: &Plug, options: Value) -> Result<(), ApiError> {
    let (request, words) = asked(plug, options)?;
    let mut dry = false;
    for word in &words {
        dry |= dry_run(word)?;
    }
    let key = row(plug).key(&plug.namespace, &plug.name);
    let decide = |before: Option<&Arc<Object>>| {
        let before = before.ok_or_else(|| ApiError::not_found(row(plug), &plug.name))?;
        let value = match plug.of_machine {
            true => of_machine(store, plug, before, &request)?,
            false => of_instance(plug, before, &request)?,
        };
        Ok(if dry { Change::Nothing } else { Change::Put(value) })
    };
    store.update(&key, Space::Free, decide, |_| Ok(()))?;
    Ok(())
}

/// What is asked for, and what it says about a dry run.
fn asked(plug: &Plug, options: Value) -> Result<(VolumeRequest, Vec<String>), ApiError> {
    let refused = |refusal| self::refused(plug, refusal);
    let mut request = VolumeRequest::default();
    let words;
    if plug.add {
        let mut options = vm::volumes::complete(read::<AddVolumeOptions>(options)?).map_err(refused)?;
        words = std::mem::take(&mut options.dry_run);
        request.add_volume_options = Some(options);
    } else {
        let mut options = vm::volumes::checked(read::<RemoveVolumeOptions>(options)?).map_err(refused)?;
        words = std::mem::take(&mut options.dry_run);
        request.remove_volume_options = Some(options);
    }
    Ok((request, words))
}

fn read<T: Shape + serde::de::DeserializeOwned>(options: Value) -> Result<T, ApiError> {
    let options: T = serde_json::from_value(options)
        .map_err(|error| ApiError::bad_request(format!("the options cannot be read: {error}")))?;
    let mut strangers = Vec::new();
    options.strangers("", &mut strangers);
    // What `kubectl` and others add to any object.
    let odd =
        strangers.iter().find(|odd| !["apiVersion", "kind"].contains(&odd.field.trim_start_matches('.')));
    match odd {
        Some(odd) => {
            Err(ApiError::bad_request(format!("unknown field {:?}", odd.field.trim_start_matches('.'))))
        }
        None => Ok(options),
    }
}

fn of_machine(
    store: &Store,
    plug: &Plug,
    before: &Arc<Object>,
    request: &VolumeRequest,
) -> Result<Value, ApiError> {
    let mut machine: VirtualMachine = stored(before)?;
    let instance = vmi_of(store, &machine);
    vm::volumes::request(&mut machine, instance.as_ref().map(|(_, one)| one), request.clone())
        .map_err(|refusal| refused(plug, refusal))?;
    let mut after = before.value.clone();
    vm::plug(&mut after, "/spec/template/spec", request);
    judge(plug, &mut after, |value| instancetypes::judge(store, &kubevirt::VMS, value, None))?;
    let mut value = before.value.clone();
    value["status"] = json!(machine.status);
    Ok(value)
}

fn of_instance(plug: &Plug, before: &Arc<Object>, request: &VolumeRequest) -> Result<Value, ApiError> {
    let instance: VirtualMachineInstance = stored(before)?;
    vm::volumes::plugs(&instance)
        .and_then(|()| vm::volumes::fits(request, &instance.spec))
        .map_err(|refusal| refused(plug, refusal))?;
    let mut value = before.value.clone();
    vm::plug(&mut value, "/spec", request);
    judge(plug, &mut value.clone(), |_| Vec::new())?;
    meta::count_generation(&mut value, &before.value);
    Ok(value)
}

fn stored<T: serde::de::DeserializeOwned>(object: &Object) -> Result<T, ApiError> {
    serde_json::from_value(object.value.clone())
        .map_err(|error| ApiError::internal(format!("what is stored cannot be read: {error}")))
}

/// Whether it would be accepted if it were created with the volume.
fn judge(
    plug: &Plug,
    value: &mut Value,
    more: impl FnOnce(&mut Value) -> Vec<Cause>,
) -> Result<(), ApiError> {
    let mut causes = (row(plug).admit)(value, None);
    if causes.is_empty() {
        causes = more(value);
    }
    if causes.is_empty() { Ok(()) } else { Err(ApiError::invalid(row(plug), &plug.name, &causes)) }
}

fn refused(plug: &Plug, refusal: vm::Refusal) -> ApiError {
    match refusal {
        vm::Refusal::BadRequest(message) => ApiError::bad_request(message),
        vm::Refusal::Conflict(message) => ApiError::conflict(row(plug), &plug.name, &message),
    }
}
