//! How a VM ended.

mod run_error;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

pub use run_error::RunError;

/// How a VM ended.
#[derive(Debug)]
pub enum Exit {
    /// The guest switched itself off.
    PowerOff,
    /// The guest requested a reset.
    Reset,
    /// A vCPU faulted three levels deep, which resets a PC. Mostly a guest that crashed very early.
    TripleFault,
    /// The guest reported that its kernel panicked.
    Panicked,
    /// The guest's watchdog expired, which powers it off.
    WatchdogExpired,
    /// [`crate::Controls::kill`].
    Killed,
    /// The VM failed, for a reason outside of the guest.
    Failed(RunError),
}

/// Records how a VM ended. The first report counts.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    over: AtomicBool,
    exit: Mutex<Option<Exit>>,
    reported: Condvar,
}

impl Outcome {
    /// Ends the VM. Later reports are dropped: two vCPUs may fault at once.
    pub(crate) fn report(&self, exit: Exit) {
        let mut slot = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        if self.over.swap(true, Ordering::AcqRel) {
            tracing::debug!(?exit, "the VM was over already");
            return;
        }
        *slot = Some(exit);
        self.reported.notify_all();
    }

    /// Whether the VM is over: vCPUs leave their loop then.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Blocks until the VM is over. For one caller: the answer is handed out once.
    pub(crate) fn wait(&self) -> Exit {
        let slot = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slot =
            self.reported.wait_while(slot, |slot| slot.is_none()).unwrap_or_else(PoisonError::into_inner);
        slot.take().unwrap_or(Exit::Killed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_first_report_counts_and_wakes_the_waiter() {
        let outcome = Arc::new(Outcome::default());
        let waiter = std::thread::spawn({
            let outcome = outcome.clone();
            move || outcome.wait()
        });
        assert!(!outcome.is_over());
        outcome.report(Exit::PowerOff);
        outcome.report(Exit::Reset);
        assert!(outcome.is_over());
        assert!(matches!(waiter.join().unwrap(), Exit::PowerOff));
    }
}
