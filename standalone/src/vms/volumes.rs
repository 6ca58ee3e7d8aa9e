//! Volumes of stored machines and instances.

use serde_json::{Value, json};
use vireo_api::v1::{VirtualMachineInstanceSpec, VolumeRequest};
use vireo_apiserver::meta;
use vireo_apiserver::store::{DiskError, Object, Store};
use vireo_operators::vm::volumes::apply;

use crate::place;

/// What of a spec a volume is in.
const PARTS: [&str; 2] = ["/volumes", "/domain/devices/disks"];

/// Makes of an object, whose spec is at `pointer`, what a request asks for; the rest of it stays as it was written.
pub fn plug(object: &mut Value, pointer: &str, request: &VolumeRequest) {
    let Some(spec) = object.pointer_mut(pointer) else { return };
    // What is stored was read when it was admitted.
    let Ok(before) = serde_json::from_value::<VirtualMachineInstanceSpec>(spec.clone()) else { return };
    let mut after = before.clone();
    apply(request, &mut after);
    if after == before {
        return;
    }
    let after = json!(after);
    for part in PARTS {
        let (room, name) = part.rsplit_once('/').unwrap_or_default();
        let list = after.pointer(part).cloned().unwrap_or_else(|| json!([]));
        if let Some(Value::Object(fields)) = spec.pointer_mut(room) {
            fields.insert(name.to_owned(), list);
        }
    }
}

/// Writes it. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn write(
    store: &Store,
    object: &Object,
    pointer: &str,
    request: &VolumeRequest,
) -> Result<(), DiskError> {
    place::change(store, object, |value| {
        let before = value.clone();
        plug(value, pointer, request);
        meta::count_generation(value, &before);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_and_disks_change() {
        let add: VolumeRequest = serde_json::from_value(json!({"addVolumeOptions": {
            "name": "data", "disk": {"name": "data", "disk": {"bus": "scsi"}},
            "volumeSource": {"persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}},
        }}))
        .unwrap();
        let remove: VolumeRequest =
            serde_json::from_value(json!({"removeVolumeOptions": {"name": "data"}})).unwrap();
        let before = json!({"spec": {
            "domain": {"devices": {"rng": {}}, "memory": {"guest": "064Mi"}}, "later": 1,
        }});
        let mut value = before.clone();
        plug(&mut value, "/spec", &add);
        assert_eq!(value["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "c");
        assert_eq!(value["spec"]["domain"]["devices"]["disks"][0]["name"], "data");
        assert_eq!(
            (&value["spec"]["later"], &value["spec"]["domain"]["memory"]["guest"]),
            (&json!(1), &json!("064Mi"))
        );
        let once = value.clone();
        plug(&mut value, "/spec", &add);
        assert_eq!(value, once, "again");
        plug(&mut value, "/spec", &remove);
        assert_eq!(
            (&value["spec"]["volumes"], &value["spec"]["domain"]["devices"]["disks"]),
            (&json!([]), &json!([]))
        );
        plug(&mut value, "/nowhere", &add);
    }
}
