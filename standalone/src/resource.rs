//! The resources of KubeVirt and of storage, which this server has beside Kubernetes' own: what completes and validates
//! their objects, and what their fields are.

pub(crate) mod claim;
pub mod crd;
mod instancetype;
pub mod kubevirt;
mod machine;
mod pool;
mod replicaset;
pub mod reserved;
pub mod schema;
pub(crate) mod vmi;
pub(crate) mod volume;

pub(crate) use machine::{has_same_spec, of_machine};
pub use vmi::VMI_FINALIZER;
pub use volume::describe_class;
