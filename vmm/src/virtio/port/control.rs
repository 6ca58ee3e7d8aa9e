//! What driver and device tell each other about the one port (section 5.3.6.2).

use std::collections::VecDeque;

/// Of a message without a name: a port, an event, a value.
pub(super) const SIZE: usize = 8;
/// The port.
const ID: u32 = 0;
/// Messages that wait for buffers. A driver that asks again and again without giving any gets no more of them.
const WAITING: usize = 8;

/// Events.
const DEVICE_READY: u16 = 0;
const DEVICE_ADD: u16 = 1;
const PORT_READY: u16 = 3;
const PORT_OPEN: u16 = 6;
const PORT_NAME: u16 = 7;

/// The device's side.
pub(super) struct Control {
    name: Vec<u8>,
    /// A driver is there that knows of ports.
    active: bool,
    waiting: VecDeque<Vec<u8>>,
}

fn message(event: u16, value: u16) -> Vec<u8> {
    [&ID.to_le_bytes()[..], &event.to_le_bytes(), &value.to_le_bytes()].concat()
}

impl Control {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.as_bytes().to_vec(), active: false, waiting: VecDeque::new() }
    }

    /// Nothing is left of what was before.
    pub(super) fn begin(&mut self, active: bool) {
        self.active = active;
        self.waiting.clear();
    }

    /// Hears a message of the driver; some of them say whether a program has the port open.
    pub(super) fn hear(&mut self, message: [u8; SIZE]) -> Option<bool> {
        let [i0, i1, i2, i3, e0, e1, v0, v1] = message;
        let (id, event) = (u32::from_le_bytes([i0, i1, i2, i3]), u16::from_le_bytes([e0, e1]));
        let yes = u16::from_le_bytes([v0, v1]) != 0;
        match (event, id) {
            _ if !self.active => None,
            (DEVICE_READY, _) if yes => {
                self.say(self::message(DEVICE_ADD, 1));
                None
            }
            (PORT_READY, ID) if yes => {
                let mut name = self::message(PORT_NAME, 1);
                name.extend(&self.name);
                self.say(name);
                // This side is always open.
                self.say(self::message(PORT_OPEN, 1));
                None
            }
            (PORT_OPEN, ID) => Some(yes),
            _ => {
                tracing::debug!(id, event, yes, "a control message means nothing here");
                None
            }
        }
    }

    fn say(&mut self, message: Vec<u8>) {
        if self.waiting.len() < WAITING {
            self.waiting.push_back(message);
        }
    }

    /// What the driver has to be told next.
    pub(super) fn next(&self) -> Option<&[u8]> {
        self.waiting.front().map(Vec::as_slice)
    }

    /// It was told.
    pub(super) fn told(&mut self) {
        self.waiting.pop_front();
    }
}
