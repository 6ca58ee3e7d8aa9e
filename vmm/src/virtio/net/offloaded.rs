//! A pair of queues that vhost-net moves.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::super::offloaded_rings::{Backend, OffloadedRings};
use super::super::{Lane, Queues, RingError};
use super::offload::{self, RING_FEATURES};
use super::shared::Shared;
use crate::sys::tap;
use crate::sys::vhost::Vhost;

/// Frames that are waiting when the link comes up were for the time before; no tap's queue is longer.
const MAX_STALE: usize = 4096;

/// Both queues of a pair.
pub(super) struct Offloaded {
    rings: OffloadedRings<Vhost>,
    tap: Arc<OwnedFd>,
    pair: usize,
    shared: Arc<Shared>,
    features: u64,
    /// What waits in the tap came while the link was down.
    stale: bool,
}

/// The queue of a tap.
struct Tap<'a>(&'a OwnedFd);

impl Backend<Vhost> for Tap<'_> {
    fn serve(&self, vhost: &Vhost) -> io::Result<()> {
        [0, 1].into_iter().try_for_each(|ring| vhost.set_tap(ring, Some(self.0)))
    }

    fn release(&self, vhost: &Vhost) -> io::Result<()> {
        let [first, second] = [0, 1].map(|ring| vhost.set_tap(ring, None));
        first.and(second)
    }
}

impl Offloaded {
    pub(super) fn new(vhost: Vhost, pair: usize, tap: Arc<OwnedFd>, shared: Arc<Shared>) -> io::Result<Self> {
        let rings = OffloadedRings::new("vhost-net", vhost, vec![2 * pair, 2 * pair + 1])?;
        shared.on_change(rings.change().clone());
        Ok(Self { rings, tap, pair, shared, features: 0, stale: false })
    }

    /// Starts or stops the kernel, by what is so now.
    fn follow(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let up = self.shared.config().link().is_up();
        let ready = up && self.shared.is_used(self.pair) && self.rings.may_serve(queues);
        self.stale |= !up;
        match (ready, self.rings.is_running()) {
            (true, false) => {
                if std::mem::take(&mut self.stale) {
                    self.drop_stale();
                }
                self.rings.start(&Tap(&self.tap), self.features, queues)
            }
            (false, true) => self.rings.stop(&Tap(&self.tap), queues),
            (true, true) | (false, false) => Ok(()),
        }
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
        self.rings.abandon(&Tap(&self.tap));
    }

    /// Called once, when the lane begins.
    fn process_queue(&mut self, _queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        queues.on_bus_master(self.rings.change().clone());
        self.follow(queues)
    }

    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        // Afterwards it is looked at again.
        self.rings.change().ring();
        if self.rings.is_running() { self.rings.stop(&Tap(&self.tap), queues) } else { Ok(()) }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.rings.source())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        if self.rings.handle_events(queues)? { self.follow(queues) } else { Ok(()) }
    }
}

/// Also where the lane goes down with its thread.
impl Drop for Offloaded {
    fn drop(&mut self) {
        self.deactivate();
    }
}
