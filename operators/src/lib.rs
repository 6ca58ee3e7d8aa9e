//! The controllers of KubeVirt's objects. What a controller decides is a pure function of what it observes. The controller
//! of replica sets ([`replicaset::controller`]) works with a `kube::Client`; of the others there are the decisions alone.

mod conditions;
mod events;
mod informer;
pub mod instancetype;
pub mod placement;
pub mod pool;
pub mod replicaset;
pub mod selector;
pub mod vm;
