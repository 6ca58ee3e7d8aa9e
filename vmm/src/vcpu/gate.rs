use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::exit::Outcome;

/// Where vCPUs are paused while their VM is paused.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// A copy of the closed state, for vCPUs that only check.
    closed: AtomicBool,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    closed: bool,
    /// vCPUs that wait at the gate.
    parked: usize,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, closed: bool) {
        let mut state = self.state();
        state.closed = closed;
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
        let mut state = self.state();
        state.parked += 1;
        self.changed.notify_all();
        let stay = |state: &mut GateState| state.closed && !outcome.is_over();
        let mut state = self.changed.wait_while(state, stay).unwrap_or_else(PoisonError::into_inner);
        state.parked -= 1;
    }

    /// Blocks until `all` vCPUs wait, or the gate is opened.
    pub(super) fn gather(&self, all: usize) {
        let missing = |state: &mut GateState| state.closed && state.parked < all;
        drop(self.changed.wait_while(self.state(), missing).unwrap_or_else(PoisonError::into_inner));
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
    fn vcpus_wait_and_continue_together() {
        let (gate, outcome) = (Arc::new(Gate::default()), Arc::new(Outcome::default()));
        gate.close();
        let waiting = [passer(&gate, &outcome), passer(&gate, &outcome)];
        gate.gather(2);
        assert!(gate.is_closed() && waiting.iter().all(|one| !one.is_finished()));
        gate.open();
        waiting.into_iter().for_each(|one| one.join().unwrap());
        // An open gate blocks no vCPU.
        gate.gather(1);
        gate.wait(&outcome);
    }

    #[test]
    fn no_vcpu_waits_in_a_stopped_vm() {
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
