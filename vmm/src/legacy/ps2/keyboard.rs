use serde::{Deserialize, Serialize};

use super::device::{ACK, RESEND, SELF_TEST_PASSED, Sender};
use crate::display::{Key, Leds};

const IDENTITY: [u8; 2] = [0xab, 0x83];
const BREAK: u8 = 0xf0;
const PREFIX: u8 = 0xe0;
/// Pause in sets 1 and 2: down and up at once.
const PAUSE: [&[u8]; 2] =
    [&[0xe1, 0x1d, 0x45, 0xe1, 0x9d, 0xc5], &[0xe1, 0x14, 0x77, 0xe1, 0xf0, 0x14, 0xf0, 0x77]];
/// Kept free for keys that come up again: three bytes each, should all be down.
const RESERVE: usize = 3 * 128;

/// A command whose argument is the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Awaited {
    Leds,
    ScanCodeSet,
    /// Typematic rate, or a key of set 3: taken and not followed.
    Ignored,
}

/// A keyboard with 105 keys, scan code sets 1 and 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Keyboard {
    pub(super) sender: Sender,
    awaited: Option<Awaited>,
    scanning: bool,
    set: u8,
    leds: u8,
    /// The keys whose press was reported to the guest.
    down: Vec<Key>,
}

impl Default for Keyboard {
    fn default() -> Self {
        let sender = Sender::default();
        Self { sender, awaited: None, scanning: true, set: 2, leds: 0, down: Vec::new() }
    }
}

impl Keyboard {
    /// Whether a guest and viewers can bring a keyboard to this state.
    pub(super) fn is_possible(&self) -> bool {
        let keys: Vec<Key> = Key::all().collect();
        self.sender.is_possible()
            && (1..=2).contains(&self.set)
            && self.leds < 8
            && self.down.len() <= keys.len()
            && self.down.iter().all(|key| keys.contains(key))
    }

    /// Every key comes up.
    pub(super) fn release_all(&mut self) {
        for key in self.down.clone() {
            self.key(key, false);
        }
    }

    pub(super) fn is_listened_to(&self) -> bool {
        self.scanning
    }

    pub(super) fn leds(&self) -> Leds {
        Leds { scroll: self.leds & 1 != 0, num: self.leds & 2 != 0, caps: self.leds & 4 != 0 }
    }

    /// A key went down or up. Where the guest does not read, keys are lost, but none stays down.
    pub(super) fn key(&mut self, key: Key, down: bool) {
        let known = self.down.contains(&key);
        if !self.scanning || (!down && !known) {
            return;
        }
        let reserve = if down { RESERVE } else { 0 };
        if self.sender.event(&self.scan_code(key, down), reserve) && down && !known {
            self.down.push(key);
        }
        if !down {
            self.down.retain(|held| *held != key);
        }
    }

    fn scan_code(&self, key: Key, down: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        if key == Key::PAUSE {
            // It has no key-up.
            return if down { PAUSE[usize::from(self.set == 2)].to_vec() } else { bytes };
        }
        if key.is_prefixed() {
            bytes.push(PREFIX);
        }
        match (self.set, down) {
            (1, true) => bytes.push(key.xt() & 0x7f),
            (1, false) => bytes.push(key.xt() | 0x80),
            (_, true) => bytes.push(key.set2()),
            (_, false) => bytes.extend([BREAK, key.set2()]),
        }
        bytes
    }

    /// A byte from the host.
    pub(super) fn receive(&mut self, byte: u8) {
        self.sender.begin_answer();
        match self.awaited.take() {
            Some(Awaited::Leds) if byte < 8 => {
                self.leds = byte;
                self.sender.answer(&[ACK]);
            }
            Some(Awaited::ScanCodeSet) => self.choose_set(byte),
            Some(Awaited::Ignored) if byte < 0xed => self.sender.answer(&[ACK]),
            Some(Awaited::Leds | Awaited::Ignored) | None => self.command(byte),
        }
    }

    fn choose_set(&mut self, set: u8) {
        match set {
            0 => self.sender.answer(&[ACK, self.set]),
            1 | 2 => {
                self.set = set;
                self.sender.forget_events();
                self.sender.answer(&[ACK]);
            }
            _ => self.sender.answer(&[RESEND]),
        }
    }

