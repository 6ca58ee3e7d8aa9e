use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::device::Sent;
use super::keyboard::Keyboard;
use super::mouse::Mouse;
use crate::display::Key;
use crate::state::SectionError;

/// Status register.
const OUTPUT_FULL: u8 = 1 << 0;
const SYSTEM: u8 = 1 << 2;
const WAS_COMMAND: u8 = 1 << 3;
const UNLOCKED: u8 = 1 << 4;
const OUTPUT_IS_MOUSE: u8 = 1 << 5;

/// Command byte.
const KEYBOARD_INTERRUPT: u8 = 1 << 0;
const MOUSE_INTERRUPT: u8 = 1 << 1;
const KEYBOARD_OFF: u8 = 1 << 4;
const MOUSE_OFF: u8 = 1 << 5;
const TRANSLATE: u8 = 1 << 6;

/// Output port: not in reset, A20 open.
const OUTPUT_PORT: u8 = 0b11;
const NOT_RESET: u8 = 1 << 0;
const BREAK: u8 = 0xf0;

/// What a write leads to outside of the controller. The A20 gate is always open: only code of the 1980s closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Reset,
}

/// Who sent a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum From {
    Keyboard,
    Mouse,
}

/// The controller and both devices. Interrupt lines are outputs of its state.
///
/// After the guest has read what one key did the keyboard rests before it sends what the next one did. UEFI firmware
/// looks every 20 ms, reads as long as there is something, and keeps the last 31 bytes of what it read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Controller {
    pub(super) keyboard: Keyboard,
    pub(super) mouse: Mouse,
    #[serde(skip)]
    rest: Duration,
    /// When the keyboard has rested.
    #[serde(skip)]
    rested: Option<Instant>,
    command_byte: u8,
    status: u8,
    /// The command whose argument the next byte of data is.
    awaited: Option<u8>,
    output: Option<(Sent, From)>,
    /// What the controller itself answers, before anything the devices send.
    answer: Option<(Sent, From)>,
    last: u8,
    /// The byte before was the prefix of a key-up, which translation folds into the next.
    breaking: bool,
}

impl Controller {
    /// As after a reset. The keyboard rests so long between keys.
    pub(super) fn new(rest: Duration) -> Self {
        Self {
            keyboard: Keyboard::default(),
            mouse: Mouse::default(),
            rest,
            rested: None,
            command_byte: KEYBOARD_INTERRUPT | MOUSE_INTERRUPT | TRANSLATE | SYSTEM,
            status: SYSTEM | UNLOCKED,
            awaited: None,
            output: None,
            answer: None,
            last: 0,
            breaking: false,
        }
    }

    /// Takes a saved state over. The keyboard has rested.
    pub(super) fn restore(&mut self, saved: Self) -> Result<(), SectionError> {
        if !saved.keyboard.is_possible() || !saved.mouse.is_possible() {
            return Err(SectionError::Invalid("more waits in it than a keyboard or a mouse keeps"));
        }
        *self = Self { rest: self.rest, ..saved };
        Ok(())
    }

    /// The status register.
    pub(super) fn status(&self) -> u8 {
        let output = match self.output {
            None => 0,
            Some((_, From::Keyboard)) => OUTPUT_FULL,
            Some((_, From::Mouse)) => OUTPUT_FULL | OUTPUT_IS_MOUSE,
        };
        self.status | output
    }

    /// Whether the lines of the keyboard and the mouse are high.
    pub(super) fn interrupts(&self) -> (bool, bool) {
        let from = self.output.map(|(_, from)| from);
        let on = |bit: u8| self.command_byte & bit != 0;
        (
            from == Some(From::Keyboard) && on(KEYBOARD_INTERRUPT),
            from == Some(From::Mouse) && on(MOUSE_INTERRUPT),
        )
    }

    /// Reads the output buffer; what was read last if it is empty.
    pub(super) fn take(&mut self, now: Instant) -> u8 {
        if let Some((sent, from)) = self.output.take() {
            self.last = sent.byte;
            if sent.ends && from == From::Keyboard {
                self.rested = Some(now + self.rest);
            }
        }
        self.last
    }

