//! `memorydump` and `removememorydump` of a VM, whose controller carries them out.

use axum::extract::Request;
use axum::response::Response;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};
use vireo_api::spec::{Bytes, memory_dump_size};
use vireo_api::v1::VirtualMachine;
use vireo_client::{Kind, ObjectKey, write};

use super::{ApiError, VirtApi, accepted, body, read, refused, requires_put, retry_on_conflict};
use crate::vm::memory_dump;

/// Records what is asked for in the VM.
pub(super) async fn serve(
    server: &VirtApi,
    key: ObjectKey,
    removes: bool,
    request: Request,
) -> Result<Response, ApiError> {
    requires_put(&request)?;
    let options = body::object(request).await?.unwrap_or_default();
    let claim = match options.get("claimName") {
        None | Some(Value::Null) => None,
        Some(Value::String(claim)) => Some(claim.as_str()).filter(|claim| !claim.is_empty()),
        Some(other) => {
            let message = format!("claimName: Invalid value: {other}: must be a string");
            return Err(ApiError::bad_request(message));
        }
    };
    retry_on_conflict(|| record(server, &key, claim, removes)).await.map(|()| accepted())
}

async fn record(
    server: &VirtApi,
    key: &ObjectKey,
    claim: Option<&str>,
    removes: bool,
) -> Result<(), ApiError> {
    let vms = Kind::VM.namespaced(&server.client, &key.namespace);
    let before: VirtualMachine = read(vms.get(&key.name).await?)?;
    let mut vm = before.clone();
    let refused = |rejection| refused(Kind::VM, &key.name, rejection);
    if removes {
        memory_dump::remove(&mut vm).map_err(refused)?;
    } else {
        let claim = claim.map(str::to_owned).or_else(|| memory_dump::claim(&before));
        let claim = claim.ok_or_else(|| ApiError::bad_request("claimName: Required value"))?;
        memory_dump::request(&mut vm, &claim).map_err(refused)?;
        fits(server, &before, &claim).await?;
    }
    write::patch_status(&vms, (&vm.metadata).into(), &json!(before.status), &json!(vm.status)).await?;
    Ok(())
}

/// Whether the VM runs, and the claim is one for its memory.
async fn fits(server: &VirtApi, vm: &VirtualMachine, claim: &str) -> Result<(), ApiError> {
    let vmi = server.vmi_of(vm).await?.filter(|vmi| vmi.status.phase == "Running");
    let conflict = |message: &str| Err(ApiError::conflict(Kind::VM, &vm.metadata.name, message));
    let Some(vmi) = vmi else { return conflict("VMI is not running") };
    if memory_dump::is_left(&vmi, claim) {
        return conflict("the last memory dump is still being unmounted: try again");
    }
    let claims = Kind::CLAIM.namespaced(&server.client, &vm.metadata.namespace);
    let Some(found) = claims.get_opt(claim).await? else {
        return Err(ApiError::not_found(format!("persistentvolumeclaims {claim:?} not found")));
    };
    let found: PersistentVolumeClaim = read(found)?;
    match unfit(&found, memory_dump_size(&vmi.spec).unwrap_or(Bytes::new(0))) {
        Some(message) => conflict(&message),
        None => Ok(()),
    }
}

/// Why a memory dump that needs so much is not written to a claim, if that is so.
fn unfit(claim: &PersistentVolumeClaim, needed: Bytes) -> Option<String> {
    let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    if spec.is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block")) {
        return Some(format!("pvc [{name}] has the volume mode Block: must be Filesystem"));
    }
    let modes = spec.and_then(|spec| spec.access_modes.as_ref());
    if modes.is_some_and(|modes| modes.iter().all(|mode| mode == "ReadOnlyMany")) {
        return Some(format!("pvc [{name}] is read-only"));
    }
    let bound = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
    let requested = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let size = bound.or(requested).and_then(|size| size.0.parse::<Bytes>().ok()).unwrap_or(Bytes::new(0));
    (size < needed)
        .then(|| format!("pvc size [{size}] should be bigger than the memory and its overhead [{needed}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_large_enough_and_a_file_system() {
        let claim = |size: &str, more: Value| -> PersistentVolumeClaim {
            let mut spec =
                json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}});
            json_patch::merge(&mut spec, &more);
            serde_json::from_value(json!({"metadata": {"name": "dumps"}, "spec": spec})).unwrap()
        };
        let needed = Bytes::mebibytes(164);
        assert_eq!(unfit(&claim("164Mi", json!({})), needed), None);
        for (size, more, expected) in [
            (
                "163Mi",
                json!({}),
                "pvc size [163Mi] should be bigger than the memory and its overhead [164Mi]",
            ),
            ("1Gi", json!({"volumeMode": "Block"}), "must be Filesystem"),
            ("1Gi", json!({"accessModes": ["ReadOnlyMany"]}), "is read-only"),
        ] {
            let why = unfit(&claim(size, more), needed).unwrap();
            assert!(why.contains(expected), "{why}");
        }
    }
}
