use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::exit::Outcome;

/// What a vCPU of type `V` does while it waits at the gate, on its own thread.
type Visit<V> = Arc<dyn Fn(&V) + Send + Sync>;

/// Where vCPUs are paused while their VM is paused.
pub(crate) struct Gate<V> {
    /// A copy of the closed state, for vCPUs that only check.
    closed: AtomicBool,
    state: Mutex<GateState<V>>,
    changed: Condvar,
}

struct GateState<V> {
    closed: bool,
    /// vCPUs that wait at the gate.
    parked: usize,
    /// What waiting vCPUs are to do, and how many such orders there were.
    visit: Option<Visit<V>>,
    visits: u64,
    /// vCPUs that have followed the last one.
    visited: usize,
}

impl<V> Default for Gate<V> {
    fn default() -> Self {
        let state = GateState { closed: false, parked: 0, visit: None, visits: 0, visited: 0 };
        Self { closed: AtomicBool::new(false), state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<V> Gate<V> {
    fn state(&self) -> MutexGuard<'_, GateState<V>> {
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

    /// Blocks while the gate is closed and the VM is not over; meanwhile `vcpu` is visited. To end a VM, open its gate
    /// afterwards.
    pub(super) fn wait(&self, vcpu: &V, outcome: &Outcome) {
        let mut state = self.state();
        state.parked += 1;
        let mut visits = state.visits;
        self.changed.notify_all();
        while state.closed && !outcome.is_over() {
            if state.visits != visits {
                visits = state.visits;
                let visit = state.visit.clone();
                drop(state);
                if let Some(visit) = visit {
                    visit(vcpu);
                }
                state = self.state();
                state.visited += 1;
                self.changed.notify_all();
                continue;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.parked -= 1;
        self.changed.notify_all();
    }

    /// Has each of `all` vCPUs, which wait, call `visit` on its own thread. Whether all did: none does once the gate is
    /// open. One caller at a time.
    pub(super) fn visit(&self, all: usize, outcome: &Outcome, visit: Visit<V>) -> bool {
        let mut state = self.state();
        if !state.closed || state.parked < all {
            return false;
        }
        state.visit = Some(visit);
        state.visits += 1;
        state.visited = 0;
        self.changed.notify_all();
        let missing = |state: &mut GateState<V>| {
            state.closed && state.visited < all && state.parked >= all && !outcome.is_over()
        };
        let mut state = self.changed.wait_while(state, missing).unwrap_or_else(PoisonError::into_inner);
        state.visit = None;
        state.visited >= all
    }

    /// Blocks until `all` vCPUs wait, or the gate is opened.
    pub(super) fn gather(&self, all: usize) {
        let missing = |state: &mut GateState<V>| state.closed && state.parked < all;
        drop(self.changed.wait_while(self.state(), missing).unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    /// A vCPU that comes by once.
    fn passer(gate: &Arc<Gate<u8>>, outcome: &Arc<Outcome>) -> std::thread::JoinHandle<()> {
        let (gate, outcome) = (gate.clone(), outcome.clone());
        std::thread::spawn(move || gate.wait(&7, &outcome))
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
        gate.wait(&7, &outcome);
    }

    #[test]
    fn each_waiting_vcpu_is_visited_once() {
        let (gate, outcome) = (Arc::new(Gate::default()), Arc::new(Outcome::default()));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let visit = |gate: &Gate<u8>| {
            let seen = seen.clone();
            gate.visit(2, &outcome, Arc::new(move |vcpu| seen.lock().unwrap().push(*vcpu)))
        };
        assert!(!visit(&gate), "none waits");
        gate.close();
        let waiting = [passer(&gate, &outcome), passer(&gate, &outcome)];
        gate.gather(2);
        assert!(visit(&gate) && visit(&gate));
        assert_eq!(*seen.lock().unwrap(), [7; 4]);
        gate.open();
        waiting.into_iter().for_each(|one| one.join().unwrap());
        assert!(!visit(&gate));
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
        gate.wait(&7, &outcome);
    }
}
