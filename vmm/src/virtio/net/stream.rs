//! A NIC whose frames go through a stream socket: what its two queues carry is copied once, and has no offloads.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::super::queue::Taken;
use super::super::{Chain, GuestMemory, Lane, Pending, Queues, RingError, Segments, VirtQueue};
use super::HEADER;
use super::frame_stream::{FrameStream, Outgoing, StreamError};
use super::offload::MRG_RXBUF;
use super::shared::Shared;
use crate::config::Link;

/// How many frames are sent before the worker looks at everything else, and received before the driver sees them.
const BUDGET: usize = 64;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

/// The other end of the socket.
#[derive(Clone)]
pub(super) struct Peer {
    stream: Arc<FrameStream>,
    shared: Arc<Shared>,
}

impl Peer {
    pub(super) fn new(stream: Arc<FrameStream>, shared: Arc<Shared>) -> Self {
        Self { stream, shared }
    }

    fn link(&self) -> &Link {
        self.shared.config().link()
    }

    /// Nothing passes any more: the guest sees a link that is down, after [`Self::notify_loss`].
    fn lose(&self, error: &StreamError) {
        if self.link().cut() {
            tracing::warn!(error = error as &dyn std::error::Error, "a NIC has lost its peer");
        }
        self.stream.shut_down();
    }

    /// Notifies the guest of a link that was not cut before.
    fn notify_loss(&self, was_cut: bool, queues: &Queues) {
        if !was_cut && self.link().is_cut() {
            queues.config_changed();
        }
    }

    /// Sends what the socket takes. Whether nothing is left.
    fn send(&self, outgoing: &mut Outgoing) -> bool {
        outgoing.send(self.stream.socket()).unwrap_or_else(|error| {
            self.lose(&error);
            outgoing.clear();
            true
        })
    }
}

/// The receive queue.
pub(super) struct StreamReceive {
    peer: Peer,
    /// A frame may be spread over several buffers (VIRTIO_NET_F_MRG_RXBUF).
    merge: bool,
    /// Nothing is received until the next kick: a frame needs more buffers, or the function may not access memory.
    waits: bool,
    /// For one frame. Empty in between.
    buffers: Buffers,
}

/// Buffers of the guest that were taken from the queue.
#[derive(Default)]
struct Buffers {
    taken: Vec<(Pending, u64)>,
    room: Segments,
    /// Bytes of `room`.
    len: u64,
    /// Reused from chain to chain.
    chain: Chain,
}

/// Whether there are buffers for a frame.
#[derive(PartialEq, Eq)]
enum Room {
    Enough,
    /// After the next kick there may be.
    Later,
    /// The driver's buffers are too small.
    Never,
}

impl Buffers {
    /// Takes buffers until they have room for `needed` bytes, or gives them back.
    fn take(&mut self, needed: u64, merge: bool, queue: &mut VirtQueue) -> Result<Room, RingError> {
        let mut rejected = 0;
        while self.len < needed {
            if self.taken.len() >= queue.size() || !merge && !self.taken.is_empty() {
                self.give_back(queue);
                return Ok(Room::Never);
            }
            let Some(Taken { pending, valid }) = queue.pop_into(&mut self.chain)? else {
                self.give_back(queue);
                return Ok(Room::Later);
            };
            let len = self.chain.writable.len();
            if valid.is_ok() && len >= HEADER {
                self.room.append(&self.chain.writable);
                self.len = self.len.saturating_add(len);
                self.taken.push((pending, len));
                continue;
            }
            tracing::debug!("a buffer that holds no header is rejected");
            // In their order, so that those behind can be given back.
            self.answer(0, queue)?;
            queue.push(pending.finish(0))?;
            rejected += 1;
            if rejected >= queue.size() {
                queue.again();
                return Ok(Room::Later);
            }
        }
        Ok(Room::Enough)
    }

    /// Writes a frame behind its header.
    fn write(&self, frame: &[u8], memory: &GuestMemory) {
        let [low, high] = u16::try_from(self.taken.len()).unwrap_or(u16::MAX).to_le_bytes();
        // Only the number of buffers: there is no offload that it could describe.
        let header = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, low, high];
        let written = self.room.write(memory, &header);
        if let Err(error) = written.and_then(|()| self.room.write_at(memory, HEADER, frame)) {
            tracing::debug!(%error, "a frame cannot be written");
        }
    }

    /// Answers all that were taken, of which the first `count` bytes are written.
    fn answer(&mut self, mut count: u64, queue: &mut VirtQueue) -> Result<(), RingError> {
        for (pending, len) in self.taken.drain(..) {
            let here = count.min(len);
            count -= here;
            queue.push(pending.finish(u32::try_from(here).unwrap_or(u32::MAX)))?;
        }
        self.clear();
        Ok(())
    }

    fn give_back(&mut self, queue: &mut VirtQueue) {
        queue.give_back(self.taken.drain(..).map(|(pending, _)| pending));
        self.clear();
    }

    fn clear(&mut self) {
        self.taken.clear();
        self.room.clear();
        self.len = 0;
    }
}

