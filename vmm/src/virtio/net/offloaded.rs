//! A pair of queues that vhost-net moves: the lane starts and stops it, and waits for its errors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::super::notifier::Notifier;
use super::super::{Lane, Queues, RingError};
use super::offload::{self, RING_FEATURES};
use super::shared::Shared;
use crate::sys::tap;
use crate::sys::vhost::{RingFds, VhostNet};

/// What the lane waits for.
const CHANGE: u64 = 0;
const ERROR: u64 = 1;
/// And the ring's number: an interrupt that goes by the line.
const CALL: u64 = 2;
/// Frames that are waiting when the link comes up were for the time before; no tap's queue is longer.
const MAX_STALE: usize = 4096;

/// Both queues of a pair.
pub(super) struct Offloaded {
    vhost: VhostNet,
    tap: Arc<OwnedFd>,
    pair: usize,
    shared: Arc<Shared>,
    features: u64,
    /// Rings when the pair, the link or bus mastering may have changed.
    change: Arc<Notifier>,
    error: OwnedFd,
    /// For interrupts without messages.
    calls: [OwnedFd; 2],
    events: OwnedFd,
    /// The kernel serves the rings.
    runs: bool,
    /// What waits in the tap came while the link was down.
    stale: bool,
}

impl Offloaded {
    pub(super) fn new(
        vhost: VhostNet,
        pair: usize,
        tap: Arc<OwnedFd>,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let change = Arc::new(Notifier::new()?);
        let (error, calls) = (eventfd(0, flags)?, [eventfd(0, flags)?, eventfd(0, flags)?]);
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        let [receive, transmit] = calls.each_ref();
        for (fd, data) in [
            (change.as_fd(), CHANGE),
            (error.as_fd(), ERROR),
            (receive.as_fd(), CALL),
            (transmit.as_fd(), CALL + 1),
        ] {
            epoll::add(&events, fd, EventData::new_u64(data), EventFlags::IN)?;
        }
        shared.on_change(change.clone());
        Ok(Self {
            vhost,
            tap,
            pair,
            shared,
            features: 0,
            change,
            error,
            calls,
            events,
            runs: false,
            stale: false,
        })
    }

    /// The kernel's numbers of the rings, with the device's.
    fn rings(&self) -> [(u32, usize); 2] {
        [(0, 2 * self.pair), (1, 2 * self.pair + 1)]
    }

    /// Starts or stops the kernel, by what is so now.
    fn follow(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let up = self.shared.config().link().is_up();
        let mut ready = up && self.shared.is_used(self.pair);
        for (_, queue) in self.rings() {
            // A driver may have enabled only one of them: then neither moves.
            ready = ready && queues.get(queue).is_ok_and(|ring| ring.may_serve());
        }
        self.stale |= !up;
        match (ready, self.runs) {
            (true, false) => self.start(queues),
            (false, true) => self.stop(Some(queues)),
            (true, true) | (false, false) => Ok(()),
        }
    }

    fn start(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        if std::mem::take(&mut self.stale) {
            self.drop_stale();
        }
        // Before the first ring is served: what fails in between is stopped.
        self.runs = true;
        self.vhost.set_features(self.vhost.features(self.features)).map_err(RingError::Host)?;
        for (index, queue) in self.rings() {
            let ring = queues.get(queue)?;
            if index == 0 {
                self.vhost.set_memory(ring.memory()).map_err(RingError::Host)?;
            }
            let layout = ring.host_layout()?;
            let own = self.calls.get(usize::from(index == 1)).ok_or(RingError::Absent(queue))?;
            let direct = ring.message_fd()?;
            let call: &dyn AsRawFd = direct.as_ref().map_or(own, |direct| direct);
            let fds = RingFds { kick: ring.kick(), call, error: &self.error };
            self.vhost.set_ring(index, layout, &fds).map_err(RingError::Host)?;
        }
        for (index, queue) in self.rings() {
            self.vhost.set_backend(index, Some(&*self.tap)).map_err(RingError::Host)?;
            // What is in the ring already.
            queues.get(queue)?.again();
        }
        tracing::info!(pair = self.pair, "vhost-net moves the queues of a NIC");
        Ok(())
    }

    /// Stops the kernel, and takes the rings' positions over if they are needed.
    fn stop(&mut self, mut queues: Option<&mut Queues>) -> Result<(), RingError> {
        self.runs = false;
        let mut result = Ok(());
        for (index, queue) in self.rings() {
            // Both are stopped whatever the first says.
            let stopped = self.vhost.set_backend(index, None).and_then(|()| self.vhost.position(index));
            result = result.and(match (stopped, &mut queues) {
                (Ok(position), Some(queues)) => queues.get(queue).and_then(|ring| ring.take_over(position)),
                (Ok(_), None) => Ok(()),
                (Err(error), _) => Err(RingError::Host(error)),
            });
        }
        result
    }

    fn drop_stale(&self) {
        for _ in 0..MAX_STALE {
            match rustix::io::read(&self.tap, &mut [0; 64]) {
                Ok(1..) | Err(rustix::io::Errno::INTR) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

impl Lane for Offloaded {
    fn serves(&self, queue: usize, features: u64) -> bool {
        queue / 2 == self.pair && self.pair < self.shared.usable_pairs(features)
    }

    fn waits_for_kicks(&self) -> bool {
        false
    }

    fn activate(&mut self, features: u64) -> io::Result<()> {
        self.features = features & RING_FEATURES;
        self.stale = false;
        if self.pair == 0 {
            tap::set_offload(self.tap.as_fd(), offload::tap_flags(features))?;
        }
        Ok(())
    }

    fn deactivate(&mut self) {
        if self.runs
            && let Err(error) = self.stop(None)
        {
            tracing::error!(%error, "vhost-net does not let go of a queue");
        }
    }

    /// Called once, when the lane begins.
    fn process_queue(&mut self, _queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        queues.on_bus_master(self.change.clone());
        self.follow(queues)
    }

    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        // Afterwards it is looked at again.
        self.change.ring();
        if self.runs { self.stop(Some(queues)) } else { Ok(()) }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 4];
        let no_wait = rustix::time::Timespec::default();
        let count = epoll::wait(&self.events, &mut events, Some(&no_wait)).unwrap_or(0);
        for event in events.iter().take(count) {
            match event.data.u64() {
                CHANGE => {
                    self.change.settle();
                    self.follow(queues)?;
                }
                ERROR => {
                    // Not again after the reset.
                    let _ = rustix::io::read(&self.error, &mut [0; 8]);
                    return Err(RingError::Host(io::Error::other("vhost-net cannot follow the ring")));
                }
                call => {
                    let at = usize::try_from(call - CALL).unwrap_or(usize::MAX);
                    if let Some(fd) = self.calls.get(at) {
                        let _ = rustix::io::read(fd, &mut [0; 8]);
                    }
                    queues.get(2 * self.pair + at)?.interrupt();
                }
            }
        }
        Ok(())
    }
}

/// Also where the lane goes down with its thread.
impl Drop for Offloaded {
    fn drop(&mut self) {
        self.deactivate();
    }
}
