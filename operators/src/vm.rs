//! `VirtualMachine`: which instance it has, by its run strategy and by what users ask for.

mod backoff;
mod conditions;
pub mod controller;
mod decide;
mod declared;
mod instance;
mod life;
pub mod memory_dump;
mod nics;
pub mod orphan;
mod printable;
mod provision;
mod refused;
mod requests;
mod strategy;
mod volume_patch;
pub mod volumes;

pub use decide::{Action, Decision, Observed, decide};
pub use declared::{LiveChange, mark_ephemeral};
pub use instance::{Revision, Start};
pub use provision::Provision;
pub use refused::{Refusable, Refused};
pub use requests::{
    Change, Rejection, RestartOptions, StartOptions, StopOptions, Writes, restart, start, stop,
};
pub use strategy::{RunStrategy, StrategyError};
pub use vireo_api::names::{EPHEMERAL_ANNOTATION, GENERATION_ANNOTATION};
pub use volume_patch::{SpecOwner, plug, set_volumes_and_nics, with_volumes};

/// Keeps a `VirtualMachine` until its instance is gone, and an instance until its end was counted.
pub const FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";

#[cfg(test)]
mod tests;