    fn command(&mut self, command: u8) {
        match command {
            0xed => self.awaited = Some(Awaited::Leds),
            0xee => return self.sender.answer(&[0xee]),
            0xf0 => self.awaited = Some(Awaited::ScanCodeSet),
            0xf2 => return self.sender.answer(&[ACK, IDENTITY[0], IDENTITY[1]]),
            0xf3 | 0xfb..=0xfd => self.awaited = Some(Awaited::Ignored),
            0xf4 => self.scanning = true,
            0xf5 => self.restore(false),
            0xf6 => self.restore(true),
            // Which keys repeat, in set 3.
            0xf7..=0xfa => {}
            0xfe => return self.sender.resend(),
            0xff => {
                self.restore(true);
                return self.sender.answer(&[ACK, SELF_TEST_PASSED]);
            }
            _ => return self.sender.answer(&[RESEND]),
        }
        self.sender.answer(&[ACK]);
    }

    fn restore(&mut self, scanning: bool) {
        self.sender.forget_events();
        self.down.clear();
        (self.scanning, self.set, self.leds) = (scanning, 2, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::ROOM;
    use super::*;

    fn sent(keyboard: &mut Keyboard) -> Vec<u8> {
        std::iter::from_fn(|| keyboard.sender.next(false)).map(|sent| sent.byte).collect()
    }

    fn send(keyboard: &mut Keyboard, bytes: &[u8]) -> Vec<u8> {
        bytes
            .iter()
            .flat_map(|byte| {
                keyboard.receive(*byte);
                sent(keyboard)
            })
            .collect()
    }

    fn key(xt: u32) -> Key {
        Key::from_xt(xt).unwrap()
    }

    #[test]
    fn keys_are_sent_in_the_chosen_set() {
        let mut keyboard = Keyboard::default();
        let press = |keyboard: &mut Keyboard, xt| {
            keyboard.key(key(xt), true);
            keyboard.key(key(xt), false);
            sent(keyboard)
        };
        assert_eq!(press(&mut keyboard, 0x1e), [0x1c, 0xf0, 0x1c]);
        assert_eq!(press(&mut keyboard, 0xcb), [0xe0, 0x6b, 0xe0, 0xf0, 0x6b]);
        assert_eq!(press(&mut keyboard, 0xc6), PAUSE[1]);
        assert_eq!(send(&mut keyboard, &[0xf0, 1]), [ACK, ACK]);
        assert_eq!(press(&mut keyboard, 0x1e), [0x1e, 0x9e]);
        assert_eq!(press(&mut keyboard, 0xcb), [0xe0, 0x4b, 0xe0, 0xcb]);
        assert_eq!(send(&mut keyboard, &[0xf0, 0]), [ACK, ACK, 1]);
        assert_eq!(send(&mut keyboard, &[0xf0, 3]), [ACK, RESEND]);
    }

    #[test]
    fn commands_are_answered_as_drivers_expect() {
        let mut keyboard = Keyboard::default();
        assert_eq!(send(&mut keyboard, &[0xff]), [ACK, SELF_TEST_PASSED]);
        assert_eq!(send(&mut keyboard, &[0xf2]), [ACK, 0xab, 0x83]);
        assert_eq!(send(&mut keyboard, &[0xee]), [0xee]);
        assert_eq!(send(&mut keyboard, &[0xfe]), [0xee]);
        assert_eq!(send(&mut keyboard, &[0xed, 4]), [ACK, ACK]);
        assert!(keyboard.leds().caps && !keyboard.leds().num);
        assert_eq!(send(&mut keyboard, &[0xed, 0xf4]), [ACK, ACK], "a command instead of an argument");
        assert_eq!(send(&mut keyboard, &[0x33]), [RESEND]);
    }

    #[test]
    fn a_guest_that_does_not_listen_is_sent_nothing() {
        let mut keyboard = Keyboard::default();
        send(&mut keyboard, &[0xf5]);
        keyboard.key(key(0x1e), true);
        send(&mut keyboard, &[0xf4]);
        keyboard.key(key(0x1e), false);
        assert!(sent(&mut keyboard).is_empty());
    }

    #[test]
    fn a_guest_that_does_not_read_loses_keys_and_keeps_none_down() {
        let mut keyboard = Keyboard::default();
        let keys: Vec<_> = Key::all().filter(|key| *key != Key::PAUSE).collect();
        for _ in 0..100 {
            keys.iter().for_each(|key| keyboard.key(*key, true));
        }
        let down = keyboard.down.len();
        keys.iter().for_each(|key| keyboard.key(*key, false));
        let bytes = sent(&mut keyboard);
        assert_eq!(bytes.iter().filter(|byte| **byte == BREAK).count(), down);
        assert!((ROOM - RESERVE..=ROOM).contains(&bytes.len()), "{}", bytes.len());
    }
}
