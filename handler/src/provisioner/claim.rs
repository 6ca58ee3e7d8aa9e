//! Accessors of a PersistentVolumeClaim.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use vireo_api::spec::Bytes;
use vireo_api::v1::Quantity;

use super::{CLAIM_PROTECTION, CLASS};

/// The storage class of a claim.
pub(super) fn class(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or(CLASS)
}

/// The storage that a claim requests, as it is written.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Option<&str> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(|quantity| quantity.0.as_str())
}

/// The same, in bytes.
pub(super) fn requested_bytes(claim: &PersistentVolumeClaim) -> Option<u64> {
    let quantity: Quantity = serde_json::from_value(requested(claim)?.into()).ok()?;
    Bytes::try_from(&quantity).ok().map(Bytes::get)
}

/// The capacity that its status reports.
pub(super) fn capacity(claim: &PersistentVolumeClaim) -> Option<&str> {
    let capacity = claim.status.as_ref()?.capacity.as_ref()?;
    capacity.get("storage").map(|quantity| quantity.0.as_str())
}

pub(super) fn phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether a claim has been bound to a disk.
pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    ["Bound", "Lost"].contains(&phase(claim))
}

/// Whether it is held until nothing uses it.
pub(super) fn is_held(claim: &PersistentVolumeClaim) -> bool {
    claim.finalizers().iter().any(|one| one == CLAIM_PROTECTION)
}

pub(super) fn annotations(claim: &PersistentVolumeClaim) -> &BTreeMap<String, String> {
    claim.annotations()
}
