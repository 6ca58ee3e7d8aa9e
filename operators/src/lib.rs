//! The controllers of KubeVirt's objects. What a controller decides is a pure function of what it observes; what it does
//! goes through a `kube::Client`.

mod conditions;
mod controllers;
mod error;
pub mod instancetype;
pub mod placement;
pub mod pool;
pub mod replicaset;
mod revision;
pub mod selector;
pub mod vm;

pub use controllers::Controllers;
pub use error::ReconcileError;
