//! A PS/2 keyboard and mouse on an i8042: what firmware, boot loaders and kernels without further drivers understand
//! (IBM PS/2 Hardware Interface Technical Reference, "Keyboard and Auxiliary Device Controller").

mod controller;
mod device;
mod keyboard;
mod mouse;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use controller::{Controller, Effect};

use crate::bus::BusDevice;
use crate::display::{Key, Keyboard, Leds, Pointer, Pointing};
use crate::irq::IrqLine;
use crate::vm::{Exit, Outcome};

/// Offsets from port 0x60.
const DATA: u64 = 0;
const COMMAND: u64 = 4;

/// The controller on its ports, with both devices.
pub(crate) struct Ps2 {
    state: Mutex<State>,
    outcome: Arc<Outcome>,
}

struct State {
    controller: Controller,
    keyboard_line: Line,
    mouse_line: Line,
}

/// An interrupt line, told only what changes.
struct Line {
    wire: Arc<dyn IrqLine>,
    high: bool,
}

impl Line {
    fn set(&mut self, high: bool) {
        if self.high != high {
            self.high = high;
            if let Err(error) = self.wire.set_level(high) {
                tracing::warn!(%error, "an interrupt of the keyboard controller is lost");
            }
        }
    }
}

impl State {
    /// What waits becomes readable, and the lines say so.
    fn settle(&mut self) {
        self.controller.load();
        let (keyboard, mouse) = self.controller.interrupts();
        self.keyboard_line.set(keyboard);
        self.mouse_line.set(mouse);
    }
}

impl Ps2 {
    /// With the lines of the keyboard and the mouse; the reset line goes to `outcome`.
    pub(crate) fn new(outcome: Arc<Outcome>, lines: (Arc<dyn IrqLine>, Arc<dyn IrqLine>)) -> Arc<Self> {
        let line = |wire| Line { wire, high: false };
        let (keyboard_line, mouse_line) = (line(lines.0), line(lines.1));
        let state = State { controller: Controller::default(), keyboard_line, mouse_line };
        Arc::new(Self { state: Mutex::new(state), outcome })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BusDevice for Ps2 {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let ([byte], mut state) = (data, self.state()) else { return };
        match offset {
            DATA => {
                *byte = state.controller.take();
                // The lines fall between two bytes, or there would be no edge for the second.
                let State { keyboard_line, mouse_line, .. } = &mut *state;
                keyboard_line.set(false);
                mouse_line.set(false);
                state.settle();
            }
            COMMAND => *byte = state.controller.status(),
            _ => {}
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let (&[byte], mut state) = (data, self.state()) else { return };
        let effect = match offset {
            DATA => state.controller.data(byte),
            COMMAND => state.controller.command(byte),
            _ => Effect::None,
        };
        state.settle();
        drop(state);
        if effect == Effect::Reset {
            self.outcome.report(Exit::Reset);
        }
    }
}

impl Keyboard for Ps2 {
    fn active(&self) -> bool {
        self.state().controller.keyboard.is_listened_to()
    }

    fn key(&self, key: Key, down: bool) {
        let mut state = self.state();
        state.controller.keyboard.key(key, down);
        state.settle();
    }

    fn leds(&self) -> Leds {
        self.state().controller.keyboard.leds()
    }
}

impl Pointer for Ps2 {
    fn active(&self) -> bool {
        self.state().controller.mouse.is_listened_to()
    }

    fn point(&self, pointing: Pointing) {
        let mut state = self.state();
        state.controller.mouse.point(pointing);
        state.settle();
    }
}

#[cfg(test)]
mod tests;
