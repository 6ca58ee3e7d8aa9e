//! `VirtualMachineInstance`: its launcher Pod, and the hand-over to the node agent of the node that the Pod is bound to.

pub mod controller;
mod decide;
mod pod;
mod resources;
mod template;

pub use decide::{Decision, Observed, Step, decide};
pub use pod::LauncherPod;
pub use template::{Launcher, StartedBy, launcher_pod};

/// The label of an instance that names the node to which it is handed over; KubeVirt's.
pub const NODE_LABEL: &str = "kubevirt.io/nodeName";
/// The finalizer that is held until nothing is left of an instance; KubeVirt's.
pub const FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";
/// The label of KubeVirt's Pods with the component that they are of.
pub const COMPONENT_LABEL: &str = "kubevirt.io";
/// The component of launcher Pods.
pub const LAUNCHER: &str = "virt-launcher";
/// The label of a launcher Pod with the UID of its instance; KubeVirt's.
pub const CREATED_BY_LABEL: &str = "kubevirt.io/created-by";
/// The annotation of a launcher Pod with the name of its instance; KubeVirt's.
pub const DOMAIN_ANNOTATION: &str = "kubevirt.io/domain";
/// The container of a launcher Pod in which the launcher runs; KubeVirt's.
pub const COMPUTE: &str = "compute";
