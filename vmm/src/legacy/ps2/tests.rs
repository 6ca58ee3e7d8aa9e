use std::io;

use proptest::prelude::*;

use super::*;
use crate::state::AnySection as _;

/// Counts rising edges.
#[derive(Default)]
struct Wire(Mutex<(bool, u32)>, Condvar);

impl IrqLine for Wire {
    fn pulse(&self) -> io::Result<()> {
        Ok(())
    }
    fn set_level(&self, high: bool) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if high && !state.0 {
            state.1 += 1;
        }
        state.0 = high;
        self.1.notify_all();
        Ok(())
    }
}

struct Scene {
    ps2: Arc<Ps2>,
    outcome: Arc<Outcome>,
    keyboard: Arc<Wire>,
    mouse: Arc<Wire>,
}

fn scene() -> Scene {
    scene_with(Duration::ZERO)
}

/// With a keyboard that rests so long between keys.
fn scene_with(rest: Duration) -> Scene {
    let (keyboard, mouse) = (Arc::new(Wire::default()), Arc::new(Wire::default()));
    let outcome = Arc::new(Outcome::default());
    let lines = (keyboard.clone() as Arc<dyn IrqLine>, mouse.clone() as Arc<dyn IrqLine>);
    let ps2 = Ps2::with_rest(outcome.clone(), lines, rest).unwrap();
    Scene { ps2, outcome, keyboard, mouse }
}

impl Scene {
    fn port(&self, offset: u64) -> u8 {
        let mut data = [0];
        self.ps2.read(offset, &mut data);
        data[0]
    }

    fn read(&self) -> Vec<u8> {
        std::iter::from_fn(|| (self.port(COMMAND) & 1 != 0).then(|| self.port(DATA))).collect()
    }

    fn command(&self, command: u8) -> Vec<u8> {
        self.ps2.write(COMMAND, &[command]);
        self.read()
    }

    fn data(&self, byte: u8) -> Vec<u8> {
        self.ps2.write(DATA, &[byte]);
        self.read()
    }

    fn press(&self, xt: u32) {
        let key = Key::from_xt(xt).unwrap();
        self.ps2.key(key, true);
        self.ps2.key(key, false);
    }
}

#[test]
fn firmware_finds_a_controller_and_both_devices() {
    let scene = scene();
    assert_eq!(scene.command(0xaa), [0x55]);
    assert_eq!(scene.command(0xab), [0]);
    assert_eq!(scene.command(0xa9), [0]);
    scene.command(0x60);
    scene.data(0x47);
    assert_eq!(scene.command(0x20), [0x47]);
    assert_eq!(scene.data(0xff), [0xfa, 0xaa]);
    assert_eq!(scene.data(0xf2), [0xfa, 0xab, 0x41], "an identity, translated");
    scene.command(0xd4);
    assert_eq!(scene.data(0xff), [0xfa, 0xaa, 0]);
    assert_eq!(scene.command(0xd3), []);
    scene.ps2.write(DATA, &[0x5a]);
    assert_eq!(scene.port(COMMAND) & 0x21, 0x21, "a byte as from the mouse");
    assert_eq!(scene.port(DATA), 0x5a);
}

#[test]
fn a_loaded_controller_goes_on_with_every_key_up() {
    let before = scene();
    before.command(0xd4);
    before.data(0xf4);
    before.ps2.point(Pointing { x: 5, y: 5, width: 100, height: 100, buttons: 1 });
    before.ps2.key(Key::from_xt(0x1e).unwrap(), true);
    before.press(0xcb);
    assert_eq!(before.port(COMMAND) & 1, 1, "a byte waits");
    let state = before.ps2.encode().unwrap();
    let after = scene();
    after.ps2.decode(&state).unwrap();
    assert_eq!(after.ps2.encode().unwrap(), state);
    after.ps2.after_load();
    let (keys, pressed, released) = ([0x1e, 0xe0, 0x4b, 0xe0, 0xcb, 0x9e], [9, 0, 0], [8, 0, 0]);
    let mut mouse = Vec::new();
    let mut keyboard = Vec::new();
    while after.port(COMMAND) & 1 != 0 {
        let from = if after.port(COMMAND) & 0x20 != 0 { &mut mouse } else { &mut keyboard };
        from.push(after.port(DATA));
    }
    assert_eq!((keyboard, mouse), (keys.to_vec(), [pressed, released].concat()));
    assert!(after.keyboard.0.lock().unwrap().1 > 0 && after.mouse.0.lock().unwrap().1 > 0, "with interrupts");
}

