//! The provisioner of this node's storage: each PersistentVolumeClaim of its class gets a file, which is removed when
//! the claim is deleted and unused.

mod claim;
mod controller;
mod reclaim;
pub mod upload;
mod usage;
mod volume;

pub use controller::{Provisioner, run};
pub use usage::ClaimUsers;

/// The StorageClass whose claims it provisions.
pub const CLASS: &str = "local";
/// The provisioner's name in the StorageClass.
pub const PROVISIONER: &str = "vireo.io/local";
/// Finalizer of claims, which holds them until nothing uses them; Kubernetes'.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Finalizer of volumes, which holds them as long as their claim is there; Kubernetes'.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
