//! The PersistentVolume of a claim: what kubectl shows of the claim's disk.

use std::path::Path;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use vireo_client::ObjectKey;

use super::{PROVISIONER, VOLUME_PROTECTION};

/// The name of a claim's volume.
pub(super) fn name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}

/// The spec of a claim's volume, whose file is in a directory of a node.
pub(super) fn spec(claim: &PersistentVolumeClaim, directory: &Path, node: &str) -> Value {
    let wanted = serde_json::to_value(&claim.spec).unwrap_or_default();
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    json!({
        "capacity": {"storage": wanted["resources"]["requests"]["storage"]},
        "accessModes": wanted["accessModes"], "volumeMode": wanted["volumeMode"],
        "storageClassName": wanted["storageClassName"], "persistentVolumeReclaimPolicy": "Delete",
        "local": {"path": directory.to_string_lossy()},
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
            "name": claim.name_any(), "uid": claim.uid(),
        },
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    })
}

/// A new volume.
pub(super) fn new(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name, "finalizers": [VOLUME_PROTECTION],
            "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
        },
        "spec": spec,
    })
}

/// The claim that a volume is for, and its UID.
pub(super) fn claim(volume: &PersistentVolume) -> Option<(ObjectKey, &str)> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let key = ObjectKey::new(claim.namespace.as_deref()?, claim.name.as_deref()?);
    Some((key, claim.uid.as_deref()?))
}
