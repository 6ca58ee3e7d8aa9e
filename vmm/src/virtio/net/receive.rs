//! From the tap into the guest's buffers, without a copy in between.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress};

use super::super::queue::Taken;
use super::super::{Chain, GuestMemory, Lane, Pending, Queues, RingError, VirtQueue};
use super::offload::{self, MRG_RXBUF};
use super::shared::Shared;
use super::{HEADER, MAX_FRAME};
use crate::sys::tap;
use crate::sys::vectored::ReadBuffers;

/// How many frames are taken before the worker looks at everything else. The driver sees them all at once.
const BUDGET: usize = 64;
/// Where `num_buffers` is in the header: two bytes.
const NUM_BUFFERS: u64 = 10;
/// After so many errors in a row nothing is expected of the tap any more.
const MAX_ERRORS: u32 = 4096;

/// A receive queue.
pub(super) struct Receive {
    tap: Arc<OwnedFd>,
    pair: usize,
    shared: Arc<Shared>,
    /// The largest frame without offloads.
    frame: u64,
    /// A frame may be spread over several buffers (VIRTIO_NET_F_MRG_RXBUF).
    merge: bool,
    /// Room a frame may need.
    needed: u64,
    /// Since the first call for the queue.
    buffers: Option<Buffers>,
    /// Reused from chain to chain.
    chain: Chain,
    /// The tap ended: nothing comes from it any more.
    dead: bool,
    /// Errors in a row.
    errors: u32,
    /// The function may not access memory: nothing is received until the kick that comes when it may.
    held: bool,
}

/// Buffers the guest gave for frames, taken from the queue and not used yet.
struct Buffers {
    taken: VecDeque<Buffer>,
    host: ReadBuffers,
    capacity: u64,
    ring_size: usize,
    /// A chain behind one that is still here was answered.
    out_of_order: bool,
}

struct Buffer {
    pending: Pending,
    /// Pieces in the host's memory.
    pieces: usize,
    len: u64,
    /// Where each byte of `num_buffers` is: nothing says that they are side by side.
    number: [GuestAddress; 2],
}

/// Whether nothing comes after this error: the tap is gone.
pub(super) fn is_end(error: &io::Error) -> bool {
    let gone = [libc::EBADFD, libc::EBADF, libc::ENODEV];
    error.kind() == io::ErrorKind::UnexpectedEof
        || error.raw_os_error().is_some_and(|errno| gone.contains(&errno))
}

impl Buffers {
    fn new(memory: GuestMemory, ring_size: usize) -> Self {
        let host = ReadBuffers::new(memory);
        Self { taken: VecDeque::new(), host, capacity: 0, ring_size, out_of_order: false }
    }

    /// Gives all of them back to the queue, as if they had not been taken.
    fn give_back(self, queue: &mut VirtQueue) -> Result<(), RingError> {
        let taken = self.taken.into_iter().map(|buffer| buffer.pending);
        if !self.out_of_order {
            queue.give_back(taken);
            return Ok(());
        }
        // A driver that makes invalid chains gets empty frames.
        for pending in taken {
            queue.push(pending.finish(0))?;
        }
        queue.publish()
    }

    /// Takes a chain's buffers; gives it back where it cannot hold a header.
    fn push(&mut self, pending: Pending, chain: &Chain) -> Result<(), Pending> {
        let to = &chain.writable;
        let number = (to.address_of(NUM_BUFFERS), to.address_of(NUM_BUFFERS + 1));
        let (len, (Some(low), Some(high))) = (to.len(), number) else { return Err(pending) };
        if len < HEADER {
            return Err(pending);
        }
        let Ok(pieces) = self.host.push(to) else { return Err(pending) };
        self.capacity = self.capacity.saturating_add(len);
        self.taken.push_back(Buffer { pending, pieces, len, number: [low, high] });
        Ok(())
    }

    /// How many pieces a frame may be spread over.
    fn pieces(&self, merge: bool) -> usize {
        match self.taken.front() {
            Some(first) if !merge => first.pieces,
            Some(_) => usize::MAX,
            None => 0,
        }
    }

    /// Gives the buffers that hold `count` bytes back to the guest.
    fn deliver(&mut self, mut count: u64, queue: &mut VirtQueue) -> Result<(), RingError> {
        let mut rest = count;
        let used = self.taken.iter().take_while(|buffer| {
            let needed = rest > 0;
            rest = rest.saturating_sub(buffer.len);
            needed
        });
        let used = used.count();
        if let Some(first) = self.taken.front() {
            let number = u16::try_from(used).unwrap_or(u16::MAX).to_le_bytes();
            for (byte, at) in number.iter().zip(first.number) {
                if let Err(error) = queue.memory().write_slice(&[*byte], at) {
                    tracing::debug!(%error, "a frame's header could not be completed");
                }
            }
        }
        for Buffer { pending, len, pieces, .. } in self.taken.drain(..used) {
            let here = count.min(len);
            count -= here;
            self.capacity -= len;
            self.host.take_off(pieces);
            queue.push(pending.finish(u32::try_from(here).unwrap_or(u32::MAX)))?;
        }
        self.out_of_order &= !self.taken.is_empty();
        Ok(())
    }
}

