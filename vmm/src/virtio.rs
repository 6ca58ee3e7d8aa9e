//! Virtio 1.2 devices behind PCI functions.
//!
//! A device is a [`Device`]: a few constants, and [`Lane`]s that serve its queues, each called on a worker thread of its
//! own when one of its queues was kicked. Everything between it and the guest is written once: [`PciDevice`] is the PCI transport (section 4.1),
//! [`VirtQueue`] hands out chains that were checked whole, [`Pending`] makes sure each is answered once.
//!
//! Guest input is never trusted: an invalid chain fails alone; a ring that lies stops its device,
//! which then needs a reset (section 2.1.2).

pub mod balloon;
mod batching;
pub mod block;
mod chain;
pub mod console;
mod device;
pub mod fs;
pub mod gpu;
pub mod input;
pub mod net;
mod notifier;
mod offloaded_rings;
pub mod port;
mod queue;
pub mod rng;
pub mod scsi;
mod signals;
#[cfg(test)]
pub(crate) mod testing;
mod transport;
pub mod vsock;
mod worker;
mod workers;

pub use chain::{Chain, ChainError, Finished, Pending};
pub(crate) use device::DeviceState;
pub use device::{Device, DeviceConfig, DeviceInfo, Lane};
pub use queue::{Queues, Request, RingError, VirtQueue};
pub use transport::{DeviceError, PciDevice};

use crate::memory::{GuestMemory, Segments};

/// What a device needs of the VM around it.
#[derive(Clone)]
pub struct DeviceContext {
    /// The guest's RAM.
    pub memory: GuestMemory,
    /// Where its interrupt vectors come from.
    pub router: std::sync::Arc<dyn crate::irq::MsiRouter>,
    /// Where its queue notifications are bound to eventfds.
    pub doorbells: std::sync::Arc<dyn crate::irq::Doorbells>,
    /// For the threads of its queues.
    pub threads: crate::config::ThreadHook,
}
