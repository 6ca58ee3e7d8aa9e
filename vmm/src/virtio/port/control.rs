//! Control messages of the one port (section 5.3.6.2).

use std::collections::VecDeque;

/// Of a message without a name: a port, an event, a value.
pub(super) const SIZE: usize = 8;
/// The port.
const ID: u32 = 0;
/// Limit of messages that wait for buffers. A driver that sends messages without giving buffers gets no more of them.
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

    /// Whether it is active, and what waits.
    pub(super) fn save(&self) -> (bool, Vec<Vec<u8>>) {
        (self.active, self.waiting.iter().cloned().collect())
    }

    /// Takes what was saved; whether there is room for it.
    pub(super) fn load(&mut self, (active, waiting): (bool, Vec<Vec<u8>>)) -> bool {
        let longest = SIZE + self.name.len();
        let fits = waiting.len() <= WAITING && waiting.iter().all(|message| message.len() <= longest);
        if fits {
            (self.active, self.waiting) = (active, waiting.into());
        }
        fits
    }

    /// Handles a message of the driver; `Some` where a program opened or closed the port.
    pub(super) fn handle(&mut self, message: [u8; SIZE]) -> Option<bool> {
        let [i0, i1, i2, i3, e0, e1, v0, v1] = message;
        let (id, event) = (u32::from_le_bytes([i0, i1, i2, i3]), u16::from_le_bytes([e0, e1]));
        let yes = u16::from_le_bytes([v0, v1]) != 0;
        match (event, id) {
            _ if !self.active => None,
            (DEVICE_READY, _) if yes => {
                self.queue(self::message(DEVICE_ADD, 1));
                None
            }
            (PORT_READY, ID) if yes => {
                let mut name = self::message(PORT_NAME, 1);
                name.extend(&self.name);
                self.queue(name);
                // This side is always open.
                self.queue(self::message(PORT_OPEN, 1));
                None
            }
            (PORT_OPEN, ID) => Some(yes),
            _ => {
                tracing::debug!(id, event, yes, "a control message means nothing here");
                None
            }
        }
    }

    fn queue(&mut self, message: Vec<u8>) {
        if self.waiting.len() < WAITING {
            self.waiting.push_back(message);
        }
    }

    /// The next message for the driver.
    pub(super) fn next(&self) -> Option<&[u8]> {
        self.waiting.front().map(Vec::as_slice)
    }

    /// It was sent.
    pub(super) fn sent(&mut self) {
        self.waiting.pop_front();
    }
}
