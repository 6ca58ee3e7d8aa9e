//! What runs the machine: one trait, two implementations.

mod choose;
mod figures;
mod guest;
pub mod native;
pub mod qemu;

pub use choose::{Choice, KvmState, Probe, choose};
pub use figures::{Figures, Meter, Reading, Readings};
pub use guest::{
    Controls, End, Event, Events, Guest, GuestEnd, Order, Plug, Plugging, SOFT_REBOOT, Starting, guest,
};

use std::sync::Arc;

use crate::console::Port;
use crate::host::Host;
use crate::launch::Launch;

/// Starts machines.
pub trait Hypervisor: Send {
    /// Builds the machine and lets it run. The future may be dropped at any time; nothing of the machine is left
    /// behind then. `port` is the guest's serial port.
    fn start(&self, launch: Arc<Launch>, host: Host, port: Port) -> Starting;
}
