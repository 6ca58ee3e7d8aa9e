use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::display::{Key, Leds, Pointing};

/// Bytes of an event (section 5.8.6).
pub(super) const SIZE: u32 = 8;
/// Limit of events queued for a guest that takes none, beside the release of keys.
const ROOM: usize = 256;
/// More keys and buttons than there are.
const MOST_DOWN: usize = 256;

// Linux's `input-event-codes.h`, which section 5.8 is written in terms of.
pub(super) const EV_SYN: u16 = 0;
pub(super) const EV_KEY: u16 = 1;
pub(super) const EV_REL: u16 = 2;
pub(super) const EV_ABS: u16 = 3;
pub(super) const EV_LED: u16 = 0x11;
pub(super) const EV_REP: u16 = 0x14;
pub(super) const REL_HWHEEL: u16 = 6;
pub(super) const REL_WHEEL: u16 = 8;
pub(super) const ABS_X: u16 = 0;
pub(super) const ABS_Y: u16 = 1;
/// Of both axes; the least is 0.
pub(super) const ABS_MAX: u32 = 0x7fff;
/// The buttons in the order of RFB's mask; those between are the wheel.
pub(super) const BUTTONS: [(u8, u16); 4] = [(0, 0x110), (1, 0x112), (2, 0x111), (7, 0x113)];
/// Bits of RFB's mask that turn the wheel, and which way.
const WHEEL: [(u8, u16, i32); 4] =
    [(3, REL_WHEEL, 1), (4, REL_WHEEL, -1), (5, REL_HWHEEL, -1), (6, REL_HWHEEL, 1)];

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Event {
    kind: u16,
    code: u16,
    value: u32,
}

impl Event {
    pub(super) const fn new(kind: u16, code: u16, value: u32) -> Self {
        Self { kind, code, value }
    }

    pub(super) fn to_bytes(self) -> [u8; SIZE as usize] {
        let ([a, b], [c, d], [e, f, g, h]) =
            (self.kind.to_le_bytes(), self.code.to_le_bytes(), self.value.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }

    pub(super) fn from_bytes([a, b, c, d, e, f, g, h]: [u8; SIZE as usize]) -> Self {
        Self::new(u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]), u32::from_le_bytes([e, f, g, h]))
    }

    /// Sets an LED, if the event is one for it.
    pub(super) fn light(self, leds: &mut Leds) {
        let on = self.value != 0;
        match (self.kind, self.code) {
            (EV_LED, 0) => leds.num = on,
            (EV_LED, 1) => leds.caps = on,
            (EV_LED, 2) => leds.scroll = on,
            _ => {}
        }
    }

    fn is_release(self) -> bool {
        self.kind == EV_KEY && self.value == 0
    }
}

/// Input that the guest was not given yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Events {
    waiting: VecDeque<Event>,
    /// Keys and buttons whose press was queued or reported.
    down: BTreeSet<u16>,
    /// The mask that was reported last.
    mask: u8,
    #[serde(skip)]
    dropped: u64,
}

impl Events {
    pub(super) fn front(&self) -> Option<Event> {
        self.waiting.front().copied()
    }

    pub(super) fn pop(&mut self) {
        self.waiting.pop_front();
    }

    /// A key went down or up. The guest repeats keys by itself.
    pub(super) fn key(&mut self, key: Key, down: bool) {
        if let Some(code) = key.evdev() {
            self.packet(vec![Event::new(EV_KEY, code, down.into())]);
        }
    }

    /// The pointer is somewhere, with these buttons down.
    pub(super) fn point(&mut self, pointing: Pointing) {
        let mut packet = vec![
            Event::new(EV_ABS, ABS_X, scale(pointing.x, pointing.width)),
            Event::new(EV_ABS, ABS_Y, scale(pointing.y, pointing.height)),
        ];
        let pressed = |bit: u8| pointing.buttons >> bit & 1;
        packet.extend(BUTTONS.map(|(bit, code)| Event::new(EV_KEY, code, pressed(bit).into())));
        let newly_pressed = pointing.buttons & !std::mem::replace(&mut self.mask, pointing.buttons);
        let turned = WHEEL.iter().filter(|(bit, ..)| newly_pressed >> bit & 1 != 0);
        packet.extend(turned.map(|(_, code, step)| Event::new(EV_REL, *code, step.cast_unsigned())));
        self.packet(packet);
    }

