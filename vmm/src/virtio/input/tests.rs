use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{BUFFERS, EVENT_IDX, Guest, VERSION_1, random_descriptors, random_heads};
use super::*;

/// Where the transport has the device's own configuration.
const CONFIG: u64 = 0x2000;

fn tablet() -> (Guest, Arc<dyn Pointer>) {
    let (input, pointer) = Input::tablet().unwrap();
    (Guest::new(Box::new(input)), pointer)
}

fn ask(guest: &Guest, select: u8, about: u8) -> Vec<u8> {
    guest.write(CONFIG, &[select]);
    guest.write(CONFIG + 1, &[about]);
    let [size] = guest.read(CONFIG + 2);
    guest.read::<128>(CONFIG + 8)[..size.into()].to_vec()
}

fn offer(guest: &mut Guest, count: u64) {
    for at in 0..count {
        guest.add(EVENTS, &[(BUFFERS + at * 8, 8, true)]);
    }
    guest.kick(EVENTS);
}

/// The events in the first buffers.
fn events(guest: &Guest, count: u64) -> Vec<(u16, u16, u32)> {
    let one = |at| {
        let value: u64 = guest.memory.read_obj(GuestAddress(BUFFERS + at * 8)).unwrap();
        let [kind, code] = [value & 0xffff, value >> 16 & 0xffff].map(|half| u16::try_from(half).unwrap());
        (kind, code, u32::try_from(value >> 32).unwrap())
    };
    (0..count).map(one).collect()
}

fn at(x: u16, buttons: u8) -> Pointing {
    Pointing { x, y: 0, width: 101, height: 101, buttons }
}

#[test]
fn the_driver_learns_what_it_is() {
    let (guest, _pointer) = tablet();
    assert_eq!(ask(&guest, 1, 0), b"Vireo tablet");
    assert_eq!(ask(&guest, 3, 0), [6, 0, 0xf4, 0x1a, 3, 0, 1, 0]);
    assert_eq!(ask(&guest, 0x11, 1)[0x110 / 8], 0b1111, "four buttons");
    assert_eq!(ask(&guest, 0x11, 3), [0b11]);
    assert_eq!(ask(&guest, 0x11, 0x14), [], "it does not repeat");
    for axis in [0, 1] {
        assert_eq!(ask(&guest, 0x12, axis)[..8], [0, 0, 0, 0, 0xff, 0x7f, 0, 0]);
    }
    for (select, about) in [(0, 0), (2, 0), (0x10, 0), (0x12, 2), (0x11, 0xff), (0xff, 0xff), (1, 1)] {
        assert_eq!(ask(&guest, select, about), [], "{select:#x} {about:#x}");
    }
    let (keyboard, _keys) = Input::keyboard().unwrap();
    let guest = Guest::new(Box::new(keyboard));
    let keys = ask(&guest, 0x11, 1);
    assert_eq!((keys[0] & 0b11, keys[30 / 8] >> (30 % 8) & 1, keys.len()), (0b10, 1, 18));
    assert_eq!(ask(&guest, 0x11, 0x11), [0b111]);
    assert_eq!(ask(&guest, 0x11, 0x14), [0b11]);
    assert_eq!(ask(&guest, 0x12, 0), []);
}

#[test]
fn what_people_do_reaches_buffers_that_wait_and_that_come() {
    let (mut guest, pointer) = tablet();
    guest.start(VERSION_1 | EVENT_IDX, 64);
    offer(&mut guest, 4);
    pointer.point(at(50, 1));
    assert_eq!(guest.wait(EVENTS, 4), [(0, 8), (1, 8), (2, 8), (3, 8)]);
    assert_eq!(events(&guest, 4), [(3, 0, 0x3fff), (3, 1, 0), (1, 0x110, 1), (0, 0, 0)]);
    pointer.point(at(100, 0));
    offer(&mut guest, 2);
    assert_eq!(guest.wait(EVENTS, 2).len(), 2);
    assert_eq!(events(&guest, 2), [(3, 0, 0x7fff), (3, 1, 0)]);
    offer(&mut guest, 10);
    assert_eq!(guest.wait(EVENTS, 2).len(), 2);
    assert_eq!(events(&guest, 2), [(1, 0x110, 0), (0, 0, 0)]);
}

