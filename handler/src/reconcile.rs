//! Reconciles the VMIs of the node. Each VMI has its own task, so that a slow action delays no other VMI.
//!
//! Each task repeats: observe the actual state, [`decide`] the next action, run it, write the [`status`], and wait for
//! a change.

mod act;
mod backoff;
mod credentials;
mod deadline;
pub mod decide;
mod desired;
mod downward_metrics;
mod end;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod hotplug;
mod limits;
mod memory_dump;
mod network;
mod nics;
mod observe;
mod prober;
mod projected;
mod publish;
mod reattach;
mod reconciler;
mod record;
pub mod status;
pub mod supervise;
mod volumes;

pub(crate) use deadline::{EXIT_TIMEOUT, time_to_end};
pub(crate) use record::grace;
