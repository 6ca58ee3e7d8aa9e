use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;

use super::capability::{NOTIFY_MULTIPLIER, NOTIFY_OFFSET};
use crate::irq::Doorbells;
use crate::pci::BarListener;

/// The queues' notification addresses, bound to their eventfds where the BAR is now.
///
/// A queue that cannot be bound still works: its notifications leave to the monitor.
pub(super) struct BoundDoorbells {
    doorbells: Arc<dyn Doorbells>,
    kicks: Vec<Arc<EventFd>>,
    bound: Vec<(usize, u64)>,
}

impl BoundDoorbells {
    pub(super) fn new(doorbells: Arc<dyn Doorbells>, kicks: Vec<Arc<EventFd>>) -> Self {
        Self { doorbells, kicks, bound: Vec::new() }
    }
}

impl BarListener for BoundDoorbells {
    fn follow(&mut self, base: Option<u64>) {
        for (queue, address) in self.bound.drain(..) {
            if let Some(kick) = self.kicks.get(queue)
                && let Err(error) = self.doorbells.unregister(kick, address)
            {
                tracing::error!(%error, address, "a doorbell could not be unbound");
            }
        }
        let Some(base) = base else { return };
        let addresses = (base.saturating_add(NOTIFY_OFFSET)..).step_by(4);
        debug_assert_eq!(NOTIFY_MULTIPLIER, 4);
        for (queue, (kick, address)) in self.kicks.iter().zip(addresses).enumerate() {
            match self.doorbells.register(kick, address) {
                Ok(()) => self.bound.push((queue, address)),
                Err(error) => tracing::warn!(%error, address, "a doorbell could not be bound"),
            }
        }
    }
}

impl Drop for BoundDoorbells {
    fn drop(&mut self) {
        self.follow(None);
    }
}
