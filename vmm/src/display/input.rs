use std::sync::{Arc, Weak};

use super::keys::Key;

/// A keyboard of the guest's.
pub trait Keyboard: Send + Sync {
    /// Whether a driver listens. Keys go to the active keyboard attached last, or to the first one.
    fn active(&self) -> bool;
    /// A key went down (again, if it repeats) or up. Must not block: what a guest does not read is lost.
    fn key(&self, key: Key, down: bool);
    /// The lights the guest has switched on.
    fn leds(&self) -> Leds;
}

/// A mouse or tablet of the guest's.
pub trait Pointer: Send + Sync {
    /// Whether a driver listens. The active pointer attached last is moved, or the first one.
    fn active(&self) -> bool;
    /// It moved, or a button did. Must not block.
    fn point(&self, pointing: Pointing);
}

/// The lights of a keyboard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Leds {
    /// Scroll lock.
    pub scroll: bool,
    /// Num lock.
    pub num: bool,
    /// Caps lock.
    pub caps: bool,
}

/// Where the pointer is and what is pressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointing {
    /// Column, below `width`.
    pub x: u16,
    /// Line, below `height`.
    pub y: u16,
    /// Of the display the position is on.
    pub width: u16,
    /// Of the display the position is on.
    pub height: u16,
    /// As RFB counts them (section 7.5.5): left, middle, right, wheel up, down, left, right.
    pub buttons: u8,
}

/// Everything a person's hands act on.
#[derive(Default)]
pub(super) struct Seat {
    keyboards: Vec<Weak<dyn Keyboard>>,
    pointers: Vec<Weak<dyn Pointer>>,
}

impl Seat {
    pub(super) fn attach_keyboard(&mut self, keyboard: &Arc<dyn Keyboard>) {
        self.keyboards.retain(|known| known.strong_count() > 0);
        self.keyboards.push(Arc::downgrade(keyboard));
    }

    pub(super) fn attach_pointer(&mut self, pointer: &Arc<dyn Pointer>) {
        self.pointers.retain(|known| known.strong_count() > 0);
        self.pointers.push(Arc::downgrade(pointer));
    }

    fn keyboard(&self) -> Option<Arc<dyn Keyboard>> {
        pick(&self.keyboards, |keyboard| keyboard.active())
    }

    pub(super) fn key(&self, key: Key, down: bool) {
        if let Some(keyboard) = self.keyboard() {
            keyboard.key(key, down);
        }
    }

    pub(super) fn point(&self, pointing: Pointing) {
        if let Some(pointer) = pick(&self.pointers, |pointer| pointer.active()) {
            pointer.point(pointing);
        }
    }

    pub(super) fn leds(&self) -> Leds {
        self.keyboard().map_or_else(Leds::default, |keyboard| keyboard.leds())
    }
}

fn pick<T: ?Sized>(all: &[Weak<T>], active: impl Fn(&T) -> bool) -> Option<Arc<T>> {
    let mut alive = all.iter().rev().filter_map(Weak::upgrade);
    let last = alive.find(|device| active(device));
    last.or_else(|| all.iter().find_map(Weak::upgrade))
}
