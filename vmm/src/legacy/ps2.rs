//! A PS/2 keyboard and mouse on an i8042: what firmware, boot loaders and kernels without further drivers understand
//! (IBM PS/2 Hardware Interface Technical Reference, "Keyboard and Auxiliary Device Controller").

mod controller;
mod device;
mod keyboard;
mod mouse;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use controller::{Controller, Effect};

use crate::bus::BusDevice;
use crate::display::{Key, Keyboard, Leds, Pointer, Pointing};
use crate::exit::{Exit, Outcome};
use crate::irq::IrqLine;
use crate::state::{Section, SectionError};

/// Offsets from port 0x60.
const DATA: u64 = 0;
const COMMAND: u64 = 4;
/// Between two keys, or a key's going down and up.
const REST: Duration = Duration::from_millis(10);
/// Of the thread that wakes the keyboard.
const STACK: usize = 64 << 10;

/// The controller on its ports, with both devices.
pub(crate) struct Ps2 {
    shared: Arc<Shared>,
    outcome: Arc<Outcome>,
    waker: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    controller: Controller,
    keyboard_line: Line,
    mouse_line: Line,
    over: bool,
}

/// An interrupt line that is set only on changes.
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
    /// Pending data becomes readable, and the lines follow.
    fn settle(&mut self, now: Instant) {
        self.controller.load(now);
        let (keyboard, mouse) = self.controller.interrupts();
        self.keyboard_line.set(keyboard);
        self.mouse_line.set(mouse);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the keyboard was idle and has data again.
    fn wake(&self) {
        let mut state = self.state();
        while !state.over {
            let now = Instant::now();
            state = match state.controller.wakes_at() {
                Some(at) if at <= now => {
                    state.settle(now);
                    state
                }
                Some(at) => {
                    let waited = self.changed.wait_timeout(state, at.duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Ps2 {
    /// With the lines of the keyboard and the mouse; the reset line goes to `outcome`.
    pub(crate) fn new(
        outcome: Arc<Outcome>,
        lines: (Arc<dyn IrqLine>, Arc<dyn IrqLine>),
    ) -> io::Result<Arc<Self>> {
        Self::with_rest(outcome, lines, REST)
    }

    fn with_rest(
        outcome: Arc<Outcome>,
        lines: (Arc<dyn IrqLine>, Arc<dyn IrqLine>),
        rest: Duration,
    ) -> io::Result<Arc<Self>> {
        let line = |wire| Line { wire, high: false };
        let (keyboard_line, mouse_line) = (line(lines.0), line(lines.1));
        let state = State { controller: Controller::new(rest), keyboard_line, mouse_line, over: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let waking = shared.clone();
        let builder = std::thread::Builder::new().name("keyboard".to_owned()).stack_size(STACK);
        let waker = Some(builder.spawn(move || waking.wake())?);
        Ok(Arc::new(Self { shared, outcome, waker }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// After whatever happened.
    fn settle(&self, state: &mut State, now: Instant) {
        state.settle(now);
        if state.controller.wakes_at().is_some() {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Ps2 {
    fn drop(&mut self) {
        self.state().over = true;
        self.shared.changed.notify_one();
        if self.waker.take().is_some_and(|waker| waker.join().is_err()) {
            tracing::error!("the keyboard's thread panicked");
        }
    }
}

impl Section for Ps2 {
    const TAG: &'static str = "ps2";
    const VERSION: u16 = 1;
    type State = Controller;

    fn save(&self) -> Result<Controller, SectionError> {
        Ok(self.state().controller.clone())
    }

    fn load(&self, saved: Controller) -> Result<(), SectionError> {
        let mut state = self.state();
        state.controller.restore(saved)?;
        self.settle(&mut state, Instant::now());
        Ok(())
    }

    /// No viewer holds a key or a button of a VM that was loaded.
    fn loaded(&self) {
        let mut state = self.state();
        state.controller.keyboard.release_all();
        state.controller.mouse.release_all();
        self.settle(&mut state, Instant::now());
    }
}

impl BusDevice for Ps2 {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let ([byte], mut state) = (data, self.state()) else { return };
        match offset {
            DATA => {
                let now = Instant::now();
                *byte = state.controller.take(now);
                // The lines fall between two bytes, or there would be no edge for the second.
                let State { keyboard_line, mouse_line, .. } = &mut *state;
                keyboard_line.set(false);
                mouse_line.set(false);
                self.settle(&mut state, now);
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
        self.settle(&mut state, Instant::now());
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
        self.settle(&mut state, Instant::now());
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
        self.settle(&mut state, Instant::now());
    }
}

#[cfg(test)]
mod tests;
