//! VMIs whose VM is gone: carries out what [`vireo_operators::vm::orphan`] decides.

use std::sync::Arc;

use serde_json::{Value, json};
use vireo_api::v1::{ObjectMeta, VirtualMachine};
use vireo_apiserver::meta;
use vireo_apiserver::store::{DiskError, Object, Store};
use vireo_operators::vm::{FINALIZER, orphan};

use crate::place;

fn metadata(object: &Arc<Object>) -> Option<ObjectMeta> {
    serde_json::from_value(object.value.get("metadata")?.clone()).ok()
}

/// Lets go of a VMI that is being deleted and has no VM any more. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub(super) fn release(store: &Store, vmi: &Arc<Object>) -> Result<(), DiskError> {
    let Some(described) = metadata(vmi) else { return Ok(()) };
    let vm = store.get(&place::vms().key(&vmi.key.namespace, &vmi.key.name));
    if !orphan::is_abandoned(&described, vm.as_ref().and_then(metadata).as_ref()) {
        return Ok(());
    }
    place::change(store, vmi, |value| {
        meta::remove_finalizer(value, FINALIZER);
        !meta::is_leaving(value) || place::is_held(value)
    })
}

/// Makes a VM the owner of the VMI that an earlier VM of its name left behind; whether there was one. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub(super) fn adopt(store: &Store, vm: &VirtualMachine) -> Result<bool, DiskError> {
    let key = place::vmis().key(&vm.metadata.namespace, &vm.metadata.name);
    let Some(vmi) = store.get(&key) else { return Ok(false) };
    let found = metadata(&vmi).and_then(|described| orphan::adopt(&vm.metadata, &described));
    let Some(owner) = found else { return Ok(false) };
    place::change(store, &vmi, |value| {
        let references = meta::of(value).entry("ownerReferences").or_insert_with(|| json!([]));
        if let Value::Array(references) = references
            && references.iter().all(|one| one.get("controller") != Some(&json!(true)))
        {
            references.push(json!(owner));
        }
        true
    })?;
    Ok(true)
}
