//! A manifest that is right, and changes to it.

use serde_json::{Value, json};
use vireo_api::decode::{self, Decoded};
use vireo_api::spec::{Report, Vm};
use vireo_api::v1::VirtualMachineInstance;

/// A VMI with two disks and a NIC.
pub(crate) fn good() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "5d307ca9-b3ef-428c-8861-06e72d69f223"},
        "spec": {
            "domain": {
                "memory": {"guest": "256Mi"},
                "devices": {
                    "autoattachGraphicsDevice": false,
                    "disks": [
                        {"name": "root", "disk": {"bus": "virtio"}},
                        {"name": "seed", "disk": {"bus": "virtio"}}
                    ],
                    "interfaces": [{"name": "default", "masquerade": {}}]
                }
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "root", "containerDisk": {"image": "oci:/images/linux:v1"}},
                {"name": "seed", "cloudInitNoCloud": {"userData": "#cloud-config\n"}}
            ]
        }
    })
}

/// Lays `change` over `value`: objects are merged, an element `"+"` at the head of a list adds the rest to it, null
/// removes, anything else replaces.
pub(crate) fn merge(value: &mut Value, change: Value) {
    match (value, change) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (name, change) in changes {
                if change.is_null() {
                    fields.remove(&name);
                } else {
                    merge(fields.entry(name).or_insert(Value::Null), change);
                }
            }
        }
        (Value::Array(elements), Value::Array(more)) if more.first() == Some(&json!("+")) => {
            elements.extend(more.into_iter().skip(1));
        }
        (value, change) => *value = change,
    }
}

/// The good manifest, changed.
pub(crate) fn changed(change: Value) -> Decoded<VirtualMachineInstance> {
    let mut value = good();
    merge(&mut value, change);
    decode::object(value)
}

/// What the good manifest means, changed below `spec`.
pub(crate) fn with_spec(change: Value) -> Result<Vm, Report> {
    changed(json!({"spec": change})).check_request()
}

/// The same, below `spec.domain`.
pub(crate) fn with_domain(change: Value) -> Result<Vm, Report> {
    with_spec(json!({"domain": change}))
}

/// The same, below `spec.domain.devices`.
pub(crate) fn with_devices(change: Value) -> Result<Vm, Report> {
    with_domain(json!({"devices": change}))
}