#[test]
fn keys_are_translated_and_each_byte_interrupts() {
    let scene = scene();
    scene.press(0x1e);
    assert_eq!(scene.keyboard.0.lock().unwrap().1, 1);
    scene.press(0xcb);
    scene.press(0xc6);
    let pause = [0xe1, 0x1d, 0x45, 0xe1, 0x9d, 0xc5];
    assert_eq!(scene.read(), [&[0x1e, 0x9e, 0xe0, 0x4b, 0xe0, 0xcb][..], &pause].concat());
    assert_eq!(*scene.keyboard.0.lock().unwrap(), (false, 12));
    scene.command(0x60);
    scene.data(0x07);
    scene.press(0x1e);
    assert_eq!(scene.read(), [0x1c, 0xf0, 0x1c]);
}

#[test]
fn a_keyboard_that_has_rested_interrupts() {
    let scene = scene_with(Duration::from_millis(1));
    scene.press(0x1e);
    let mut read = Vec::new();
    while read.len() < 2 {
        let wire = scene.keyboard.0.lock().unwrap();
        drop(scene.keyboard.1.wait_while(wire, |(high, _)| !*high).unwrap());
        read.extend(scene.read());
    }
    assert_eq!((read.as_slice(), scene.keyboard.0.lock().unwrap().1), (&[0x1e, 0x9e][..], 2));
}

#[test]
fn every_key_is_translated_to_its_code() {
    let scene = scene();
    for key in Key::all().filter(|key| *key != Key::PAUSE) {
        scene.ps2.key(key, true);
        scene.ps2.key(key, false);
        let (prefix, code): (&[u8], u8) =
            if key.is_prefixed() { (&[0xe0], key.xt() & 0x7f) } else { (&[], key.xt()) };
        assert_eq!(scene.read(), [prefix, &[code], prefix, &[code | 0x80]].concat(), "{key:?}");
    }
}

#[test]
fn what_is_switched_off_waits() {
    let scene = scene();
    scene.command(0xad);
    scene.press(0x1e);
    assert_eq!(scene.read(), []);
    assert_eq!(scene.command(0xae), [0x1e, 0x9e]);
    scene.command(0x60);
    scene.data(0x44);
    scene.press(0x1e);
    assert!(!scene.keyboard.0.lock().unwrap().0, "no interrupt that is not wanted");
    scene.ps2.write(COMMAND, &[0x60]);
    scene.ps2.write(DATA, &[0x45]);
    assert!(scene.keyboard.0.lock().unwrap().0, "until it is");
}

#[test]
fn the_mouse_has_its_own_line() {
    let scene = scene();
    scene.command(0xd4);
    assert_eq!(scene.data(0xf4), [0xfa]);
    let at = |x, buttons| Pointing { x, y: 1, width: 10, height: 10, buttons };
    scene.ps2.point(at(1, 0));
    scene.ps2.point(at(3, 1));
    assert!(scene.mouse.0.lock().unwrap().0 && !scene.keyboard.0.lock().unwrap().0);
    assert_eq!(scene.port(COMMAND) & 0x21, 0x21);
    assert_eq!(scene.read(), [9, 2, 0]);
}

#[test]
fn only_the_reset_line_resets() {
    let scene = scene();
    scene.ps2.write(DATA, &[0xfe]);
    scene.ps2.write(COMMAND, &[0xfe, 0]);
    scene.command(0xff);
    scene.command(0xd1);
    scene.data(0xdf);
    assert!(!scene.outcome.is_over());
    scene.ps2.write(COMMAND, &[0xfe]);
    assert!(matches!(scene.outcome.wait(), Exit::Reset));
}

proptest! {
    #[test]
    fn a_damaged_state_is_survived(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..12), bytes: Vec<u8>) {
        let before = scene();
        before.press(0x1e);
        let mut state = before.ps2.encode().unwrap();
        for (at, value) in changes {
            let at = at % state.len();
            state[at] = value;
        }
        let after = scene();
        if after.ps2.decode(&state).is_ok() {
            after.ps2.after_load();
            for byte in bytes {
                after.ps2.write(if byte & 1 == 0 { DATA } else { COMMAND }, &[byte]);
                after.ps2.point(Pointing { x: byte.into(), y: 0, width: 100, height: 100, buttons: byte });
                after.press(0x1e);
                after.port(DATA);
            }
        }
    }

    #[test]
    fn no_sequence_of_accesses_and_events_panics_or_fills_memory(
        steps in prop::collection::vec((0_u8..6, any::<u8>()), 0..400)
    ) {
        let scene = scene();
        for (step, value) in steps {
            match step {
                0 => scene.ps2.write(COMMAND, &[value]),
                1 => scene.ps2.write(DATA, &[value]),
                2 => drop(scene.port(DATA)),
                3 => if let Some(key) = Key::from_xt(value.into()) { scene.ps2.key(key, value % 3 != 0) },
                4 => drop(scene.port(COMMAND)),
                _ => scene.ps2.point(Pointing {
                    x: u16::from(value) * 7, y: u16::from(value), width: 2000, height: 300, buttons: value,
                }),
            }
        }
        scene.command(0x60);
        scene.data(0x47);
        prop_assert!(scene.read().len() < 3 * device::ROOM);
    }
}
