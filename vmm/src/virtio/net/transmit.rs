//! From the guest's buffers to the tap, without a copy in between.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::super::queue::Taken;
use super::super::{Chain, ChainError, GuestMemory, Lane, Queues, RingError};
use super::shared::Shared;
use super::{HEADER, MAX_FRAME};
use crate::sys::vectored::{self, Vectors};

/// How many frames are sent before the worker looks at everything else.
const BUDGET: usize = 64;

/// A transmit queue.
pub(super) struct Transmit {
    tap: Arc<OwnedFd>,
    pair: usize,
    shared: Arc<Shared>,
    /// Reused from frame to frame.
    chain: Chain,
    vectors: Vectors,
}

impl Transmit {
    pub(super) fn new(pair: usize, tap: Arc<OwnedFd>, shared: Arc<Shared>) -> Self {
        Self { tap, pair, shared, chain: Chain::default(), vectors: Vectors::default() }
    }

    /// Hands a frame of the guest to the tap. What the tap does not take is lost, as on any network.
    fn send(&mut self, memory: &GuestMemory, valid: Result<(), ChainError>) {
        let frame = &self.chain.readable;
        match valid {
            Ok(()) if !self.shared.config().link().is_up() => {}
            Ok(()) if (HEADER + 1..=HEADER + MAX_FRAME).contains(&frame.len()) => {
                match vectored::write(self.tap.as_fd(), &mut self.vectors, frame, memory) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => tracing::debug!(%error, "the tap rejected a frame"),
                }
            }
            Ok(()) => tracing::debug!("a frame without a header, or too large, is dropped"),
            Err(error) => tracing::debug!(%error, "invalid descriptor chain"),
        }
    }
}

impl Lane for Transmit {
    fn serves(&self, queue: usize, features: u64) -> bool {
        queue == 2 * self.pair + 1 && self.pair < self.shared.usable_pairs(features)
    }

    fn gives_way(&self) -> bool {
        true
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        let ring = queues.get(queue)?;
        ring.begin()?;
        let mut sent = 0;
        while sent < BUDGET
            && let Some(Taken { pending, valid }) = ring.pop_into(&mut self.chain)?
        {
            self.send(ring.memory(), valid);
            ring.push(pending.finish(0))?;
            sent += 1;
        }
        ring.publish()?;
        if sent == BUDGET {
            ring.again();
        }
        Ok(())
    }
}
