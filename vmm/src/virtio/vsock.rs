//! The socket device (section 5.10), whose data queues the host's kernel moves (vhost-vsock).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::offloaded_rings::{Backend, OffloadedRings, RING_FEATURES};
use super::{Device, DeviceInfo, DeviceState, Lane, Queues, RingError};
use crate::config::Vsock as VsockConfig;
use crate::sys::vhost::{HostRings, Vhost};

/// Section 5.
const DEVICE_ID: u16 = 19;
const QUEUE_SIZE: u16 = 128;
/// Section 5.10.2. The third, of events, is never used: its one event says that the context ID has changed.
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const QUEUES: usize = 3;

/// Section 5.10.3: sockets that keep the boundaries of messages.
const SEQPACKET: u64 = 1 << 1;

/// A socket device.
pub struct Vsock(Sockets<Vhost>);

/// Its only lane.
struct Sockets<V: HostRings>
where
    Kernel: Backend<V>,
{
    rings: OffloadedRings<V>,
    /// What the kernel can do of the device's own features.
    offered: u64,
    cid: u32,
    features: u64,
}

/// The kernel's sockets.
struct Kernel;

impl Backend<Vhost> for Kernel {
    fn serve(&self, vhost: &Vhost) -> io::Result<()> {
        vhost.set_vsock_running(true)
    }

    fn release(&self, vhost: &Vhost) -> io::Result<()> {
        vhost.set_vsock_running(false)
    }
}

impl Vsock {
    /// A device that is served by the open vhost-vsock of `config`, through a file descriptor of its own.
    ///
    /// # Errors
    /// When that is none, or of another process.
    pub fn new(config: &VsockConfig) -> io::Result<Self> {
        Ok(Self(Sockets::new(Vhost::new(config.device().try_clone()?)?, config.cid())?))
    }
}

impl<V: HostRings> Sockets<V>
where
    Kernel: Backend<V>,
{
    fn new(vhost: V, cid: u32) -> io::Result<Self> {
        if vhost.features(RING_FEATURES) != RING_FEATURES {
            return Err(io::Error::other("vhost-vsock does not support the rings' features"));
        }
        let offered = vhost.features(SEQPACKET);
        let rings = OffloadedRings::new("vhost-vsock", vhost, vec![RECEIVE, TRANSMIT])?;
        Ok(Self { rings, offered, cid, features: 0 })
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "vsock",
            id: DEVICE_ID,
            class: 0x07_80_00,
            features: self.offered,
            queues: vec![QUEUE_SIZE; QUEUES],
            config: Arc::new(u64::from(self.cid).to_le_bytes().to_vec()),
            state: DeviceState::Unsavable("its connections are the host's"),
        }
    }

    /// Starts or stops the kernel, by what is so now.
    fn follow(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        match (self.rings.may_serve(queues), self.rings.is_running()) {
            (true, false) => self.rings.start(&Kernel, self.features, queues),
            (false, true) => self.rings.stop(&Kernel, queues),
            (true, true) | (false, false) => Ok(()),
        }
    }
}

impl Device for Vsock {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![Box::new(self.0)]
    }
}

impl<V: HostRings> Lane for Sockets<V>
where
    Kernel: Backend<V>,
{
    fn waits_for_kicks(&self) -> bool {
        false
    }

    fn activate(&mut self, features: u64) -> io::Result<()> {
        self.features = features & (RING_FEATURES | SEQPACKET);
        Ok(())
    }

    fn deactivate(&mut self) {
        self.rings.abandon(&Kernel);
    }

    /// Called once for each queue, when the lane begins.
    fn process_queue(&mut self, _queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        queues.on_bus_master(self.rings.change().clone());
        self.follow(queues)
    }

    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        // Afterwards it is looked at again.
        self.rings.change().ring();
        if self.rings.is_running() { self.rings.stop(&Kernel, queues) } else { Ok(()) }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.rings.source())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        if self.rings.handle_events(queues)? { self.follow(queues) } else { Ok(()) }
    }
}

/// Also where the lane goes down with its thread.
impl<V: HostRings> Drop for Sockets<V>
where
    Kernel: Backend<V>,
{
    fn drop(&mut self) {
        self.rings.abandon(&Kernel);
    }
}

#[cfg(test)]
#[path = "vsock_tests.rs"]
mod tests;
