use super::keys::Key;

/// How a symbol is typed on a US keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stroke {
    /// The key.
    pub key: Key,
    /// Whether shift is held; `None` where it does not matter.
    pub shift: Option<bool>,
    /// Whether caps lock inverts that.
    pub letter: bool,
}

/// The printable keys in rows, from the scan code each row begins at: as they are, and with shift.
const ROWS: [(u8, &str, &str); 5] = [
    (0x02, "1234567890-=", "!@#$%^&*()_+"),
    (0x10, "qwertyuiop[]", "QWERTYUIOP{}"),
    (0x1e, "asdfghjkl;'`", "ASDFGHJKL:\"~"),
    (0x2b, "\\zxcvbnm,./", "|ZXCVBNM<>?"),
    (0x39, " ", " "),
];

/// X11 keysyms of keys without a character (`keysymdef.h`), and the scan code of the key.
const NAMED: [(u32, u8); 83] = [
    (0xff08, 0x0e), // BackSpace
    (0xff09, 0x0f), // Tab
    (0xfe20, 0x0f), // ISO_Left_Tab
    (0xff0a, 0x1c), // Linefeed
    (0xff0d, 0x1c), // Return
    (0xff13, 0xc6), // Pause
    (0xff6b, 0xc6), // Break
    (0xff14, 0x46), // Scroll_Lock
    (0xff15, 0xb7), // Sys_Req
    (0xff61, 0xb7), // Print
    (0xff1b, 0x01), // Escape
    (0xff50, 0xc7), // Home
    (0xff51, 0xcb), // Left
    (0xff52, 0xc8), // Up
    (0xff53, 0xcd), // Right
    (0xff54, 0xd0), // Down
    (0xff55, 0xc9), // Page_Up
    (0xff56, 0xd1), // Page_Down
    (0xff57, 0xcf), // End
    (0xff63, 0xd2), // Insert
    (0xffff, 0xd3), // Delete
    (0xff67, 0xdd), // Menu
    (0xff7f, 0x45), // Num_Lock
    (0xff8d, 0x9c), // KP_Enter
    (0xff95, 0x47), // KP_Home
    (0xff96, 0x4b), // KP_Left
    (0xff97, 0x48), // KP_Up
    (0xff98, 0x4d), // KP_Right
    (0xff99, 0x50), // KP_Down
    (0xff9a, 0x49), // KP_Page_Up
    (0xff9b, 0x51), // KP_Page_Down
    (0xff9c, 0x4f), // KP_End
    (0xff9d, 0x4c), // KP_Begin
    (0xff9e, 0x52), // KP_Insert
    (0xff9f, 0x53), // KP_Delete
    (0xffaa, 0x37), // KP_Multiply
    (0xffab, 0x4e), // KP_Add
    (0xffac, 0x7e), // KP_Separator
    (0xffad, 0x4a), // KP_Subtract
    (0xffae, 0x53), // KP_Decimal
    (0xffaf, 0xb5), // KP_Divide
    (0xffb0, 0x52), // KP_0
    (0xffb1, 0x4f),
    (0xffb2, 0x50),
    (0xffb3, 0x51),
    (0xffb4, 0x4b),
    (0xffb5, 0x4c),
    (0xffb6, 0x4d),
    (0xffb7, 0x47),
    (0xffb8, 0x48),
    (0xffb9, 0x49), // KP_9
    (0xffbd, 0x59), // KP_Equal
    (0xffbe, 0x3b), // F1
    (0xffbf, 0x3c),
    (0xffc0, 0x3d),
    (0xffc1, 0x3e),
    (0xffc2, 0x3f),
    (0xffc3, 0x40),
    (0xffc4, 0x41),
    (0xffc5, 0x42),
    (0xffc6, 0x43),
    (0xffc7, 0x44),      // F10
    (0xffc8, 0x57),      // F11
    (0xffc9, 0x58),      // F12
    (0xffe1, 0x2a),      // Shift_L
    (0xffe2, 0x36),      // Shift_R
    (0xffe3, 0x1d),      // Control_L
    (0xffe4, 0x9d),      // Control_R
    (0xffe5, 0x3a),      // Caps_Lock
    (0xffe6, 0x3a),      // Shift_Lock
    (0xffe7, 0xdb),      // Meta_L
    (0xffe8, 0xdc),      // Meta_R
    (0xffe9, 0x38),      // Alt_L
    (0xffea, 0xb8),      // Alt_R
    (0xfe03, 0xb8),      // ISO_Level3_Shift
    (0xff7e, 0xb8),      // Mode_switch
    (0xffeb, 0xdb),      // Super_L
    (0xffec, 0xdc),      // Super_R
    (0x1008_ff11, 0xae), // XF86AudioLowerVolume
    (0x1008_ff12, 0xa0), // XF86AudioMute
    (0x1008_ff13, 0xb0), // XF86AudioRaiseVolume
    (0x1008_ff2a, 0xde), // XF86PowerOff
    (0x1008_ff2f, 0xdf), // XF86Sleep
];

