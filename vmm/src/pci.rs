//! The PCI side of the machine: one root bus with the identity of a Q35, and what a function on it is made of.
//!
//! Configuration space is reached through the ports 0xCF8/0xCFC and through the memory-mapped window that the host
//! bridge's PCIEXBAR places (PCI Express base specification, section 7.2.2). Everything here runs on vCPU threads, on
//! values the guest chose: nothing blocks and nothing indexes unchecked.

mod address;
mod bar;
mod config;
mod host;
mod lpc;
mod msix;
mod ports;
mod root;
#[cfg(test)]
pub(crate) mod tests;

pub use address::Address;
pub use bar::{Bar, Placement};
pub use config::{ConfigSpace, Identity};
pub use msix::{MSIX_CAPABILITY, Msix};
pub use root::{Root, RootError};

use crate::bus::Bus;
use std::sync::Weak;

/// Whether a configuration write may have changed which addresses somebody answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoding {
    /// Nothing moved.
    Same,
    /// Something moved or went away: functions whose BARs were in the way of something try again.
    Changed,
}

/// One function on the root bus.
pub trait Function: Send + Sync {
    /// Reads its configuration space. `register` and `data` lie within the 4096 bytes of a function.
    fn read_config(&self, register: u16, data: &mut [u8]);
    /// Writes its configuration space.
    fn write_config(&self, register: u16, data: &[u8]) -> Decoding;

    /// The memory BAR it has, in bytes; a power of two.
    fn bar_size(&self) -> Option<u64> {
        None
    }

    /// Programs the BAR with its first address, and names the bus it answers on from when the guest enables memory
    /// decoding. Called once, before the guest runs.
    fn attach(&self, bus: Weak<Bus>, address: u64) {
        let _ = (bus, address);
    }

    /// Tries again to place a BAR that was refused because something else answered there.
    fn retry(&self) {}

    /// Stops what runs on behalf of the function and waits for it. The guest no longer runs.
    fn stop(&self) {}
}