    /// When there will be something to [`load`](Self::load), if nothing else happens.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        self.rested.filter(|_| self.keyboard.sender.has_events())
    }

    /// Fills the output buffer, if it is empty and a device has data.
    pub(super) fn load(&mut self, now: Instant) {
        self.rested = self.rested.filter(|at| *at > now);
        if self.output.is_none() {
            self.output = self.answer.take();
        }
        while self.output.is_none() && self.command_byte & KEYBOARD_OFF == 0 {
            let Some(sent) = self.keyboard.sender.next(self.rested.is_some()) else { break };
            let byte = self.translated(sent.byte);
            self.output = byte.map(|byte| (Sent { byte, ..sent }, From::Keyboard));
        }
        if self.output.is_none() && self.command_byte & MOUSE_OFF == 0 {
            self.mouse.report();
            self.output = self.mouse.sender.next(false).map(|sent| (sent, From::Mouse));
        }
    }

    /// Set 2 as set 1; `None` if the byte is part of the next one.
    fn translated(&mut self, byte: u8) -> Option<u8> {
        if self.command_byte & TRANSLATE == 0 {
            return Some(byte);
        }
        if byte == BREAK {
            self.breaking = true;
            return None;
        }
        let bit = if std::mem::take(&mut self.breaking) { 0x80 } else { 0 };
        Some(Key::set1_of_set2(byte).map_or(byte, |set1| set1 | bit))
    }

    /// A write to the command port.
    pub(super) fn command(&mut self, command: u8) -> Effect {
        self.status |= WAS_COMMAND;
        self.awaited = None;
        let mut answer = None;
        match command {
            0x20..=0x3f => answer = Some(if command == 0x20 { self.command_byte } else { 0 }),
            0x60..=0x7f | 0xd1..=0xd4 => self.awaited = Some(command),
            0xa7 => self.command_byte |= MOUSE_OFF,
            0xa8 => self.command_byte &= !MOUSE_OFF,
            // Interface tests of the mouse and the keyboard: no error.
            0xa9 | 0xab => answer = Some(0),
            0xaa => {
                self.status |= SYSTEM;
                answer = Some(0x55);
            }
            0xad => self.command_byte |= KEYBOARD_OFF,
            0xae => self.command_byte &= !KEYBOARD_OFF,
            // The input port: the keyboard is not locked.
            0xc0 => answer = Some(0x80),
            0xd0 => answer = Some(OUTPUT_PORT),
            // Pulses the lines whose bits are clear; the lowest is wired to the reset of the VM.
            0xf0..=0xff if command & NOT_RESET == 0 => return Effect::Reset,
            _ => {}
        }
        if let Some(byte) = answer {
            self.respond(byte, From::Keyboard);
        }
        Effect::None
    }

    /// A write to the data port.
    pub(super) fn data(&mut self, byte: u8) -> Effect {
        self.status &= !WAS_COMMAND;
        match self.awaited.take() {
            Some(0x60) => self.command_byte = byte,
            Some(0xd1) if byte & NOT_RESET == 0 => return Effect::Reset,
            Some(0xd2) => self.respond(byte, From::Keyboard),
            Some(0xd3) => self.respond(byte, From::Mouse),
            Some(0xd4) => {
                self.command_byte &= !MOUSE_OFF;
                self.mouse.receive(byte);
            }
            // The controller's own memory, and the gate of A20.
            Some(_) => {}
            None => {
                self.command_byte &= !KEYBOARD_OFF;
                self.breaking = false;
                self.keyboard.receive(byte);
            }
        }
        Effect::None
    }

    /// The controller's answer replaces unread bytes.
    fn respond(&mut self, byte: u8, from: From) {
        self.output = None;
        self.answer = Some((Sent { byte, ends: false }, from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(controller: &mut Controller, now: Instant) -> Vec<u8> {
        let all = std::iter::from_fn(|| {
            controller.load(now);
            (controller.status() & OUTPUT_FULL != 0).then(|| controller.take(now))
        });
        all.collect()
    }

    #[test]
    fn reading_all_bytes_gives_one_key_at_a_time() {
        let rest = Duration::from_millis(10);
        let (mut controller, mut now) = (Controller::new(rest), Instant::now());
        for xt in [0x1e, 0xcb] {
            let key = Key::from_xt(xt).unwrap();
            controller.keyboard.key(key, true);
            controller.keyboard.key(key, false);
        }
        let mut reads = Vec::new();
        for _ in 0..4 {
            reads.push(read(&mut controller, now));
            assert_eq!(read(&mut controller, now + rest / 2), [], "it rests");
            controller.data(0xee);
            assert_eq!(read(&mut controller, now), [0xee], "and answers");
            now += rest;
        }
        assert_eq!(reads, [&[0x1e][..], &[0x9e], &[0xe0, 0x4b], &[0xe0, 0xcb]]);
        assert_eq!(controller.wakes_at(), None);
    }
}
