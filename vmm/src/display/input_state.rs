use super::keys::Key;
use super::keysym::Stroke;
use super::{Display, Pointing};

/// One viewer's input: keys and buttons that it holds down are released when it leaves.
pub struct InputState {
    display: Display,
    held: Vec<Key>,
    pointing: Pointing,
}

impl InputState {
    /// No key or button is pressed.
    pub fn new(display: Display) -> Self {
        Self { display, held: Vec::new(), pointing: Pointing::default() }
    }

    /// A key, by its position. Exact, whatever the guest's layout is.
    pub fn key(&mut self, key: Key, down: bool) {
        if down && !self.held.contains(&key) {
            self.held.push(key);
        } else if !down {
            self.held.retain(|held| *held != key);
        }
        self.display.key(key, down);
    }

    /// A symbol, from clients without scan codes: typed as on a US keyboard. Shift is pressed or let go for it
    /// if the client's layout has the symbol elsewhere, but not for shortcuts.
    pub fn symbol(&mut self, symbol: u32, down: bool) {
        let Some(stroke) = Stroke::of(symbol) else {
            tracing::trace!(symbol, "no key has this symbol");
            return;
        };
        let held = self.shifts();
        let wanted = stroke.shift.map(|shift| shift != (stroke.letter && self.display.leds().caps));
        let shortcut = self.held.iter().any(|key| key.evdev().is_some_and(is_shortcut));
        match wanted {
            Some(true) if down && held.is_empty() && !shortcut => {
                self.display.key(Key::SHIFT_LEFT, true);
                self.key(stroke.key, true);
                self.display.key(Key::SHIFT_LEFT, false);
            }
            Some(false) if down && !held.is_empty() && !shortcut && !stroke.letter => {
                held.iter().for_each(|shift| self.display.key(*shift, false));
                self.key(stroke.key, true);
                held.iter().for_each(|shift| self.display.key(*shift, true));
            }
            _ => self.key(stroke.key, down),
        }
    }

    fn shifts(&self) -> Vec<Key> {
        let is_shift = |key: &Key| matches!(*key, Key::SHIFT_LEFT | Key::SHIFT_RIGHT);
        self.held.iter().copied().filter(is_shift).collect()
    }

    /// The pointer.
    pub fn point(&mut self, pointing: Pointing) {
        self.pointing = pointing;
        self.display.point(pointing);
    }
}

/// Control, alt and the keys between them (Linux's codes).
fn is_shortcut(evdev: u16) -> bool {
    matches!(evdev, 29 | 97 | 56 | 125 | 126)
}

impl Drop for InputState {
    fn drop(&mut self) {
        for key in std::mem::take(&mut self.held) {
            self.display.key(key, false);
        }
        if self.pointing.buttons != 0 {
            self.display.point(Pointing { buttons: 0, ..self.pointing });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::input::{Keyboard, Leds, Pointer};
    use super::*;

    #[derive(Default)]
    struct Guest {
        keys: Mutex<Vec<(u8, bool)>>,
        points: Mutex<Vec<Pointing>>,
        caps: bool,
    }

    impl Keyboard for Guest {
        fn active(&self) -> bool {
            true
        }
        fn key(&self, key: Key, down: bool) {
            self.keys.lock().unwrap().push((key.xt(), down));
        }
        fn leds(&self) -> Leds {
            Leds { caps: self.caps, ..Leds::default() }
        }
    }

    impl Pointer for Guest {
        fn active(&self) -> bool {
            true
        }
        fn point(&self, pointing: Pointing) {
            self.points.lock().unwrap().push(pointing);
        }
    }

    fn typed(guest: Guest, act: impl FnOnce(&mut InputState)) -> (Vec<(u8, bool)>, Vec<Pointing>) {
        let guest = Arc::new(guest);
        let display = Display::default();
        display.attach_keyboard(&(guest.clone() as Arc<dyn Keyboard>));
        display.attach_pointer(&(guest.clone() as Arc<dyn Pointer>));
        act(&mut InputState::new(display));
        let keys = guest.keys.lock().unwrap().clone();
        let points = guest.points.lock().unwrap().clone();
        (keys, points)
    }

    const SHIFT: u8 = 0x2a;
    const A: u8 = 0x1e;
    const SLASH: u8 = 0x35;

    #[test]
    fn shift_is_added_where_the_symbol_needs_it() {
        let (keys, _) = typed(Guest::default(), |input_state| {
            for down in [true, false] {
                input_state.symbol('A'.into(), down);
            }
        });
        assert_eq!(keys, [(SHIFT, true), (A, true), (SHIFT, false), (A, false)]);
    }

    #[test]
    fn shift_that_is_held_is_used() {
        let (keys, _) = typed(Guest::default(), |input_state| {
            input_state.symbol(0xffe1, true);
            input_state.symbol('A'.into(), true);
        });
        assert_eq!(keys, [(SHIFT, true), (A, true), (SHIFT, false), (A, false)], "the last two are let go");
    }

    #[test]
    fn shift_of_another_layout_is_let_go() {
        let (keys, _) = typed(Guest::default(), |input_state| {
            input_state.symbol(0xffe1, true);
            input_state.symbol('/'.into(), true);
            input_state.symbol('/'.into(), false);
            input_state.symbol(0xffe1, false);
        });
        let expected =
            [(SHIFT, true), (SHIFT, false), (SLASH, true), (SHIFT, true), (SLASH, false), (SHIFT, false)];
        assert_eq!(keys, expected);
    }

    #[test]
    fn a_locked_client_and_a_locked_guest_agree() {
        let caps = Guest { caps: true, ..Guest::default() };
        let (keys, _) = typed(caps, |input_state| {
            input_state.symbol('A'.into(), true);
            input_state.symbol('A'.into(), false);
        });
        assert_eq!(keys, [(A, true), (A, false)]);
    }

    #[test]
    fn shortcuts_are_left_alone() {
        let (keys, _) = typed(Guest::default(), |input_state| {
            input_state.symbol(0xffe3, true);
            input_state.symbol('A'.into(), true);
        });
        assert_eq!(keys, [(0x1d, true), (A, true), (0x1d, false), (A, false)]);
    }

    #[test]
    fn who_leaves_lets_go() {
        let (keys, points) = typed(Guest::default(), |input_state| {
            input_state.key(Key::ALT_LEFT, true);
            input_state.key(Key::ALT_LEFT, true);
            input_state.point(Pointing { x: 3, y: 4, width: 10, height: 10, buttons: 1 });
        });
        assert_eq!(keys, [(0x38, true), (0x38, true), (0x38, false)]);
        assert_eq!(points.last().map(|last| (last.x, last.y, last.buttons)), Some((3, 4, 0)));
    }
}