impl Receive {
    /// `frame` is the most bytes of a frame without offloads.
    pub(super) fn new(pair: usize, tap: Arc<OwnedFd>, shared: Arc<Shared>, frame: u64) -> Self {
        Self {
            tap,
            pair,
            shared,
            frame,
            merge: false,
            needed: 0,
            buffers: None,
            chain: Chain::default(),
            dead: false,
            errors: 0,
            held: false,
        }
    }

    /// Whether there is room for whatever comes next.
    fn is_ready(&self) -> bool {
        let Some(buffers) = &self.buffers else { return false };
        let whole = match self.merge {
            true => buffers.capacity,
            false => buffers.taken.front().map_or(0, |buffer| buffer.len),
        };
        // A driver with less than that in its whole ring gets what fits.
        let all = buffers.taken.len() >= buffers.ring_size || !self.merge;
        !self.dead && !self.held && (whole >= self.needed || all && whole > 0)
    }

    /// Takes buffers until there is room for any frame.
    fn refill(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        self.held = !queue.may_serve();
        let buffers = self.buffers.get_or_insert_with(|| Buffers::new(queue.memory().clone(), queue.size()));
        while buffers.capacity < self.needed || !self.merge && buffers.taken.is_empty() {
            let Some(Taken { pending, valid }) = queue.pop_into(&mut self.chain)? else { break };
            let taken = match valid {
                Ok(()) => buffers.push(pending, &self.chain),
                Err(_) => Err(pending),
            };
            if let Err(pending) = taken {
                tracing::debug!("a buffer that holds no header is rejected");
                buffers.out_of_order |= !buffers.taken.is_empty();
                queue.push(pending.finish(0))?;
            }
        }
        Ok(())
    }

    /// Moves frames from the tap to the guest, as long as there are frames and room.
    fn receive(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        for _ in 0..BUDGET {
            self.refill(queue)?;
            if !self.is_ready() || !self.shared.is_used(self.pair) {
                break;
            }
            let Some(buffers) = &mut self.buffers else { break };
            let pieces = buffers.pieces(self.merge);
            match buffers.host.read(self.tap.as_fd(), pieces) {
                Ok(Some(0)) => self.fail(&io::ErrorKind::UnexpectedEof.into()),
                Ok(Some(count)) => {
                    self.errors = 0;
                    buffers.deliver(count, queue)?;
                }
                Ok(None) => tracing::debug!("a frame is larger than the guest's buffers"),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.fail(&error),
            }
        }
        // Also where the budget ended it: without buffers, kicks must be enabled.
        self.refill(queue)?;
        queue.publish()
    }

    fn is_link_up(&self) -> bool {
        self.shared.config().link().is_up()
    }

    /// Frames that come while the link is down are lost, not late.
    fn discard(&mut self) {
        for _ in 0..BUDGET {
            match rustix::io::read(&self.tap, &mut [0; 64]) {
                // The rest of the frame is dropped with it.
                Ok(1..) | Err(rustix::io::Errno::INTR) => self.errors = 0,
                Ok(0) => return self.fail(&io::ErrorKind::UnexpectedEof.into()),
                Err(rustix::io::Errno::AGAIN) => return,
                Err(error) => return self.fail(&error.into()),
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        if !self.shared.is_used(self.pair) {
            tracing::debug!(%error, "the queue was detached");
        } else if is_end(error) || self.errors >= MAX_ERRORS {
            tracing::warn!(%error, "the tap ended");
            self.dead = true;
        } else {
            // The kernel drops a frame that it cannot describe.
            tracing::debug!(%error, "a frame of the tap is lost");
            self.errors += 1;
        }
    }
}

impl Lane for Receive {
    fn serves(&self, queue: usize, features: u64) -> bool {
        queue == 2 * self.pair && self.pair < self.shared.usable_pairs(features)
    }

    fn activate(&mut self, features: u64) -> io::Result<()> {
        // They are the tap's, whichever queue; and its first is attached.
        if self.pair == 0 {
            match tap::set_offload(self.tap.as_fd(), offload::tap_flags(features)) {
                // The tests' stand-in for a tap.
                Err(error) if cfg!(test) => tracing::debug!(%error, "no offloads"),
                result => result?,
            }
        }
        self.merge = features & MRG_RXBUF != 0;
        self.needed = HEADER + if offload::takes_large(features) { MAX_FRAME } else { self.frame };
        (self.dead, self.errors) = (false, 0);
        Ok(())
    }

    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        match self.buffers.take() {
            Some(buffers) => buffers.give_back(queues.get(2 * self.pair)?),
            None => Ok(()),
        }
    }

    fn deactivate(&mut self) {
        // The driver takes its buffers back.
        self.buffers = None;
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        let ring = queues.get(queue)?;
        self.refill(ring)?;
        ring.publish()
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        let wanted = !self.dead && (self.is_ready() || !self.is_link_up());
        (wanted && self.shared.is_used(self.pair)).then(|| self.tap.as_fd())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        if !self.is_link_up() {
            self.discard();
            return Ok(());
        }
        self.receive(queues.get(2 * self.pair)?)
    }
}
