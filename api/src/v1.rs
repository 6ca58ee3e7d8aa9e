//! `kubevirt.io/v1` as it is served: every field optional, text left as text, unknown fields kept.
//!
//! These types do not validate manifests; [`crate::spec`] does. Enumerations stay
//! strings, so that a value that is newer than this release survives a round trip. Output is input, in
//! Kubernetes' own normal form: `null`, empty lists and empty maps are left out, and a quantity given as a number
//! becomes the same quantity as a string.

mod condition;
mod console;
mod cpu;
mod credential;
mod device;
mod devices;
mod disk;
mod domain;
mod features;
mod firmware;
mod hotplug;
mod instancetype;
mod interface;
mod kubevirt;
mod memory;
mod meta;
mod migration;
mod network;
mod pod;
mod pool;
mod preference;
mod probe;
mod quantity;
mod replicaset;
mod scheduling;
mod security;
mod selector;
pub(crate) mod shape;
mod status;
mod vm;
mod vmi;
mod volume;

pub use condition::*;
pub use console::*;
pub use cpu::*;
pub use credential::*;
pub use device::*;
pub use devices::*;
pub use disk::*;
pub use domain::*;
pub use features::*;
pub use firmware::*;
pub use hotplug::*;
pub use instancetype::*;
pub use interface::*;
pub use kubevirt::*;
pub use memory::*;
pub use meta::*;
pub use migration::*;
pub use network::*;
pub use pod::*;
pub use pool::*;
pub use preference::*;
pub use probe::*;
pub use quantity::{IntOrString, Quantity};
pub use replicaset::*;
pub use scheduling::*;
pub use security::*;
pub use selector::*;
pub use shape::{Shape, UnknownField};
pub use status::*;
pub use vm::*;
pub use vmi::*;
pub use volume::*;

/// The group and version of everything here.
pub const API_VERSION: &str = "kubevirt.io/v1";
/// The group and version of instance types and preferences.
pub const INSTANCETYPE_VERSION: &str = "instancetype.kubevirt.io/v1beta1";
/// The group and version of pools.
pub const POOL_VERSION: &str = "pool.kubevirt.io/v1beta1";
/// The kind of [`VirtualMachineInstance`].
pub const VMI_KIND: &str = "VirtualMachineInstance";
/// The kind of [`KubeVirt`].
pub const KUBEVIRT_KIND: &str = "KubeVirt";
/// The kind of [`VirtualMachine`].
pub const VM_KIND: &str = "VirtualMachine";
/// The kind of [`VirtualMachineInstanceReplicaSet`].
pub const REPLICA_SET_KIND: &str = "VirtualMachineInstanceReplicaSet";
/// The kind of [`VirtualMachinePool`].
pub const POOL_KIND: &str = "VirtualMachinePool";
