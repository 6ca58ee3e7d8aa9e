//! From the tap into the guest's buffers, without a copy in between.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use vm_memory::VolatileSlice;

use super::super::{Chain, GuestMemory, Pending, Request, RingError, Segments, VirtQueue};
use super::{HEADER, MAX_FRAME};
use crate::sys::vectored::{self, IoVecs};

/// How many frames are taken before the worker looks at everything else.
const BUDGET: usize = 64;
/// Where `num_buffers` is in the header, and its size.
const NUM_BUFFERS: u64 = 10;
/// After so many errors in a row nothing is expected of the tap any more.
const MAX_ERRORS: u32 = 4096;
/// The most buffers that take part in one read.
const MAX_VECS: usize = 1024;

/// Buffers the guest gave for frames, taken from the queue and not used yet.
#[derive(Default)]
pub(super) struct Receiver {
    buffers: VecDeque<Buffer>,
    capacity: u64,
    /// A frame may be spread over several (VIRTIO_NET_F_MRG_RXBUF).
    merge: bool,
    /// Room a frame may need.
    needed: u64,
    /// The tap ended: nothing comes from it any more.
    dead: bool,
    /// Errors in a row.
    errors: u32,
    /// The function may not access memory: nothing is received until the kick that comes when it may.
    held: bool,
}

struct Buffer {
    pending: Pending,
    segments: Segments,
    len: u64,
}

/// Whether nothing comes after this error: the tap is gone.
pub(super) fn is_end(error: &io::Error) -> bool {
    let gone = [libc::EBADFD, libc::EBADF, libc::ENODEV];
    error.kind() == io::ErrorKind::UnexpectedEof
        || error.raw_os_error().is_some_and(|errno| gone.contains(&errno))
}

impl Receiver {
    /// Restarts with buffers for frames of `frame` bytes, or of 64 KiB.
    pub(super) fn new(merge: bool, large: bool, frame: u64) -> Self {
        let needed = HEADER + if large { MAX_FRAME } else { frame };
        Self { merge, needed, ..Self::default() }
    }

    /// Whether there is room for whatever comes next.
    pub(super) fn is_ready(&self, ring_size: usize) -> bool {
        let whole =
            if self.merge { self.capacity } else { self.buffers.front().map_or(0, |buffer| buffer.len) };
        // A driver with less than that in its whole ring gets what fits.
        let all = self.buffers.len() >= ring_size || !self.merge;
        !self.dead && !self.held && (whole >= self.needed || all && whole > 0)
    }

    /// Takes buffers until there is room for any frame.
    pub(super) fn refill(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        self.held = !queue.may_serve();
        while self.capacity < self.needed || !self.merge && self.buffers.is_empty() {
            let Some(Request { pending, chain }) = queue.pop()? else { break };
            match chain {
                Ok(Chain { writable, .. }) if writable.len() >= HEADER => {
                    let len = writable.len();
                    self.capacity = self.capacity.saturating_add(len);
                    self.buffers.push_back(Buffer { pending, segments: writable, len });
                }
                Ok(_) | Err(_) => {
                    tracing::debug!("a buffer that holds no header is rejected");
                    queue.push(pending.finish(0))?;
                }
            }
        }
        queue.publish()
    }

    /// Moves frames from the tap to the guest, as long as there are frames and room.
    pub(super) fn receive(&mut self, tap: BorrowedFd<'_>, queue: &mut VirtQueue) -> Result<(), RingError> {
        for _ in 0..BUDGET {
            self.refill(queue)?;
            if !self.is_ready(queue.size()) {
                break;
            }
            match self.read_frame(tap, queue.memory()) {
                Ok(Some(count)) => {
                    self.errors = 0;
                    self.deliver(count, queue)?;
                }
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_end(&error) || self.errors >= MAX_ERRORS => {
                    tracing::warn!(%error, "the tap ended");
                    self.dead = true;
                    break;
                }
                // The kernel drops a frame that it cannot describe.
                Err(error) => {
                    tracing::debug!(%error, "a frame of the tap is lost");
                    self.errors += 1;
                }
            }
        }
        // Also where the budget ended it: without buffers, kicks must be enabled.
        self.refill(queue)
    }

    /// Reads a frame into the first buffers; `None` if it was larger than they are.
    fn read_frame(&self, tap: BorrowedFd<'_>, memory: &GuestMemory) -> io::Result<Option<u64>> {
        let count = if self.merge { self.buffers.len() } else { 1 };
        let mut slices = Vec::with_capacity(count);
        for buffer in self.buffers.iter().take(count) {
            slices.extend(buffer.segments.slices(memory)?);
        }
        slices.truncate(MAX_VECS - 1);
        // A byte here means that the frame did not fit: a tap truncates silently.
        let mut excess = [0_u8];
        slices.push(VolatileSlice::from(excess.as_mut_slice()));
        let vecs = IoVecs::new(slices);
        match u64::try_from(vectored::read(tap, &vecs)?).unwrap_or(u64::MAX) {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            all if all == vecs.len() => {
                tracing::debug!("a frame is larger than the guest's buffers");
                Ok(None)
            }
            done => Ok(Some(done)),
        }
    }

    /// Gives the buffers that hold `count` bytes back to the guest, all at once.
    fn deliver(&mut self, mut count: u64, queue: &mut VirtQueue) -> Result<(), RingError> {
        let mut rest = count;
        let used = self.buffers.iter().take_while(|buffer| {
            let needed = rest > 0;
            rest = rest.saturating_sub(buffer.len);
            needed
        });
        let used = used.count();
        if let Some(first) = self.buffers.front() {
            let number = u16::try_from(used).unwrap_or(u16::MAX).to_le_bytes();
            if let Err(error) = first.segments.write_at(queue.memory(), NUM_BUFFERS, &number) {
                tracing::debug!(%error, "a frame's header could not be completed");
            }
        }
        for Buffer { pending, len, .. } in self.buffers.drain(..used) {
            let here = count.min(len);
            count -= here;
            self.capacity -= len;
            queue.push(pending.finish(u32::try_from(here).unwrap_or(u32::MAX)))?;
        }
        Ok(())
    }
}
