use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far the guest has set its real-time clock from the host's, in nanoseconds: what a battery keeps over a reset.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockOffset(Arc<Mutex<i128>>);

impl ClockOffset {
    fn lock(&self) -> MutexGuard<'_, i128> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the guest has set last; zero at first.
    pub(crate) fn get(&self) -> i128 {
        *self.lock()
    }

    /// Keeps what the guest has set.
    pub(crate) fn set(&self, offset: i128) {
        *self.lock() = offset;
    }
}
