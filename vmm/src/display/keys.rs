/// A key of a PC keyboard, by its position and not by its label: the XT scan code (set 1), with the high bit
/// for those that follow a prefix 0xE0. RFB's extended key event names keys the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Key(u8);

/// Set if the scan code follows a prefix 0xE0.
const PREFIXED: u8 = 0x80;

/// What each unprefixed code of set 1 is in set 2, from which the keyboard controller translates (the 8042's own
/// table, inverted).
const SET2: [u8; 128] = [
    0x00, 0x76, 0x16, 0x1e, 0x26, 0x25, 0x2e, 0x36, 0x3d, 0x3e, 0x46, 0x45, 0x4e, 0x55, 0x66, 0x0d, //
    0x15, 0x1d, 0x24, 0x2d, 0x2c, 0x35, 0x3c, 0x43, 0x44, 0x4d, 0x54, 0x5b, 0x5a, 0x14, 0x1c, 0x1b, //
    0x23, 0x2b, 0x34, 0x33, 0x3b, 0x42, 0x4b, 0x4c, 0x52, 0x0e, 0x12, 0x5d, 0x1a, 0x22, 0x21, 0x2a, //
    0x32, 0x31, 0x3a, 0x41, 0x49, 0x4a, 0x59, 0x7c, 0x11, 0x29, 0x58, 0x05, 0x06, 0x04, 0x0c, 0x03, //
    0x0b, 0x83, 0x0a, 0x01, 0x09, 0x77, 0x7e, 0x6c, 0x75, 0x7d, 0x7b, 0x6b, 0x73, 0x74, 0x79, 0x69, //
    0x72, 0x7a, 0x70, 0x71, 0x84, 0x60, 0x61, 0x78, 0x07, 0x0f, 0x17, 0x1f, 0x27, 0x2f, 0x37, 0x3f, //
    0x47, 0x4f, 0x56, 0x5e, 0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40, 0x48, 0x50, 0x57, 0x6f, //
    0x13, 0x19, 0x39, 0x51, 0x53, 0x5c, 0x5f, 0x62, 0x63, 0x64, 0x65, 0x67, 0x68, 0x6a, 0x6d, 0x6e, //
];

/// The prefixed keys, and the others above 0x58, that Linux has a code for (`input-event-codes.h`).
const EVDEV: [(u8, u16); 33] = [
    (0x70, 93),
    (0x73, 89),
    (0x79, 92),
    (0x7b, 94),
    (0x7d, 124),
    (0x7e, 121),
    (0x9c, 96),
    (0x9d, 97),
    (0xa0, 113),
    (0xae, 114),
    (0xb0, 115),
    (0xb5, 98),
    (0xb7, 99),
    (0xb8, 100),
    (0xc6, 119),
    (0xc7, 102),
    (0xc8, 103),
    (0xc9, 104),
    (0xcb, 105),
    (0xcd, 106),
    (0xcf, 107),
    (0xd0, 108),
    (0xd1, 109),
    (0xd2, 110),
    (0xd3, 111),
    (0xdb, 125),
    (0xdc, 126),
    (0xdd, 127),
    (0xde, 116),
    (0xdf, 142),
    (0xe3, 143),
    (0x59, 117),
    (0x5c, 95),
];

impl Key {
    /// The left shift key.
    pub const SHIFT_LEFT: Self = Self(0x2a);
    /// The right shift key.
    pub const SHIFT_RIGHT: Self = Self(0x36);
    /// The left control key.
    pub const CONTROL_LEFT: Self = Self(0x1d);
    /// The left alt key.
    pub const ALT_LEFT: Self = Self(0x38);
    /// Pause, which alone has no key-up of its own.
    pub const PAUSE: Self = Self(0xc6);
    /// Print screen.
    pub const PRINT: Self = Self(0xb7);

    /// The key of an XT scan code as RFB writes it (`0x9c` for `0xe0 0x1c`); `None` for codes no key has.
    pub const fn from_xt(code: u32) -> Option<Self> {
        match code.to_le_bytes() {
            // Alt and print screen together have a code of their own.
            [0x54, 0, 0, 0] => Some(Self::PRINT),
            [0 | PREFIXED, _, _, _] => None,
            [code, 0, 0, 0] => Some(Self(code)),
            _ => None,
        }
    }

    /// The code, with the high bit for the prefix 0xE0.
    pub const fn xt(self) -> u8 {
        self.0
    }

    /// Whether its scan code follows a prefix 0xE0.
    pub const fn is_prefixed(self) -> bool {
        self.0 & PREFIXED != 0
    }

    /// In scan code set 2, without the prefix.
    pub fn set2(self) -> u8 {
        SET2.get(usize::from(self.0 & !PREFIXED)).copied().unwrap_or(0)
    }

    /// What the keyboard controller makes of a byte of set 2; `None` for bytes that it passes on as they are.
    pub fn set1_of_set2(byte: u8) -> Option<u8> {
        let at = SET2.iter().position(|set2| *set2 == byte).filter(|at| *at != 0)?;
        u8::try_from(at).ok()
    }

    /// Linux's code for it, which is virtio-input's too; `None` if it has none.
    pub fn evdev(self) -> Option<u16> {
        match self.0 {
            0x01..=0x53 | 0x56..=0x58 => Some(u16::from(self.0)),
            code => EVDEV.iter().find(|(xt, _)| *xt == code).map(|(_, evdev)| *evdev),
        }
    }

    /// All keys that there are.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=u8::MAX).map(Self).filter(|key| key.evdev().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_own_codes() {
        let mut set2: Vec<_> = Key::all().map(|key| (key.is_prefixed(), key.set2())).collect();
        let mut evdev: Vec<_> = Key::all().map(|key| key.evdev().unwrap()).collect();
        let keys = set2.len();
        assert_eq!(keys, 0x53 + 3 + EVDEV.len());
        set2.sort_unstable();
        set2.dedup();
        evdev.sort_unstable();
        evdev.dedup();
        assert_eq!((set2.len(), evdev.len()), (keys, keys));
    }

    #[test]
    fn known_keys_have_their_known_codes() {
        for (xt, prefixed, set2, evdev) in [
            (0x01, false, 0x76, 1),
            (0x1e, false, 0x1c, 30),
            (0x41, false, 0x83, 65),
            (0x3b, false, 0x05, 59),
            (0x57, false, 0x78, 87),
            (0x9c, true, 0x5a, 96),
            (0xcb, true, 0x6b, 105),
            (0xd3, true, 0x71, 111),
        ] {
            let key = Key::from_xt(xt).unwrap();
            assert_eq!(
                (key.is_prefixed(), key.set2(), key.evdev()),
                (prefixed, set2, Some(evdev)),
                "{xt:#x}"
            );
        }
    }

    #[test]
    fn codes_that_no_key_has_are_refused() {
        for code in [0, 0x80, 0x100, 0x1d_00, u32::MAX] {
            assert_eq!(Key::from_xt(code), None, "{code:#x}");
        }
        assert_eq!(Key::from_xt(0x54), Some(Key::PRINT));
    }
}
