use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::vcpu::RunError;

/// How a machine ended.
#[derive(Debug)]
pub enum Exit {
    /// The guest switched itself off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// A processor faulted three levels deep, which resets a PC. Mostly a guest that crashed very early.
    TripleFault,
    /// [`crate::Controls::kill`].
    Killed,
    /// The machine cannot go on, for a reason that is not the guest's to answer.
    Failed(RunError),
}

/// Where whoever ends a machine says so. The first one counts.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    over: AtomicBool,
    exit: Mutex<Option<Exit>>,
    reported: Condvar,
}

impl Outcome {
    /// Ends the machine. Later reports are dropped: two processors may fault at once.
    pub(crate) fn report(&self, exit: Exit) {
        let mut slot = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        if self.over.swap(true, Ordering::AcqRel) {
            tracing::debug!(?exit, "the machine was over already");
            return;
        }
        *slot = Some(exit);
        self.reported.notify_all();
    }

    /// Whether the machine is over: processors leave their loop then.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Blocks until the machine is over. For one caller: the answer is handed out once.
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
