//! What devices need of the interrupt controller and of the kernel's doorbells, and nothing of how KVM provides it.
//!
//! Devices are written against these traits; the KVM side implements them, and tests use fakes.

use std::io;
use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;

/// What a PCI function writes to signal an interrupt (PCI 3.0, section 6.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiMessage {
    /// Target address.
    pub address: u64,
    /// Data written there.
    pub data: u32,
}

/// One message-signalled vector, held by a device for as long as it has the MSI-X entry.
///
/// Signalling is one write to an eventfd that the kernel turns into an interrupt; no exit, no lock.
pub trait MsiVector: Send + Sync {
    /// Routes the vector to `message` and lets it through.
    fn route(&self, message: MsiMessage) -> io::Result<()>;
    /// Stops the vector from reaching the guest. The caller keeps the pending bit.
    fn mask(&self) -> io::Result<()>;
    /// Raises the interrupt.
    fn trigger(&self) -> io::Result<()>;
    /// The eventfd behind `trigger`, for kernel helpers (vhost, io_uring).
    fn eventfd(&self) -> &EventFd;
}

/// Hands out message-signalled vectors.
pub trait MsiRouter: Send + Sync {
    /// A vector of its own, masked and unrouted. Given back when dropped.
    fn allocate(&self) -> io::Result<Arc<dyn MsiVector>>;
}

/// An interrupt line of the IOAPIC.
pub trait IrqLine: Send + Sync {
    /// An edge: up and down again.
    fn pulse(&self) -> io::Result<()>;
    /// Holds the level.
    fn set_level(&self, high: bool) -> io::Result<()>;
}

/// All interrupt lines by their numbers: those below 16 reach the PICs and the IOAPIC, the others the IOAPIC.
pub trait IrqPins: Send + Sync {
    /// Holds the level of the line, which has no other driver.
    fn set_level(&self, gsi: u32, high: bool) -> io::Result<()>;
}

/// Guest writes that the kernel answers with an eventfd, without leaving to the monitor (`KVM_IOEVENTFD`).
pub trait Doorbells: Send + Sync {
    /// From now on a write of any value and width to guest-physical `address` signals `fd`.
    fn register(&self, fd: &EventFd, address: u64) -> io::Result<()>;
    /// Undoes `register` with the same arguments.
    fn unregister(&self, fd: &EventFd, address: u64) -> io::Result<()>;
}
