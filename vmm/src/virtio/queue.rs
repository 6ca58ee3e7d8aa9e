//! One split virtqueue (section 2.7) as a device sees it.

use std::num::Wrapping;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError};
use vmm_sys_util::eventfd::EventFd;

use super::notifier::Notifier;
use super::signals::{QueueSignal, Signals};
use super::{Chain, ChainError, Finished, GuestMemory, Pending};
use crate::sys::vhost;

/// How many chains [`VirtQueue::drain`] serves before it lets the worker look at everything else.
const BUDGET: usize = 64;
/// For how long a worker carries out requests one after the other before it looks at everything else: it may be to pause, or
/// to stop.
pub(super) const TURN: Duration = Duration::from_millis(20);

/// The ring itself makes no sense: nothing in it can be served any more (section 2.1.2, DEVICE_NEEDS_RESET).
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The available index runs ahead of the ring, or the ring cannot be read.
    #[error("the available ring lies")]
    Available(#[source] virtio_queue::Error),
    /// The available index announces a chain that is not there.
    #[error("the available ring shows no chain where it announced one")]
    Stuck,
    /// A chain begins at a descriptor that does not exist.
    #[error("chain {0} begins beyond the descriptor table")]
    Head(u16),
    /// The rings cannot be accessed.
    #[error("the ring cannot be accessed")]
    Memory(#[source] GuestMemoryError),
    /// The host's means of serving the queue failed; the driver is not at fault.
    #[error("the host cannot serve the queue")]
    Host(#[source] std::io::Error),
    /// The device has no such queue, or the driver did not enable it.
    #[error("queue {0} is not there")]
    Absent(usize),
}

/// A chain taken from the queue, whole or rejected. It is answered either way.
#[derive(Debug)]
pub struct Request {
    /// To be answered.
    pub pending: Pending,
    /// Its buffers.
    pub chain: Result<Chain, ChainError>,
}

/// A chain taken from the queue into one that was there before.
#[derive(Debug)]
pub(super) struct Taken {
    /// To be answered.
    pub(super) pending: Pending,
    /// Why its buffers are meaningless.
    pub(super) valid: Result<(), ChainError>,
}

/// What the available ring has.
enum Popped {
    Chain(Taken),
    Empty,
    /// The function may not access memory.
    Held,
}

/// How far a queue that rests was served: every chain before `available` is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    pub(super) available: u16,
    pub(super) used: u16,
}

/// A queue the driver enabled.
pub struct VirtQueue {
    /// Reads the available ring and the descriptors. Its used side is ours: a packet over several chains has to
    /// become visible at once (section 5.1.6.4), and this one publishes chain by chain.
    ring: Queue,
    memory: GuestMemory,
    kick: Arc<EventFd>,
    signal: QueueSignal,
    /// Answered, and not yet in the used ring.
    answered: Vec<Finished>,
    /// Taken, and not answered.
    unanswered: usize,
    /// Visible to the driver.
    published: Wrapping<u16>,
    /// Visible when the driver was last considered for an interrupt.
    considered: Wrapping<u16>,
}

/// How much a lane has taken from all of its queues, and answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    taken: Wrapping<u16>,
    answered: Wrapping<u16>,
}

impl Progress {
    /// How many requests were taken or answered, whichever is more, since `before`.
    pub(super) fn since(self, before: Self) -> u16 {
        (self.taken - before.taken).0.max((self.answered - before.answered).0)
    }
}

/// The queues of a lane, at their indexes in the device.
pub struct Queues {
    queues: Vec<Option<VirtQueue>>,
    /// Of every lane's queues.
    kicks: Vec<Arc<EventFd>>,
    signals: Arc<Signals>,
}

impl Queues {
    pub(super) fn new(
        queues: Vec<Option<VirtQueue>>,
        kicks: Vec<Arc<EventFd>>,
        signals: Arc<Signals>,
    ) -> Self {
        Self { queues, kicks, signals }
    }

