//! The registers of the controller as a whole (AHCI 1.3.1, section 3.1), and its interrupt.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::PORTS;
use crate::pci::{ConfigSpace, Intx, Msi};
use crate::state::SectionError;

/// 64-bit addresses, NCQ, command list override, AHCI only, 6 Gbit/s, 32 slots, and six ports.
const CAP: u32 = 1 << 31 | 1 << 30 | 1 << 24 | 1 << 18 | 3 << 20 | 31 << 8 | 5;
const VERSION: u32 = 0x0001_0301;
const GHC_RESET: u32 = 1;
const GHC_INTERRUPTS: u32 = 1 << 1;
const GHC_AHCI: u32 = 1 << 31;

/// What a register write requires of the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Reset,
    /// Interrupts were taken note of.
    Acknowledged,
}

/// Shared by the ports. Locked after a port, never before.
pub(super) struct Hba {
    state: Mutex<State>,
    intx: Intx,
    msi: Msi,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    interrupts: bool,
    /// One bit a port.
    pending: u32,
    resetting: bool,
}

impl Hba {
    pub(super) fn new(msi: Msi) -> Self {
        Self { state: Mutex::default(), intx: Intx::default(), msi }
    }

    pub(super) fn intx(&self) -> &Intx {
        &self.intx
    }

    /// `busy`: an earlier command is still being carried out; reset is not complete until then.
    pub(super) fn read(&self, offset: u64, busy: impl FnOnce() -> bool) -> u32 {
        match offset {
            0x00 => CAP,
            0x04 => {
                let resetting = self.state().resetting && busy();
                let mut state = self.state();
                state.resetting &= resetting;
                let interrupts = if state.interrupts { GHC_INTERRUPTS } else { 0 };
                GHC_AHCI | interrupts | u32::from(state.resetting)
            }
            0x08 => self.state().pending,
            0x0c => (1 << PORTS) - 1,
            0x10 => VERSION,
            _ => 0,
        }
    }

    pub(super) fn write(&self, offset: u64, value: u32) -> Effect {
        let mut state = self.state();
        match offset {
            0x04 if value & GHC_RESET != 0 => {
                *state = State { resetting: true, ..State::default() };
                self.settle(&state);
                Effect::Reset
            }
            0x04 => {
                state.interrupts = value & GHC_INTERRUPTS != 0;
                self.settle(&state);
                self.message(&state);
                Effect::None
            }
            0x08 => {
                state.pending &= !value;
                self.settle(&state);
                Effect::Acknowledged
            }
            _ => Effect::None,
        }
    }

    pub(super) fn save(&self) -> State {
        self.state().clone()
    }

    /// Takes a saved state over; [`Self::follow`] comes afterwards.
    pub(super) fn load(&self, state: State) -> Result<(), SectionError> {
        if state.pending >> PORTS != 0 {
            return Err(SectionError::Invalid("a port that is not there has an interrupt"));
        }
        *self.state() = state;
        Ok(())
    }

    /// Signals what is pending once more.
    pub(super) fn signal(&self) {
        self.message(&self.state());
    }

    /// A port raises an interrupt; with MSI, one message per event.
    pub(super) fn raise(&self, port: usize) {
        let mut state = self.state();
        state.pending |= 1 << port;
        self.settle(&state);
        self.message(&state);
    }

    /// Follows the configuration space.
    pub(super) fn follow(&self, space: &ConfigSpace) {
        self.msi.follow(space);
        self.intx.follow(space);
        self.settle(&self.state());
    }

    fn settle(&self, state: &State) {
        let raised = state.interrupts && state.pending != 0;
        self.intx.set(|| raised && !self.msi.is_enabled());
    }

    fn message(&self, state: &State) {
        if state.interrupts && state.pending != 0 {
            self.msi.trigger();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