    /// Queues the changes of `packet`, and the mark of its end. What does not fit is dropped whole, but for the
    /// letting go of keys: the guest would have them down for ever.
    fn packet(&mut self, mut packet: Vec<Event>) {
        packet.retain(|event| event.kind != EV_KEY || (event.value != 0) != self.down.contains(&event.code));
        if self.waiting.len() + packet.len() >= ROOM {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                tracing::debug!(dropped = self.dropped, "the guest takes no input");
            }
            packet.retain(|event| event.is_release());
        }
        if packet.is_empty() {
            return;
        }
        for event in &packet {
            match (event.kind, event.value) {
                (EV_KEY, 0) => drop(self.down.remove(&event.code)),
                (EV_KEY, _) => drop(self.down.insert(event.code)),
                _ => {}
            }
        }
        self.waiting.extend(packet);
        self.waiting.push_back(Event::new(EV_SYN, 0, 0));
    }

    /// Keys and buttons come up.
    pub(super) fn release_all(&mut self) {
        self.mask = 0;
        let down = self.down.iter().map(|code| Event::new(EV_KEY, *code, 0)).collect();
        self.packet(down);
    }

    /// Whether what waits is bounded, and ends with the mark of a packet's end.
    pub(super) fn is_possible(&self) -> bool {
        let whole = self.waiting.back().is_none_or(|last| last.kind == EV_SYN);
        whole && self.waiting.len() <= ROOM + 2 * MOST_DOWN && self.down.len() <= MOST_DOWN
    }

    /// How many packets were lost.
    #[cfg(test)]
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Where on an axis of the tablet column or line `at` of `count` is.
fn scale(at: u16, count: u16) -> u32 {
    let last = u32::from(count.saturating_sub(1)).max(1);
    u32::from(at).min(last) * ABS_MAX / last
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(events: &mut Events) -> Vec<(u16, u16, i32)> {
        let all = std::iter::from_fn(|| {
            let event = events.front()?;
            events.pop();
            Some((event.kind, event.code, event.value.cast_signed()))
        });
        all.collect()
    }

    fn at(x: u16, y: u16, buttons: u8) -> Pointing {
        Pointing { x, y, width: 1024, height: 768, buttons }
    }

    const SYN: (u16, u16, i32) = (EV_SYN, 0, 0);

    #[test]
    fn display_positions_become_tablet_positions() {
        let mut events = Events::default();
        for (x, y, expected) in [(0, 0, (0, 0)), (1023, 767, (0x7fff, 0x7fff)), (512, 384, (16399, 16404))] {
            events.point(at(x, y, 0));
            let (x, y) = expected;
            assert_eq!(taken(&mut events), [(EV_ABS, ABS_X, x), (EV_ABS, ABS_Y, y), SYN]);
        }
        assert_eq!((scale(0, 0), scale(7, 0), scale(0, 1), scale(9, 1)), (0, ABS_MAX, 0, ABS_MAX));
    }

    #[test]
    fn button_changes_and_wheel_notches_are_reported_once() {
        let mut events = Events::default();
        let mut sent = |buttons| {
            events.point(at(0, 0, buttons));
            taken(&mut events).split_off(2)
        };
        assert_eq!(sent(0b1_0001), [(EV_KEY, 0x110, 1), (EV_REL, REL_WHEEL, -1), SYN]);
        assert_eq!(sent(0b1_0001), [SYN]);
        assert_eq!(sent(0b100), [(EV_KEY, 0x110, 0), (EV_KEY, 0x111, 1), SYN]);
        assert_eq!(
            sent(0b100_1000),
            [(EV_KEY, 0x111, 0), (EV_REL, REL_WHEEL, 1), (EV_REL, REL_HWHEEL, 1), SYN]
        );
    }

    #[test]
    fn a_key_that_is_down_is_let_go_even_if_nothing_else_fits() {
        let mut events = Events::default();
        events.key(Key::SHIFT_LEFT, true);
        for x in 0..1000 {
            events.point(at(x, 0, 1));
        }
        events.key(Key::CONTROL_LEFT, true);
        events.key(Key::CONTROL_LEFT, false);
        events.key(Key::SHIFT_LEFT, false);
        assert!(events.dropped() > 900);
        let all = taken(&mut events);
        assert!(all.len() < ROOM + 8);
        assert_eq!(all[all.len() - 2..], [(EV_KEY, 42, 0), SYN]);
        assert!(
            !all.iter().any(|(kind, code, _)| (*kind, *code) == (EV_KEY, 29)),
            "its press was never reported"
        );
    }

    proptest! {
        #[test]
        fn what_waits_is_bounded_whole_and_leaves_no_key_down(
            acts in prop::collection::vec((any::<u8>(), any::<bool>(), any::<u16>(), any::<u8>()), 0..600),
            take in 0_usize..5,
        ) {
            let (mut events, mut all) = (Events::default(), Vec::new());
            for (code, down, x, buttons) in acts {
                match Key::from_xt(code.into()) {
                    Some(key) if x % 2 == 0 => events.key(key, down),
                    _ => events.point(at(x, 3, buttons)),
                }
                for _ in 0..take {
                    all.extend(events.front().map(|event| (event.kind, event.code, event.value.cast_signed())));
                    events.pop();
                }
                assert!(events.is_possible());
            }
            for code in 0..=u8::MAX {
                if let Some(key) = Key::from_xt(code.into()) {
                    events.key(key, false);
                }
            }
            events.point(at(0, 0, 0));
            all.extend(taken(&mut events));
            prop_assert!(all.last().is_none_or(|last| *last == SYN));
            let mut down = BTreeSet::new();
            for (_, code, value) in all.iter().filter(|(kind, ..)| *kind == EV_KEY) {
                let expected = if *value == 0 { down.remove(code) } else { down.insert(*code) };
                prop_assert!(expected, "{code} twice");
            }
            prop_assert!(down.is_empty());
        }
    }
}
