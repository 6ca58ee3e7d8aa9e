//! Ethernet frames over a stream socket, as QEMU's `-netdev stream` and passt exchange them: each frame is behind its length
//! in bytes, which is a big-endian number of four bytes.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::super::{GuestMemory, Segments};
use super::{HEADER, MAX_FRAME};

/// Of the length before each frame.
const PREFIX: usize = 4;
/// An Ethernet header.
const MIN_LENGTH: usize = 14;
const MAX_LENGTH: usize = 65_535 + 18;
const _: () = assert!(MAX_LENGTH as u64 == MAX_FRAME && PREFIX + MAX_LENGTH <= BUFFER);
/// What is kept for each direction: more than the longest frame with its length.
const BUFFER: usize = 128 << 10;

/// Why nothing passes any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer announced a frame of {0} bytes")]
    Length(u32),
    #[error("the socket cannot be used")]
    Socket(#[source] io::Error),
}

/// A connection, with what is under way on it. It belongs to a NIC across all resets of its guest: it alone knows where in the
/// stream of bytes a frame begins.
pub(crate) struct FrameStream {
    socket: OwnedFd,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
}

impl fmt::Debug for FrameStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FrameStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl FrameStream {
    /// On a connected socket, whether or not it is non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, incoming: Mutex::default(), outgoing: Mutex::default() }
    }

    /// To wait for.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// For the one lane that receives.
    pub(super) fn incoming(&self) -> MutexGuard<'_, Incoming> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the one lane that sends.
    pub(super) fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the peer see the end.
    pub(super) fn shut_down(&self) {
        // It may have closed its side.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

/// Bytes in a row, of which the first are taken off and others are added behind the last.
struct Bytes {
    /// Its length never changes.
    buffer: Vec<u8>,
    used: Range<usize>,
}

impl Default for Bytes {
    fn default() -> Self {
        Self { buffer: vec![0; BUFFER], used: 0..0 }
    }
}

impl Bytes {
    fn used(&self) -> &[u8] {
        self.buffer.get(self.used.clone()).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Where others go.
    fn free(&mut self) -> &mut [u8] {
        if self.used.start > 0 {
            self.buffer.copy_within(self.used.clone(), 0);
            self.used = 0..self.used.len();
        }
        self.buffer.get_mut(self.used.end..).unwrap_or_default()
    }

    /// So many of [`Self::free`] are used.
    fn add(&mut self, count: usize) {
        self.used.end = self.used.end.saturating_add(count).min(self.buffer.len());
    }

    fn take_off(&mut self, count: usize) {
        self.used.start = self.used.start.saturating_add(count).min(self.used.end);
    }
}

/// What was received and is not with the guest yet: whole frames, and the beginning of another.
#[derive(Default)]
pub(super) struct Incoming(Bytes);

impl Incoming {
    /// Receives what is there, as far as there is room, by one call.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<(), StreamError> {
        let free = self.0.free();
        if free.is_empty() {
            return Ok(());
        }
        match rustix::net::recv(socket, free, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(StreamError::Closed),
            Ok((count, _)) => {
                self.0.add(count);
                Ok(())
            }
            Err(errno) if is_passing(errno) => Ok(()),
            Err(Errno::CONNRESET) => Err(StreamError::Closed),
            Err(errno) => Err(StreamError::Socket(errno.into())),
        }
    }

    /// The first frame, if all of it is there.
    pub(super) fn frame(&self) -> Result<Option<&[u8]>, StreamError> {
        let Some((prefix, rest)) = self.0.used().split_first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes(*prefix);
        match usize::try_from(length) {
            Ok(len) if (MIN_LENGTH..=MAX_LENGTH).contains(&len) => Ok(rest.get(..len)),
            _ => Err(StreamError::Length(length)),
        }
    }

    /// Takes off a frame of [`Self::frame`].
    pub(super) fn take_off(&mut self, length: usize) {
        self.0.take_off(PREFIX + length);
    }
}

/// What is to be sent: the rest of a frame, and whole frames.
#[derive(Default)]
pub(super) struct Outgoing(Bytes);

impl Outgoing {
    /// Whether any frame fits.
    pub(super) fn has_room(&self) -> bool {
        BUFFER - self.0.used.len() >= PREFIX + MAX_LENGTH
    }

    /// Adds the frame behind the header in `buffers`. One that is none, or for which there is no room, is lost.
    pub(super) fn push(&mut self, buffers: &Segments, memory: &GuestMemory) {
        let len = buffers.len().checked_sub(HEADER).and_then(|len| usize::try_from(len).ok());
        let Some(len) = len.filter(|len| (MIN_LENGTH..=MAX_LENGTH).contains(len)) else {
            tracing::debug!("what has no header, or is no frame, is dropped");
            return;
        };
        let Some((prefix, rest)) = self.0.free().split_first_chunk_mut() else { return };
        let Some(frame) = rest.get_mut(..len) else { return };
        if let Err(error) = buffers.read_at(memory, HEADER, frame) {
            tracing::debug!(%error, "a frame of the guest cannot be read");
            return;
        }
        *prefix = u32::try_from(len).unwrap_or_default().to_be_bytes();
        self.0.add(PREFIX + len);
    }

    /// Sends as much as the socket takes. Whether that was all.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> Result<bool, StreamError> {
        while !self.0.is_empty() {
            match rustix::net::send(socket, self.0.used(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.0.take_off(count),
                Err(Errno::INTR) => {}
                Err(errno) if is_passing(errno) => return Ok(false),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(StreamError::Closed),
                Err(errno) => return Err(StreamError::Socket(errno.into())),
            }
        }
        Ok(true)
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.0.take_off(BUFFER);
    }
}

/// Whether to try again when the socket is ready.
fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM)
}
