use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vireo_vmconfig::WatchdogAction;

/// A watchdog, and what of it outlasts the VM that it resets.
#[derive(Clone, Debug)]
pub struct Watchdog {
    action: WatchdogAction,
    timed_out: Arc<AtomicBool>,
}

impl Watchdog {
    /// One that has not expired yet.
    pub fn new(action: WatchdogAction) -> Self {
        Self { action, timed_out: Arc::default() }
    }

    pub(crate) fn action(&self) -> WatchdogAction {
        self.action
    }

    /// Whether it has expired since a driver looked: the guest that starts again learns why.
    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out.load(Ordering::SeqCst)
    }

    pub(crate) fn set_timed_out(&self, yes: bool) {
        self.timed_out.store(yes, Ordering::SeqCst);
    }
}
