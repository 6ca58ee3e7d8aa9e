use std::io;
use std::os::fd::BorrowedFd;

use super::{Queues, RingError};

/// What a device is, as far as it never changes.
#[derive(Clone, Debug)]
pub struct Model {
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
    /// The device's configuration space. The driver reads it; no device here lets it be written.
    pub config: Vec<u8>,
}

/// A virtio device, without the transport.
///
/// It lives with the transport until the driver is ready, then on its worker thread, and goes back on reset.
pub trait Device: Send {
    /// Asked once, before the guest runs.
    fn model(&self) -> Model;

    /// The driver is ready, with these features (section 3.1.1, step 8). Begins with nothing left from before.
    fn activate(&mut self, features: u64) -> io::Result<()> {
        let _ = features;
        Ok(())
    }

    /// Serves a queue: after its kick, and once after activation. On the worker thread. An error stops the device
    /// until it is reset.
    fn serve(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError>;

    /// What else it waits for now: a file that becomes readable. Asked after each call of the other two.
    fn source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The source is readable. On the worker thread.
    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let _ = queues;
        Ok(())
    }
}
