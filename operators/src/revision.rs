//! ControllerRevisions that VirtualMachines own.

use serde_json::{Value, json};
use vireo_api::v1::{API_VERSION, ObjectMeta, OwnerReference, VM_KIND};
use vireo_client::Kind;

/// The reference of an object that a VM controls.
pub(crate) fn owner_reference(vm: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: VM_KIND.to_owned(),
        name: vm.name.clone(),
        uid: vm.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
        ..OwnerReference::default()
    }
}

/// A ControllerRevision that a VM owns. `revision` is its number.
pub(crate) fn controller_revision(
    vm: &ObjectMeta,
    name: &str,
    labels: &Value,
    data: &Value,
    revision: i64,
) -> Value {
    let Kind { kind, .. } = Kind::CONTROLLER_REVISION;
    json!({
        "apiVersion": Kind::CONTROLLER_REVISION.api_version(), "kind": kind,
        "metadata": {
            "name": name, "namespace": vm.namespace, "labels": labels,
            "ownerReferences": [owner_reference(vm)],
        },
        "data": data, "revision": revision,
    })
}
