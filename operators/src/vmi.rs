//! `VirtualMachineInstance`: its launcher Pod, and the hand-over to the node agent of the node that the Pod is bound to.

pub(crate) mod claims;
mod console_log;
mod consumer;
pub mod controller;
mod decide;
pub mod image_volumes;
pub(crate) mod images;
mod networks;
mod nodes;
mod pod;
mod pod_events;
mod projected;
mod quotas;
mod resources;
mod state;
mod template;
pub(crate) mod volumes;
mod wait;

pub use claims::{Claim, Claims};
pub use decide::{Decision, Observed, Step, decide};
pub use images::ImageDelivery;
pub use pod::LauncherPod;
pub use pod_events::Warning;
pub use quotas::NamespaceLimits;
pub use template::{Launcher, PodInputs, StartedBy, launcher_pod};
pub use wait::Wait;
pub(crate) use wait::of_claim as wait_of_claim;

/// Whether a VMI or a Pod of this phase has ended.
pub(crate) fn is_final(phase: &str) -> bool {
    ["Succeeded", "Failed"].contains(&phase)
}
