use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{Queues, RingError};
use crate::config::Stalls;
use crate::state::{SectionError, SharedSection};

/// What a device is, as far as it never changes.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Short name, for threads and logs.
    pub name: &'static str,
    /// Virtio device id (section 5).
    pub id: u16,
    /// PCI class code, `0xBBSSII`.
    pub class: u32,
    /// The device's own feature bits; the transport adds those of the rings.
    pub features: u64,
    /// The largest size of each queue, powers of two.
    pub queues: Vec<u16>,
    /// The device's configuration space.
    pub config: Arc<dyn DeviceConfig>,
    /// What else there is of it to be saved.
    pub(crate) state: DeviceState,
}

/// A device's state beside its transport and its queues.
#[derive(Clone)]
pub(crate) enum DeviceState {
    /// There is none.
    None,
    /// Lives with the device, and is loaded before its lanes are activated.
    Section(SharedSection),
    /// There is some, which cannot be saved for this reason.
    Unsavable(&'static str),
}

impl fmt::Debug for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Section(_) => "Section",
            Self::Unsavable(_) => "Unsavable",
        })
    }
}

/// A device's configuration space (section 2.5). Accessed on vCPU threads: nothing here may block.
pub trait DeviceConfig: fmt::Debug + Send + Sync {
    /// In bytes. Never changes.
    fn size(&self) -> usize;

    /// Reads from `offset`; what lies beyond the end is zero.
    fn read(&self, offset: usize, data: &mut [u8]);

    /// The driver writes. What it may not write stays as it is. Returns whether the lanes have to look at what it wrote.
    fn write(&self, offset: usize, data: &[u8]) -> bool {
        let _ = (offset, data);
        false
    }

    /// The driver accepted these features (section 3.1.1, step 6).
    fn negotiated(&self, features: u64) {
        let _ = features;
    }

    /// The driver reset the device, and no lane serves it: what it has set is as before.
    fn reset(&self) {}

    /// All of it, if it never changes.
    fn constant(&self) -> Option<&[u8]> {
        None
    }

    /// Takes what is to be called when it changed other than by the driver. Called once, before the guest runs.
    fn on_change(&self, notify: Box<dyn Fn() + Send + Sync>) {
        let _ = notify;
    }
}

/// One that never changes.
impl DeviceConfig for Vec<u8> {
    fn size(&self) -> usize {
        self.len()
    }

    fn read(&self, offset: usize, data: &mut [u8]) {
        copy_from(self, offset, data);
    }

    fn constant(&self) -> Option<&[u8]> {
        Some(self)
    }
}

/// Copies from `offset` of `bytes`, which zeroes follow.
pub(super) fn copy_from(bytes: &[u8], offset: usize, data: &mut [u8]) {
    let rest = bytes.get(offset..).unwrap_or_default();
    for (at, byte) in data.iter_mut().enumerate() {
        *byte = rest.get(at).copied().unwrap_or(0);
    }
}

/// A virtio device, without the transport.
pub trait Device: Send {
    /// Called once, before the guest runs.
    fn info(&self) -> DeviceInfo;

    /// What serves its queues. One that serves them all is a lane itself.
    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>>;
}

/// What serves some of a device's queues, on a thread of its own.
///
/// It lives with the transport until the driver is ready, then on its worker thread, and goes back on reset. A lane whose
/// queues the driver did not enable stays with the transport.
pub trait Lane: Send {
    /// Whether it serves this queue of a driver with these features. The first lane that does gets it.
    fn serves(&self, queue: usize, features: u64) -> bool {
        let _ = (queue, features);
        true
    }

    /// The driver is ready, with these features (section 3.1.1, step 8). Begins with nothing left from before. Every
    /// lane of the device is activated before one serves.
    fn activate(&mut self, features: u64) -> io::Result<()> {
        let _ = features;
        Ok(())
    }

    /// The driver reset the device, or a ring of the lane is unusable. On the worker thread, which ends.
    fn deactivate(&mut self) {}

    /// Whether it serves its queues after their kicks. A lane whose queues others move is called for each when it begins,
    /// and then has the kicks to itself.
    fn waits_for_kicks(&self) -> bool {
        true
    }

    /// Whether its thread may give way to the vCPUs while that makes requests come together.
    fn gives_way(&self) -> bool {
        false
    }

    /// Serves a queue: after its kick, and once after activation. On the worker thread. An error stops the lane, and
    /// makes the device ask for a reset.
    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError>;

    /// Finishes what is in flight, and takes nothing new: neither RAM nor the host's side changes afterwards, until it
    /// is called again. On the worker thread.
    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let _ = queues;
        Ok(())
    }

    /// Its state beside its queues. While it is not activated, or after [`Self::settle`].
    fn save(&self) -> Result<Vec<u8>, SectionError> {
        Ok(Vec::new())
    }

    /// Takes such a state over, of a lane that was activated for the same driver, or of one that was not.
    fn load(&mut self, state: &[u8]) -> Result<(), SectionError> {
        if state.is_empty() { Ok(()) } else { Err(SectionError::Invalid("a lane has no such state")) }
    }

    /// Where its requests may be held; called before it moves to its worker.
    fn stalls(&self) -> Stalls {
        Stalls::default()
    }

    /// A file to wait for besides kicks. Called after each call of the other two.
    fn source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether the source is waited for to be writable, in place of readable. Called with [`Self::source`].
    fn waits_to_write(&self) -> bool {
        false
    }

    /// The source is readable, or writable, or its other end is gone. On the worker thread.
    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let _ = queues;
        Ok(())
    }
}
