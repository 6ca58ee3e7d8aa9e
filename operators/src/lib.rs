//! The controllers of KubeVirt's objects. What a controller decides is a pure function of what it observes; what it does
//! goes through a `kube::Client`. [`admission`] completes and validates the objects, [`virt_api`] is
//! KubeVirt's API server.

pub mod admission;
pub mod attachments;
pub mod certificates;
pub mod claim;
mod conditions;
pub mod config;
mod controllers;
pub mod data_volume;
mod defaults;
mod deletion;
mod error;
pub mod instancetype;
pub mod leader;
pub mod metrics;
pub mod monitoring;
pub mod node;
pub mod placement;
pub mod pool;
mod problem;
pub mod programs;
pub mod replicaset;
mod revision;
pub mod selector;
pub mod virt_api;
pub mod vm;
pub mod vmi;
pub mod webhooks;
pub mod workload_update;

pub use controllers::Controllers;
pub use error::ReconcileError;
pub use problem::Problem;