    /// Rings when the function may access memory, or no longer.
    pub(super) fn on_bus_master(&self, watcher: Arc<Notifier>) {
        self.signals.on_bus_master(watcher);
    }

    /// Has a queue served by its lane, whichever it is.
    pub(super) fn wake(&self, queue: usize) {
        self.kicks.get(queue).into_iter().for_each(|kick| wake(kick));
    }

    /// Notifies the driver of a configuration change (section 2.5).
    pub fn config_changed(&self) {
        self.signals.config_changed();
    }

    /// A queue the driver enabled.
    pub fn get(&mut self, index: usize) -> Result<&mut VirtQueue, RingError> {
        self.queues.get_mut(index).and_then(Option::as_mut).ok_or(RingError::Absent(index))
    }

    /// Whether the function may access memory, as [`VirtQueue::may_serve`].
    pub(super) fn may_serve(&self) -> bool {
        self.queues.iter().flatten().next().is_some_and(VirtQueue::may_serve)
    }

    /// Makes visible what was pushed to any of them, as [`VirtQueue::publish`].
    pub(super) fn publish(&mut self) -> Result<(), RingError> {
        self.queues.iter_mut().flatten().try_for_each(VirtQueue::publish)
    }

    /// Where the enabled ones are; `None` if one has chains that are not answered.
    pub(super) fn positions(&self) -> Option<Vec<(usize, Position)>> {
        let enabled =
            self.queues.iter().enumerate().filter_map(|(index, queue)| Some((index, queue.as_ref()?)));
        enabled.map(|(index, queue)| Some((index, queue.position()?))).collect()
    }

    /// How far all of them were served.
    pub(super) fn progress(&self) -> Progress {
        self.queues.iter().flatten().fold(Progress::default(), |Progress { taken, answered }, queue| {
            Progress {
                taken: taken + Wrapping(queue.ring.next_avail()),
                answered: answered + queue.published,
            }
        })
    }

    /// Whether it has none.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(Option::is_none)
    }

    /// The enabled ones with their kicks.
    pub(super) fn kicks(&self) -> impl Iterator<Item = (usize, Arc<EventFd>)> {
        self.queues
            .iter()
            .enumerate()
            .filter_map(|(index, queue)| Some((index, queue.as_ref()?.kick.clone())))
    }
}

impl VirtQueue {
    /// `ring` is ready and lies in `memory`.
    pub(super) fn new(ring: Queue, memory: GuestMemory, kick: Arc<EventFd>, signal: QueueSignal) -> Self {
        let used = Wrapping(ring.next_used());
        let answered = Vec::new();
        Self { ring, memory, kick, signal, answered, unanswered: 0, published: used, considered: used }
    }

    /// How far it was served, if nothing that was taken is unanswered.
    pub(super) fn position(&self) -> Option<Position> {
        let rests = self.unanswered == 0 && self.answered.is_empty();
        rests.then(|| Position { available: self.ring.next_avail(), used: self.published.0 })
    }

    /// Gives the last `taken` chains back, of which none was answered, and all that was taken before them was.
    pub(super) fn give_back(&mut self, taken: impl ExactSizeIterator<Item = Pending>) {
        let count = taken.len();
        // Answered by being taken again.
        taken.for_each(drop);
        self.unanswered = self.unanswered.saturating_sub(count);
        let count = Wrapping(u16::try_from(count).unwrap_or(0));
        self.ring.set_next_avail((Wrapping(self.ring.next_avail()) - count).0);
    }

    /// The guest's RAM.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// How many chains fit.
    pub fn size(&self) -> usize {
        self.ring.size().into()
    }

    /// The next chain. Where there is none, or the function may not access memory, there will be a kick when that
    /// changes.
    pub fn pop(&mut self) -> Result<Option<Request>, RingError> {
        let mut chain = Chain::default();
        let popped = self.pop_into(&mut chain)?;
        Ok(popped.map(|Taken { pending, valid }| Request { pending, chain: valid.map(|()| chain) }))
    }

