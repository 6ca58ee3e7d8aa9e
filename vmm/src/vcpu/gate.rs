use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::exit::Outcome;

/// Where vCPUs are paused while their VM is paused.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// A copy of the closed state, for vCPUs that only check.
    closed: AtomicBool,
    standing: Mutex<Standing>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Standing {
    closed: bool,
    /// vCPUs that wait at the gate.
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

    /// vCPUs that reach it from now on wait.
    pub(super) fn close(&self) {
        self.set(true);
    }

    /// Releases all vCPUs; those that wait check again whether their VM is over.
    pub(super) fn open(&self) {
        self.set(false);
    }

    /// Whether a vCPU has to [`Gate::wait`].
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Blocks while the gate is closed and the VM is not over. To end a VM, open its gate afterwards.
    pub(super) fn wait(&self, outcome: &Outcome) {
        let mut standing = self.standing();
        standing.parked += 1;
        self.changed.notify_all();
        let stay = |standing: &mut Standing| standing.closed && !outcome.is_over();
        let mut standing = self.changed.wait_while(standing, stay).unwrap_or_else(PoisonError::into_inner);
        standing.parked -= 1;
    }

    /// Blocks until `all` vCPUs wait, or the gate is opened.
    pub(super) fn gather(&self, all: usize) {
        let missing = |standing: &mut Standing| standing.closed && standing.parked < all;
        drop(self.changed.wait_while(self.standing(), missing).unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::exit::Exit;

    /// A vCPU that comes by once.
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
