//! PCI: one root bus with the identity of a Q35, and the parts of its functions.
//!
//! Configuration space is reached through the ports 0xCF8/0xCFC and through the memory-mapped window that the host
//! bridge's PCIEXBAR places (PCI Express base specification, section 7.2.2). Everything here runs on vCPU threads, on
//! values the guest chose: nothing blocks and nothing indexes unchecked.

mod address;
mod bar;
mod bars;
mod config;
mod function_space;
mod host;
mod intx;
mod lpc;
mod memory_slot;
mod msi;
mod msix;
mod ports;
mod root;
mod slot;
#[cfg(test)]
pub(crate) mod tests;
mod windows;

use crate::state::{AnySection, SectionError};

pub use address::Address;
pub use bar::{BarKind, BarListener};
pub use bars::Bars;
pub(crate) use config::ConfigState;
pub use config::{ConfigSpace, Identity};
pub(crate) use function_space::FunctionSpace;
pub use intx::Intx;
pub(crate) use intx::pirq;
pub use memory_slot::SlotMapper;
pub use msi::Msi;
pub(crate) use msix::MsixState;
pub use msix::{MSIX_CAPABILITY, Msix};
pub use root::{Programmed, Root, RootError};
pub use slot::Slot;

/// Whether a configuration write may have changed address decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoding {
    /// Nothing moved.
    Same,
    /// Something moved or went away: functions whose BARs were in the way of something try again.
    Changed,
}

/// One function on the root bus.
pub trait Function: Send + Sync {
    /// What it is, for logs and for the name of its state.
    fn name(&self) -> &'static str;
    /// Reads its configuration space. `register` and `data` lie within the 4096 bytes of a function.
    fn read_config(&self, register: u16, data: &mut [u8]);
    /// Writes its configuration space.
    fn write_config(&self, register: u16, data: &[u8]) -> Decoding;

    /// It is on a bus now: gives its BARs their first addresses, if the guest does not run yet. Called once.
    fn attach(&self, slot: &Slot) -> Result<(), RootError> {
        let _ = slot;
        Ok(())
    }

    /// It is off the bus now, and stays so: its BARs are unmapped, and it interrupts no more. On a vCPU thread, while others
    /// may still be inside of it. [`Self::stop`] follows.
    fn detach(&self) {}

    /// Tries again to map BARs that were rejected because something else answered there.
    fn retry(&self) {}

    /// Has what runs on behalf of the function finish what it began, and rest. No vCPU runs. Whether it rests in time:
    /// it does not where the host does not answer.
    fn pause(&self) -> bool {
        true
    }

    /// Continues after [`Self::pause`].
    fn resume(&self) {}

    /// vCPUs run, or none does: all of them are paused. None runs at first.
    fn set_running(&self, runs: bool) {
        let _ = runs;
    }

    /// Its state.
    fn section(&self) -> Result<&dyn AnySection, SectionError> {
        Err(SectionError::Unsavable("the monitor has no code for that yet"))
    }

    /// Stops what runs on behalf of the function and waits for it. The guest no longer runs, or the function was detached.
    fn stop(&self) {}
}
