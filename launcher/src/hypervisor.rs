//! What runs the VM: one trait, two implementations.

mod child;
mod choose;
mod growth;
mod guest;
pub mod native;
pub mod qemu;
mod stats;
mod target;
mod virtiofs;

pub use choose::{Choice, KvmState, Probe, choose};
pub use guest::{
    Controls, End, Event, Events, Guest, GuestEnd, HotplugAction, HotplugRequest, NicChange, SOFT_REBOOT,
    Starting, VmCommand, VolumeAction, guest,
};
pub use stats::{HypervisorStats, StatsClient, StatsReply, StatsRequests};

use std::sync::Arc;

use crate::console::Port;
use crate::host::HostResources;
use crate::launch::Launch;

/// Starts VMs.
pub trait Hypervisor: Send {
    /// Builds the VM and lets it run. The future may be dropped at any time; nothing of the VM is left
    /// behind then. `port` is the guest's serial port.
    fn start(&self, launch: Arc<Launch>, host: HostResources, port: Port) -> Starting;
}