#[test]
fn only_a_driver_makes_it_active_and_none_finds_old_events() {
    let (mut guest, pointer) = tablet();
    assert!(!pointer.active());
    pointer.point(at(1, 1));
    guest.start(VERSION_1, 64);
    assert!(pointer.active());
    pointer.point(at(2, 1));
    guest.reset();
    assert!(!pointer.active());
    guest.start(VERSION_1, 64);
    offer(&mut guest, 4);
    pointer.point(at(100, 0));
    guest.wait(EVENTS, 3);
    assert_eq!(events(&guest, 3), [(3, 0, 0x7fff), (3, 1, 0), (0, 0, 0)]);
}

#[test]
fn input_that_waits_is_loaded() {
    let (mut guest, pointer) = tablet();
    guest.write(CONFIG, &[1]);
    guest.start(VERSION_1 | EVENT_IDX, 64);
    pointer.point(at(100, 0));
    let (next, pointer) = Input::tablet().unwrap();
    let mut guest = guest.loaded_into(Box::new(next));
    assert_eq!(guest.read::<1>(CONFIG), [1], "what was selected");
    assert!(pointer.active());
    offer(&mut guest, 3);
    guest.wait(EVENTS, 3);
    assert_eq!(events(&guest, 3), [(3, 0, 0x7fff), (3, 1, 0), (0, 0, 0)]);
}

#[test]
fn what_was_down_comes_up_when_it_is_loaded() {
    let (mut input, pointer) = Input::tablet().unwrap();
    input.activate(0).unwrap();
    pointer.point(at(100, 1));
    let state = input.save().unwrap();
    let (mut next, _pointer) = Input::tablet().unwrap();
    let refused = next.load(&state).unwrap_err().to_string();
    assert!(refused.contains("its driver is ready"), "{refused}");
    next.activate(0).unwrap();
    next.load(&state).unwrap();
    let last = |input: &Input| {
        let mut events = input.shared.state().events.clone();
        let all = std::iter::from_fn(|| events.front().inspect(|_| events.pop()));
        all.collect::<Vec<_>>().split_off(4)
    };
    assert_eq!(last(&next), [Event::new(1, 0x110, 0), Event::new(0, 0, 0)]);
}

#[test]
fn lights_are_the_guests_to_switch() {
    let (input, keyboard) = Input::keyboard().unwrap();
    let mut guest = Guest::new(Box::new(input));
    guest.start(VERSION_1, 64);
    let caps = Event::new(0x11, 1, 1).to_bytes();
    guest.memory.write_slice(&[caps, [0; 8]].concat(), GuestAddress(BUFFERS)).unwrap();
    guest.add(STATUS, &[(BUFFERS, 16, false)]);
    guest.kick(STATUS);
    guest.wait(STATUS, 1);
    assert_eq!(keyboard.leds(), Leds { caps: true, ..Leds::default() });
    guest.reset();
    assert_eq!(keyboard.leds(), Leds::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Any descriptors in both queues while the pointer moves: nothing panics, no worker hangs, a reset is enough.
    #[test]
    fn random_chains_are_survived(
        descriptors in random_descriptors(),
        heads in random_heads(),
        positions in prop::collection::vec((0_u16..101, any::<u8>()), 0..20),
    ) {
        let (mut guest, pointer) = tablet();
        guest.start(VERSION_1, 16);
        guest.put_descriptors(descriptors);
        for (x, buttons) in positions {
            pointer.point(at(x, buttons));
        }
        guest.serve_heads(heads);
        guest.start(VERSION_1, 64);
        offer(&mut guest, 3);
        pointer.point(at(100, 0));
        guest.wait(EVENTS, 3);
        prop_assert_eq!(events(&guest, 3), [(3, 0, 0x7fff), (3, 1, 0), (0, 0, 0)]);
    }
}
