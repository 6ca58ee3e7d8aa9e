use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::vm::Outcome;

/// Where processors stand still while their machine is paused.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// What `standing` says, for processors that only look.
    closed: AtomicBool,
    standing: Mutex<Standing>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Standing {
    closed: bool,
    /// Processors that wait at the gate.
    parked: usize,
}

impl Gate {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, closed: bool) {
        let mut standing = self.standing();
        standing.closed = closed;
        self.closed.store(closed, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Whoever comes to it from now on waits.
    pub(super) fn close(&self) {
        self.set(true);
    }

    /// Everybody goes on; those who wait look again whether their machine is over.
    pub(super) fn open(&self) {
        self.set(false);
    }

    /// Whether a processor has to [`Gate::wait`].
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Blocks while the gate is closed and the machine is not over. Whoever ends a machine opens its gate after that.
    pub(super) fn wait(&self, outcome: &Outcome) {
        let mut standing = self.standing();
        standing.parked += 1;
        self.changed.notify_all();
        let stay = |standing: &mut Standing| standing.closed && !outcome.is_over();
        let mut standing = self.changed.wait_while(standing, stay).unwrap_or_else(PoisonError::into_inner);
        standing.parked -= 1;
    }

    /// Blocks until `all` processors wait, or the gate is opened.
    pub(super) fn gather(&self, all: usize) {
        let missing = |standing: &mut Standing| standing.closed && standing.parked < all;
        drop(self.changed.wait_while(self.standing(), missing).unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::vm::Exit;

    /// A processor that comes by once.
    fn passer(gate: &Arc<Gate>, outcome: &Arc<Outcome>) -> std::thread::JoinHandle<()> {
        let (gate, outcome) = (gate.clone(), outcome.clone());
        std::thread::spawn(move || gate.wait(&outcome))
    }

    #[test]
    fn processors_wait_together_and_go_on_together() {
        let (gate, outcome) = (Arc::new(Gate::default()), Arc::new(Outcome::default()));
        gate.close();
        let waiting = [passer(&gate, &outcome), passer(&gate, &outcome)];
        gate.gather(2);
        assert!(gate.is_closed() && waiting.iter().all(|one| !one.is_finished()));
        gate.open();
        waiting.into_iter().for_each(|one| one.join().unwrap());
        // Nobody is waited for at an open gate, and nobody waits.
        gate.gather(1);
        gate.wait(&outcome);
    }

    #[test]
    fn nobody_waits_in_a_machine_that_is_over() {
        let (gate, outcome) = (Arc::new(Gate::default()), Arc::new(Outcome::default()));
        gate.close();
        let waiting = passer(&gate, &outcome);
        gate.gather(1);
        outcome.report(Exit::Killed);
        gate.open();
        waiting.join().unwrap();
        gate.close();
        gate.wait(&outcome);
    }
}