    /// As [`Self::pop`], into a chain that was there before: nothing is allocated once it was large enough. Its buffers are
    /// meaningless where the chain is invalid.
    pub(super) fn pop_into(&mut self, chain: &mut Chain) -> Result<Option<Taken>, RingError> {
        match self.try_pop(chain)? {
            Popped::Chain(taken) => return Ok(Some(taken)),
            Popped::Held => return Ok(None),
            Popped::Empty => {}
        }
        if !self.ring.enable_notification(&self.memory).map_err(RingError::Available)? {
            return Ok(None);
        }
        // One came in between.
        self.ring.disable_notification(&self.memory).map_err(RingError::Available)?;
        match self.try_pop(chain)? {
            Popped::Chain(taken) => Ok(Some(taken)),
            Popped::Held => Ok(None),
            Popped::Empty => Err(RingError::Stuck),
        }
    }

    fn try_pop(&mut self, chain: &mut Chain) -> Result<Popped, RingError> {
        let position = self.ring.next_avail();
        let Some(descriptors) = self.ring.iter(&self.memory).map_err(RingError::Available)?.next() else {
            return Ok(Popped::Empty);
        };
        // Checked after the ring was read: a chain that was added after bus mastering was switched off stays.
        if !self.signal.may_serve() {
            self.ring.set_next_avail(position);
            return Ok(Popped::Held);
        }
        let pending = Pending::new(descriptors.head_index());
        self.unanswered += 1;
        Ok(Popped::Chain(Taken { pending, valid: chain.fill(&self.memory, descriptors) }))
    }

    /// Whether the function may access memory. Where it may not, there will be a kick when that changes.
    pub fn may_serve(&self) -> bool {
        self.signal.may_serve()
    }

    /// Whether there is another chain.
    pub fn has_more(&self) -> Result<bool, RingError> {
        let index = self.ring.avail_idx(&self.memory, Ordering::Acquire).map_err(RingError::Available)?;
        Ok(index.0 != self.ring.next_avail())
    }