impl StreamReceive {
    pub(super) fn new(peer: Peer) -> Self {
        Self { peer, merge: false, waits: false, buffers: Buffers::default() }
    }

    /// Gives the frames to the guest that were received whole, as far as it has buffers. While the link is down they are lost, not
    /// late.
    fn deliver_all(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        let peer = self.peer.clone();
        let mut incoming = peer.stream.incoming();
        self.waits = false;
        for number in 1.. {
            let frame = match incoming.frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    peer.lose(&error);
                    break;
                }
            };
            let length = frame.len();
            if peer.link().is_up() && !self.deliver(frame, queue)? {
                self.waits = true;
                break;
            }
            incoming.take_off(length);
            if number % BUDGET == 0 {
                queue.publish()?;
            }
        }
        queue.publish()
    }

    /// Whether a frame is done with.
    fn deliver(&mut self, frame: &[u8], queue: &mut VirtQueue) -> Result<bool, RingError> {
        let needed = HEADER.saturating_add(u64::try_from(frame.len()).unwrap_or(u64::MAX));
        match self.buffers.take(needed, self.merge, queue)? {
            Room::Enough => {
                self.buffers.write(frame, queue.memory());
                self.buffers.answer(needed, queue)?;
                Ok(true)
            }
            Room::Later => Ok(false),
            Room::Never => {
                tracing::debug!("a frame is larger than the guest's buffers");
                Ok(true)
            }
        }
    }
}

impl Lane for StreamReceive {
    fn serves(&self, queue: usize, _features: u64) -> bool {
        queue == RECEIVE
    }

    fn activate(&mut self, features: u64) -> io::Result<()> {
        self.merge = features & MRG_RXBUF != 0;
        self.waits = false;
        Ok(())
    }

    fn deactivate(&mut self) {
        // The driver takes its buffers back.
        self.buffers.clear();
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        let was_cut = self.peer.link().is_cut();
        let queue = queues.get(queue)?;
        if queue.may_serve() {
            queue.begin()?;
            self.deliver_all(queue)?;
        }
        self.peer.notify_loss(was_cut, queues);
        Ok(())
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        (!self.waits && !self.peer.link().is_cut()).then(|| self.peer.stream.socket())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let queue = queues.get(RECEIVE)?;
        if !queue.may_serve() {
            self.waits = true;
            return Ok(());
        }
        let was_cut = self.peer.link().is_cut();
        let received = self.peer.stream.incoming().receive(self.peer.stream.socket());
        match received {
            Ok(()) => self.deliver_all(queue)?,
            Err(error) => self.peer.lose(&error),
        }
        self.peer.notify_loss(was_cut, queues);
        Ok(())
    }
}

/// The transmit queue.
pub(super) struct StreamTransmit {
    peer: Peer,
    /// Reused from frame to frame.
    chain: Chain,
    /// The socket is full.
    blocked: bool,
}

impl StreamTransmit {
    pub(super) fn new(peer: Peer) -> Self {
        Self { peer, chain: Chain::default(), blocked: false }
    }

    /// Sends the guest's frames as far as the socket takes them; the others wait in the queue.
    fn transmit(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let was_cut = self.peer.link().is_cut();
        self.move_frames(queues.get(TRANSMIT)?)?;
        self.peer.notify_loss(was_cut, queues);
        Ok(())
    }

    fn move_frames(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        let mut outgoing = self.peer.stream.outgoing();
        self.blocked = !self.peer.send(&mut outgoing);
        if self.blocked || !queue.may_serve() {
            return queue.publish();
        }
        queue.begin()?;
        let mut taken = 0;
        while taken < BUDGET
            && outgoing.has_room()
            && let Some(Taken { pending, valid }) = queue.pop_into(&mut self.chain)?
        {
            taken += 1;
            match valid {
                Ok(()) if self.peer.link().is_up() => outgoing.push(&self.chain.readable, queue.memory()),
                Ok(()) => {}
                Err(error) => tracing::debug!(%error, "invalid descriptor chain"),
            }
            queue.push(pending.finish(0))?;
        }
        let has_more = taken == BUDGET || !outgoing.has_room();
        self.blocked = !self.peer.send(&mut outgoing);
        queue.publish()?;
        if has_more && !self.blocked {
            queue.again();
        }
        Ok(())
    }
}

impl Lane for StreamTransmit {
    fn serves(&self, queue: usize, _features: u64) -> bool {
        queue == TRANSMIT
    }

    fn activate(&mut self, _features: u64) -> io::Result<()> {
        self.blocked = false;
        Ok(())
    }

    fn process_queue(&mut self, _queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        self.transmit(queues)
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.blocked.then(|| self.peer.stream.socket())
    }

    fn waits_to_write(&self) -> bool {
        true
    }

    fn gives_way(&self) -> bool {
        true
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.transmit(queues)
    }
}
