//! `addvolume` and `removevolume`: of a VM, whose controller does it, and of a VMI alone.

use axum::extract::Request;
use axum::response::Response;
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use vireo_api::v1::{
    AddVolumeOptions, ObjectMeta, RemoveVolumeOptions, Shape, VirtualMachine, VirtualMachineInstance,
    VolumeRequest,
};
use vireo_client::{Kind, write};

use super::endpoint::VolumeEndpoint;
use super::{ApiError, VirtApi, accepted, body, read, refused, requires_put, retry_on_conflict};
use crate::vm::{self, SpecOwner};

/// Whether what is written is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteMode {
    /// The API server only checks it.
    DryRun,
    Stored,
}

/// Records which volume is to be plugged or unplugged.
pub(super) async fn serve(
    server: &VirtApi,
    endpoint: VolumeEndpoint,
    request: Request,
) -> Result<Response, ApiError> {
    requires_put(&request)?;
    let options = body::object(request).await?;
    let options =
        options.ok_or_else(|| ApiError::bad_request("Request with no body, a new name is expected"))?;
    let (request, stages) = volume_request(&endpoint, options)?;
    let mode = match body::dry_run(stages.iter().map(String::as_str))? {
        true => WriteMode::DryRun,
        false => WriteMode::Stored,
    };
    retry_on_conflict(|| record(server, &endpoint, &request, mode)).await.map(|()| accepted())
}

/// What is asked for, and the stages of a dry run.
fn volume_request(
    endpoint: &VolumeEndpoint,
    options: Value,
) -> Result<(VolumeRequest, Vec<String>), ApiError> {
    let refused = |rejection| refused(endpoint.kind, &endpoint.key.name, rejection);
    let mut request = VolumeRequest::default();
    let stages;
    if endpoint.adds {
        let mut options = vm::volumes::complete(decode::<AddVolumeOptions>(options)?).map_err(refused)?;
        stages = std::mem::take(&mut options.dry_run);
        request.add_volume_options = Some(options);
    } else {
        let mut options = vm::volumes::checked(decode::<RemoveVolumeOptions>(options)?).map_err(refused)?;
        stages = std::mem::take(&mut options.dry_run);
        request.remove_volume_options = Some(options);
    }
    Ok((request, stages))
}

fn decode<T: Shape + serde::de::DeserializeOwned>(options: Value) -> Result<T, ApiError> {
    let options: T = serde_json::from_value(options)
        .map_err(|error| ApiError::bad_request(format!("the options cannot be read: {error}")))?;
    let mut unknown = Vec::new();
    options.unknown_fields("", &mut unknown);
    // What `kubectl` and others add to any object is no field of the options.
    let mut unknown = unknown.iter().map(|field| field.field.trim_start_matches('.'));
    match unknown.find(|field| !["apiVersion", "kind"].contains(field)) {
        Some(field) => Err(ApiError::bad_request(format!("unknown field {field:?}"))),
        None => Ok(options),
    }
}

async fn record(
    server: &VirtApi,
    VolumeEndpoint { kind, key, .. }: &VolumeEndpoint,
    request: &VolumeRequest,
    mode: WriteMode,
) -> Result<(), ApiError> {
    let api = kind.namespaced(&server.client, &key.namespace);
    let object = api.get(&key.name).await?;
    let refused = |rejection| refused(*kind, &key.name, rejection);
    if *kind == Kind::VMI {
        let vmi: VirtualMachineInstance = read(object.clone())?;
        vm::volumes::plugs(&vmi, request)
            .and_then(|()| vm::volumes::fits(request, &vmi.spec))
            .map_err(refused)?;
        check_not_in_template(server, &vmi, request).await?;
        return patch(&api, &vmi.metadata, &object, SpecOwner::Vmi, request, mode).await;
    }
    let before: VirtualMachine = read(object.clone())?;
    let mut vm = before.clone();
    let vmi = server.vmi_of(&vm).await?;
    vm::volumes::request(&mut vm, vmi.as_ref(), request.clone()).map_err(refused)?;
    // What the controller does next is accepted.
    patch(&api, &vm.metadata, &object, SpecOwner::Vm, request, WriteMode::DryRun).await?;
    if mode == WriteMode::Stored {
        let (before, after) = (json!(before.status), json!(vm.status));
        write::patch_status(&api, (&vm.metadata).into(), &before, &after).await?;
    }
    Ok(())
}

/// Checks that a VMI alone can lose a volume: what is in the template of its VM would be plugged in again.
async fn check_not_in_template(
    server: &VirtApi,
    vmi: &VirtualMachineInstance,
    request: &VolumeRequest,
) -> Result<(), ApiError> {
    let Some(remove) = &request.remove_volume_options else { return Ok(()) };
    let vms = Kind::VM.namespaced(&server.client, &vmi.metadata.namespace);
    let Some(found) = vms.get_opt(&vmi.metadata.name).await? else { return Ok(()) };
    let owner: VirtualMachine = read(found)?;
    let template = owner.spec.template.as_ref().filter(|_| vm::orphan::owns(&owner.metadata, &vmi.metadata));
    let mut volumes = template.into_iter().flat_map(|template| &template.spec.volumes);
    if volumes.all(|volume| volume.name != remove.name) {
        return Ok(());
    }
    let message = format!(
        "Unable to remove volume [{}] from the VMI alone because it is in the template of its VM: remove it there \
         (virtctl removevolume)",
        remove.name
    );
    Err(refused(Kind::VMI, &vmi.metadata.name, vm::Rejection::Conflict(message)))
}

/// Patches an object to what a request makes of the VMI's spec in it.
async fn patch(
    api: &Api<DynamicObject>,
    version: &ObjectMeta,
    object: &DynamicObject,
    owner: SpecOwner,
    request: &VolumeRequest,
    mode: WriteMode,
) -> Result<(), ApiError> {
    let before = json!(object);
    let mut after = before.clone();
    vm::plug(&mut after, owner, request);
    if owner == SpecOwner::Vmi && after != before {
        vm::mark_ephemeral(&mut after, request);
    }
    if let Some(patch) = write::merge_diff(&before, &after) {
        match mode {
            WriteMode::DryRun => write::dry_run(api, version.into(), patch).await?,
            WriteMode::Stored => write::patch(api, version.into(), patch).await?,
        };
    }
    Ok(())
}
