//! One port (AHCI 1.3.1, section 3.3), between the vCPUs that write its registers and the worker of its drive.

mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) use self::state::State;
use super::drive::Outcome;
use super::fis::Shadow;
use super::hba::Hba;
use super::worker::{Server, ServerState};
use crate::memory::GuestMemory;
use crate::state::SectionError;

/// How long a command is waited for when the VM pauses or stops.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A port.
pub(super) struct Port {
    index: usize,
    hba: Arc<Hba>,
    state: Mutex<State>,
    changed: Condvar,
    rest: Mutex<Rest>,
}

/// What passes between the worker of a drive that is paused, and who saves or loads the VM. Locked after the state.
#[derive(Default)]
struct Rest {
    saved: Option<Result<ServerState, &'static str>>,
    to_load: Option<ServerState>,
    loaded: Option<Result<(), SectionError>>,
}

/// A slot that is to be carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) slot: u8,
    pub(super) list: u64,
    /// The drive has to be reset before.
    pub(super) reset: bool,
    epoch: u64,
}

/// How a job ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Done(Outcome),
    /// The slot, or what it names, is not in RAM.
    BusError,
    /// A change of the control register: only the slot is given back.
    Control,
    /// A software reset is over; the drive shows its signature.
    Reset,
}

impl Port {
    /// With the registers of its drive after a reset, if it has one.
    pub(super) fn new(index: usize, hba: Arc<Hba>, drive: Option<Shadow>) -> Self {
        Self {
            index,
            hba,
            state: Mutex::new(State::new(drive)),
            changed: Condvar::new(),
            rest: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The registers of a port that is paused, and what there is of its drive.
    pub(super) fn save(&self, has_drive: bool) -> Result<(State, Option<ServerState>), SectionError> {
        let state = self.state();
        if state.held || state.busy {
            return Err(SectionError::Unsavable("a request waits for the host"));
        }
        let saved = self.rest().saved.take();
        let server = match saved {
            Some(saved) => Some(saved.map_err(SectionError::Unsavable)?),
            None if has_drive => return Err(SectionError::Unsavable("the drive does not answer")),
            None => None,
        };
        Ok((state.clone(), server))
    }

    /// Takes such a state over; the port is paused then. The worker of the drive does its part, and is waited for.
    pub(super) fn load(&self, (saved, server): (State, Option<ServerState>)) -> Result<(), SectionError> {
        let mut state = self.state();
        state.load(saved)?;
        let Some(server) = server else { return Ok(()) };
        *self.rest() = Rest { to_load: Some(server), ..Rest::default() };
        self.changed.notify_all();
        let waits = |_: &mut State| self.rest().loaded.is_none();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, waits);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let loaded = self.rest().loaded.take();
        loaded.unwrap_or(Err(SectionError::Unsavable("the drive does not answer")))
    }

    pub(super) fn read(&self, register: u64) -> u32 {
        self.state().read(register)
    }

    pub(super) fn write(&self, register: u64, value: u32) {
        let mut state = self.state();
        state.write(register, value);
        // Interrupt status, interrupt enable and control: the line may have to rise.
        if matches!(register, 0x10 | 0x14 | 0x2c) {
            self.signal_state(&state);
        }
        drop(state);
        // The others are nothing to the worker, and some of them are written with every command.
        if matches!(register, 0x18 | 0x2c | 0x38) {
            self.changed.notify_all();
        }
    }

    /// Reset of the whole controller.
    pub(super) fn reset(&self) {
        self.state().reset();
        // An outcome that waits is obsolete now.
        self.changed.notify_all();
    }

    pub(super) fn is_busy(&self) -> bool {
        self.state().busy
    }

    /// Without it no command is begun.
    pub(super) fn set_bus_master(&self, yes: bool) {
        self.state().bus_master = yes;
        self.changed.notify_all();
    }

    /// Signals again what is pending.
    pub(super) fn signal(&self) {
        self.signal_state(&self.state());
    }

    fn signal_state(&self, state: &State) {
        if state.interrupts() {
            self.hba.raise(self.index);
        }
    }

    /// Has the worker finish the command that is carried out, and begin none.
    pub(super) fn ask_to_pause(&self) {
        self.state().paused = true;
        self.changed.notify_all();
    }

    /// Waits until that is so; whether it came to that in time.
    pub(super) fn is_paused_in_time(&self) -> bool {
        let state = self.state();
        let waits = |state: &mut State| !(state.held || !state.busy && self.rest().saved.is_some());
        let waited = self.changed.wait_timeout_while(state, PATIENCE, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Continues after [`Self::ask_to_pause`].
    pub(super) fn resume(&self) {
        let mut state = self.state();
        state.paused = false;
        self.rest().saved = None;
        drop(state);
        self.changed.notify_all();
    }

    /// The command that is carried out waits for the host, or not any more.
    pub(super) fn set_held(&self, held: bool) {
        self.state().held = held;
        self.changed.notify_all();
    }

    /// Has [`Self::next`] answer that there is nothing more.
    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.changed.notify_all();
    }

    /// Waits for a slot that was issued. `None` when the port is stopped. Meanwhile the server is saved and loaded.
    pub(super) fn next(&self, server: &mut Server) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.stopping {
                return None;
            }
            let to_load = self.rest().to_load.take();
            if let Some(to_load) = to_load {
                let loaded = server.load(to_load);
                self.rest().loaded = Some(loaded);
                self.changed.notify_all();
            }
            if state.paused {
                state = self.settle(state, server);
                if !state.paused {
                    continue;
                }
            } else {
                state.greet(server.memory());
            }
            if let Some(job) = state.begin() {
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has what was written on stable storage, and the state of the drive for [`Self::save`], unless that is so.
    fn settle<'a>(&'a self, state: MutexGuard<'a, State>, server: &mut Server) -> MutexGuard<'a, State> {
        if self.rest().saved.is_some() {
            return state;
        }
        // The host may take its time.
        drop(state);
        let saved = server.save();
        let state = self.state();
        if state.paused {
            self.rest().saved = Some(saved);
            self.changed.notify_all();
        }
        state
    }

    /// Posts how a job ended, unless it became obsolete: when the function may access memory.
    pub(super) fn complete(&self, memory: &GuestMemory, job: Job, end: End) {
        let mut state = self.state();
        while state.is_waiting(job) {
            state.held = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.held = false;
        self.changed.notify_all();
        if state.complete(memory, job, end) {
            self.signal_state(&state);
        }
    }
}
