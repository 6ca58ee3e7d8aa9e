//! The entropy device (section 5.4): fills buffers from the host's generator.

use std::sync::Arc;

use rustix::rand::{GetRandomFlags, getrandom};

use super::{
    Chain, ChainError, Device, DeviceInfo, DeviceState, Finished, GuestMemory, Lane, Pending, Queues,
    RingError,
};

/// Section 5.
const DEVICE_ID: u16 = 4;
const QUEUE_SIZE: u16 = 64;
/// The most bytes one request gets; drivers request 64 at a time, and may be given fewer.
const MAX_BYTES: usize = 4096;

/// Entropy for the guest.
#[derive(Debug, Default)]
pub struct Rng;

impl Device for Rng {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "rng",
            id: DEVICE_ID,
            class: 0x00_ff_00,
            features: 0,
            queues: vec![QUEUE_SIZE],
            config: Arc::new(Vec::new()),
            state: DeviceState::None,
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

impl Lane for Rng {
    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        queues.get(queue)?.drain(fill)
    }
}

fn fill(memory: &GuestMemory, pending: Pending, chain: Result<Chain, ChainError>) -> Finished {
    let Ok(Chain { mut writable, .. }) = chain else { return pending.finish(0) };
    let mut bytes = [0; MAX_BYTES];
    let count = usize::try_from(writable.len()).unwrap_or(MAX_BYTES).min(MAX_BYTES);
    let Some(wanted) = bytes.get_mut(..count) else { return pending.finish(0) };
    // Never short or interrupted up to 256 bytes, and then only before the host's generator is seeded.
    let filled = getrandom(&mut *wanted, GetRandomFlags::empty()).unwrap_or(0);
    let Some(target) = writable.take_front(u64::try_from(filled).unwrap_or(0)) else {
        return pending.finish(0);
    };
    match wanted.get(..filled).map(|bytes| target.write(memory, bytes)) {
        Some(Ok(())) => pending.finish(u32::try_from(filled).unwrap_or(0)),
        Some(Err(_)) | None => pending.finish(0),
    }
}