/// X11's keysyms of Unicode characters begin here.
const UNICODE: u32 = 0x0100_0000;

impl Stroke {
    /// How the X11 keysym `symbol` is typed; `None` if a US keyboard does not have it.
    pub fn of(symbol: u32) -> Option<Self> {
        if let Some((_, code)) = NAMED.iter().find(|(named, _)| *named == symbol) {
            return Key::from_xt((*code).into()).map(|key| Self { key, shift: None, letter: false });
        }
        let character = match symbol {
            0x20..=0x7e => char::from_u32(symbol)?,
            _ => char::from_u32(symbol.checked_sub(UNICODE)?)?,
        };
        ROWS.iter().find_map(|(start, plain, shifted)| {
            let (at, shift) = match plain.chars().position(|known| known == character) {
                Some(at) => (at, false),
                None => (shifted.chars().position(|known| known == character)?, true),
            };
            let key = Key::from_xt(u32::from(*start) + u32::try_from(at).ok()?)?;
            let shift = (character != ' ').then_some(shift);
            Some(Self { key, shift, letter: character.is_ascii_alphabetic() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printable_character_has_a_stroke() {
        let mut seen = Vec::new();
        for character in ' '..='~' {
            let stroke = Stroke::of(character.into()).unwrap_or_else(|| panic!("{character:?}"));
            assert_eq!(Stroke::of(UNICODE + u32::from(character)), Some(stroke));
            seen.push((stroke.key.xt(), stroke.shift));
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 95);
    }

    #[test]
    fn known_symbols_have_their_known_keys() {
        for (symbol, code, shift) in [
            (u32::from('a'), 0x1e, Some(false)),
            (u32::from('Z'), 0x2c, Some(true)),
            (u32::from('?'), 0x35, Some(true)),
            (u32::from('~'), 0x29, Some(true)),
            (u32::from('\\'), 0x2b, Some(false)),
            (u32::from(' '), 0x39, None),
            (0xff0d, 0x1c, None),
            (0xffc9, 0x58, None),
        ] {
            let stroke = Stroke::of(symbol).unwrap();
            assert_eq!((stroke.key.xt(), stroke.shift), (code, shift), "{symbol:#x}");
        }
    }

    #[test]
    fn what_a_keyboard_does_not_have_is_no_stroke() {
        for symbol in [0, 0x1f, 0x7f, 0xe4, 0x0100_20ac, 0x0111_0000, u32::MAX] {
            assert_eq!(Stroke::of(symbol), None, "{symbol:#x}");
        }
    }

    #[test]
    fn every_named_key_has_a_code_of_linux() {
        for (symbol, code) in NAMED {
            assert!(Key::from_xt(code.into()).is_some_and(|key| key.evdev().is_some()), "{symbol:#x}");
        }
    }
}