    /// Keeps an answer for the used ring, until [`Self::publish`].
    pub fn push(&mut self, finished: Finished) -> Result<(), RingError> {
        if finished.head() >= self.ring.size() {
            return Err(RingError::Head(finished.head()));
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        self.answered.push(finished);
        Ok(())
    }

    /// Makes what was pushed visible, all at once, and interrupts the driver where it wants that (section 2.7.7).
    /// Where the function may not access memory, the answers wait until it may.
    pub fn publish(&mut self) -> Result<(), RingError> {
        if self.answered.is_empty() || !self.may_serve() {
            return Ok(());
        }
        let size = self.ring.size();
        let mut written = self.published;
        for finished in &self.answered {
            let slot = written.0.checked_rem(size).ok_or(RingError::Stuck)?;
            let element = [u32::from(finished.head()).to_le(), finished.written().to_le()];
            let [[a, b, c, d], [e, f, g, h]] = element.map(u32::to_ne_bytes);
            let at = self.used(4 + 8 * u64::from(slot));
            self.memory.write_slice(&[a, b, c, d, e, f, g, h], at).map_err(RingError::Memory)?;
            written += 1;
        }
        self.answered.clear();
        self.memory.store(written.0.to_le(), self.used(2), Ordering::Release).map_err(RingError::Memory)?;
        self.published = written;
        self.ring.set_next_used(written.0);
        if self.wants_interrupt()? {
            self.signal.raise();
        }
        Ok(())
    }

    /// Begins to serve after a kick: no more kicks until [`Self::pop`] finds nothing.
    pub fn begin(&mut self) -> Result<(), RingError> {
        // What was answered while the function could not access memory.
        self.publish()?;
        self.ring.disable_notification(&self.memory).map_err(RingError::Available)
    }

    /// Answers chains as long as there are any; `answer` must be quick to give up on what makes no sense. After a
    /// number of them, or after [`TURN`], it comes back by a kick of its own, so that no driver keeps a worker to one queue.
    pub fn drain(
        &mut self,
        mut answer: impl FnMut(&GuestMemory, Pending, Result<Chain, ChainError>) -> Finished,
    ) -> Result<(), RingError> {
        self.begin()?;
        let end = Instant::now() + TURN;
        for _ in 0..BUDGET {
            let Some(Request { pending, chain }) = self.pop()? else { return Ok(()) };
            let finished = answer(&self.memory, pending, chain);
            self.push(finished)?;
            self.publish()?;
            if Instant::now() >= end {
                break;
            }
        }
        self.again();
        Ok(())
    }

    /// Has the queue served again.
    pub fn again(&self) {
        wake(&self.kick);
    }

    /// The ring for who moves it in our place.
    pub(super) fn host_layout(&self) -> Result<vhost::Ring, RingError> {
        let host = |at| {
            let address = self.memory.get_host_address(GuestAddress(at)).map_err(RingError::Memory)?;
            Ok::<_, RingError>(address.expose_provenance())
        };
        Ok(vhost::Ring {
            size: self.ring.size(),
            position: self.ring.next_avail(),
            descriptors: host(self.ring.desc_table())?,
            available: host(self.ring.avail_ring())?,
            used: host(self.ring.used_ring())?,
        })
    }

    /// The ring was moved by another, to this position of the available ring; every chain before it is answered.
    pub(super) fn take_over(&mut self, position: u16) -> Result<(), RingError> {
        let used: u16 = self.memory.load(self.used(2), Ordering::Acquire).map_err(RingError::Memory)?;
        let used = u16::from_le(used);
        self.ring.set_next_avail(position);
        self.ring.set_next_used(used);
        (self.published, self.considered) = (Wrapping(used), Wrapping(used));
        Ok(())
    }

    pub(super) fn kick(&self) -> &EventFd {
        &self.kick
    }

    /// As [`QueueSignal::message_fd`].
    pub(super) fn message_fd(&self) -> Result<Option<EventFd>, RingError> {
        self.signal.message_fd().map_err(RingError::Host)
    }

    /// Interrupts the driver, which another has answered.
    pub(super) fn interrupt(&self) {
        self.signal.raise();
    }

    fn wants_interrupt(&mut self) -> Result<bool, RingError> {
        // The driver sets what it wants, then looks at the used index; we do the reverse.
        fence(Ordering::SeqCst);
        let load = |at| self.memory.load(at, Ordering::Relaxed).map(u16::from_le).map_err(RingError::Memory);
        if !self.ring.event_idx_enabled() {
            let flags: u16 = load(self.available(0))?;
            return Ok(u32::from(flags) & VRING_AVAIL_F_NO_INTERRUPT == 0);
        }
        let event = Wrapping(load(self.available(4 + 2 * u64::from(self.ring.size())))?);
        let (old, new) = (self.considered, self.published);
        self.considered = new;
        Ok(new - event - Wrapping(1) < new - old)
    }

    // Validated with the queue: the rings lie in RAM whole, so no sum wraps.
    fn used(&self, offset: u64) -> GuestAddress {
        GuestAddress(self.ring.used_ring().wrapping_add(offset))
    }

    fn available(&self, offset: u64) -> GuestAddress {
        GuestAddress(self.ring.avail_ring().wrapping_add(offset))
    }
}

/// Has a queue served.
pub(super) fn wake(kick: &EventFd) {
    if let Err(error) = kick.write(1) {
        tracing::error!(%error, "a queue could not be kicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_what_was_taken_or_answered_whichever_is_more() {
        let at = |taken, answered| Progress { taken: Wrapping(taken), answered: Wrapping(answered) };
        assert_eq!(at(7, 7).since(at(7, 7)), 0);
        assert_eq!(at(9, 7).since(at(7, 7)), 2);
        assert_eq!(at(8, 3).since(at(7, 0xffff)), 4);
    }
}
