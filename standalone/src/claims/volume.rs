//! The PersistentVolume of a claim: what kubectl shows of the claim's disk.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use vireo_apiserver::meta;
use vireo_apiserver::store::{DiskError, Key, Object, Store};

use crate::place;
use crate::resource::{PROVISIONER, VOLUME_PROTECTION};

/// Which volume a claim has.
pub(super) fn name(claim: &Object) -> String {
    format!("pvc-{}", meta::text(&claim.value, "uid"))
}

/// What is a volume for a claim, whose files are in a directory of a node.
pub(super) fn spec(claim: &Object, directory: &Path, node: Option<&str>) -> Value {
    let wanted = &claim.value["spec"];
    let mut spec = json!({
        "capacity": {"storage": wanted["resources"]["requests"]["storage"]},
        "accessModes": wanted["accessModes"], "volumeMode": wanted["volumeMode"],
        "storageClassName": wanted["storageClassName"], "persistentVolumeReclaimPolicy": "Delete",
        "local": {"path": directory.to_string_lossy()},
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.key.namespace,
            "name": claim.key.name, "uid": meta::text(&claim.value, "uid"),
        },
    });
    if let Some(node) = node {
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}});
    }
    spec
}

/// Makes the volume of a claim, or makes it what it is to be. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub(super) fn keep(store: &Store, claim: &Object, spec: Value) -> Result<(), DiskError> {
    let name = name(claim);
    let status = json!({"phase": "Bound"});
    let there = store.get(&place::volumes().key("", &name));
    let is = |field: &str, wanted: &Value| {
        there.as_ref().is_some_and(|volume| volume.value.get(field) == Some(wanted))
    };
    if is("spec", &spec) && is("status", &status) {
        return Ok(());
    }
    place::make(store, place::volumes(), &name, |volume| {
        volume["spec"] = spec;
        volume["status"] = status;
        let metadata = meta::of(volume);
        metadata.entry("finalizers").or_insert_with(|| json!([VOLUME_PROTECTION]));
        metadata
            .entry("annotations")
            .or_insert_with(|| json!({"pv.kubernetes.io/provisioned-by": PROVISIONER}));
    })
}

/// Says that what was on the volume of a claim is gone. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub(super) fn fail(store: &Store, claim: &Object, why: &str) -> Result<(), DiskError> {
    let Some(volume) = store.get(&place::volumes().key("", &name(claim))) else { return Ok(()) };
    place::change(store, &volume, |value| {
        value["status"] = json!({"phase": "Failed", "reason": "ClaimLost", "message": why});
        true
    })
}

/// Removes a volume. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub(super) fn remove(store: &Store, volume: &Object) -> Result<(), DiskError> {
    place::change(store, volume, |value| {
        meta::remove_finalizer(value, VOLUME_PROTECTION);
        place::mark_for_deletion(value) == place::Leaving::Held
    })
}

/// The volumes of earlier claims that had the name of this one.
pub(super) fn of_others(store: &Store, claim: &Object) -> impl Iterator<Item = Arc<Object>> {
    let key = claim.key.clone();
    let own = name(claim);
    let volumes = store.list(&place::volumes().name(), None).objects.into_iter();
    volumes.filter(move |volume| {
        volume.key.name != own && self::claim(&volume.value).is_some_and(|other| other == key)
    })
}

/// Whether a claim has its disk.
pub(super) fn is_bound(claim: &Object) -> bool {
    claim.value.pointer("/status/phase").is_some_and(|phase| phase == "Bound" || phase == "Lost")
}

/// The UID of the claim that a volume is for.
pub(super) fn claim_uid(volume: &Value) -> Option<&str> {
    volume.pointer("/spec/claimRef/uid").and_then(Value::as_str)
}

/// The claim that a volume is for.
pub(super) fn claim(volume: &Value) -> Option<Key> {
    let text = |field: &str| volume.pointer(&format!("/spec/claimRef/{field}")).and_then(Value::as_str);
    Some(place::claims().key(text("namespace")?, text("name")?))
}
