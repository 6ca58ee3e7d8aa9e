use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{BUFFERS, Guest, VERSION_1};
use super::*;
use crate::config::Opened;

const NAME: &str = "org.example.port";
const SOON: Duration = Duration::from_secs(20);

struct Scene {
    guest: Guest,
    line: UnixStream,
    opened: mpsc::Receiver<bool>,
}

fn scene(features: u64) -> Scene {
    let (line, theirs) = UnixStream::pair().unwrap();
    line.set_read_timeout(Some(SOON)).unwrap();
    let (report, opened) = mpsc::channel();
    let opened_by = Opened::new(move |open| {
        // The test may have ended.
        let _ = report.send(open);
    });
    let port = Port::new(&Wanted::new(NAME, theirs, opened_by)).unwrap();
    let mut guest = Guest::new(Box::new(port));
    guest.start(features, 16);
    Scene { guest, line, opened }
}

impl Scene {
    /// Sends a control message of the port, from a buffer that nothing else uses.
    fn say(&mut self, event: u16, value: u16) {
        let at = BUFFERS + 0x8000;
        let message = u64::from(event) << 32 | u64::from(value) << 48;
        self.guest.memory.write_obj(message, GuestAddress(at)).unwrap();
        self.guest.add(CONTROL_TRANSMIT, &[(at, 8, false)]);
        self.guest.kick(CONTROL_TRANSMIT);
        self.guest.wait(CONTROL_TRANSMIT, 1);
    }

    fn bytes(&self, at: u64, count: u32) -> Vec<u8> {
        let mut bytes = vec![0; count as usize];
        self.guest.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    /// As a driver does until a program has the port.
    fn open(&mut self) {
        self.say(PORT_OPEN, 1);
        assert_eq!(self.opened.recv_timeout(SOON), Ok(true));
    }
}

const DEVICE_READY: u16 = 0;
const PORT_READY: u16 = 3;
const PORT_OPEN: u16 = 6;

#[test]
fn a_driver_learns_of_the_port_and_its_name() {
    let mut scene = scene(VERSION_1 | MULTIPORT);
    assert_eq!(scene.guest.offered() & MULTIPORT, MULTIPORT);
    for at in 0..4 {
        scene.guest.add(CONTROL_RECEIVE, &[(BUFFERS + at * 64, 64, true)]);
    }
    scene.guest.kick(CONTROL_RECEIVE);
    scene.say(DEVICE_READY, 1);
    assert_eq!(scene.guest.wait(CONTROL_RECEIVE, 1), [(0, 8)]);
    assert_eq!(scene.bytes(BUFFERS, 8), [0, 0, 0, 0, 1, 0, 1, 0]);
    scene.say(PORT_READY, 1);
    assert_eq!(scene.guest.wait(CONTROL_RECEIVE, 2), [(1, 8 + 16), (2, 8)]);
    assert_eq!(scene.bytes(BUFFERS + 64, 24), [&[0, 0, 0, 0, 7, 0, 1, 0], NAME.as_bytes()].concat());
    assert_eq!(scene.bytes(BUFFERS + 128, 8), [0, 0, 0, 0, 6, 0, 1, 0]);
}

#[test]
fn bytes_pass_both_ways_while_a_program_has_it_open() {
    let mut scene = scene(VERSION_1 | MULTIPORT);
    scene.line.write_all(b"early").unwrap();
    scene.guest.memory.write_slice(b"without a reader", GuestAddress(BUFFERS)).unwrap();
    scene.guest.add(TRANSMIT, &[(BUFFERS, 15, false)]);
    scene.guest.kick(TRANSMIT);
    scene.guest.wait(TRANSMIT, 1);
    scene.open();
    scene.guest.memory.write_slice(b"to the host", GuestAddress(BUFFERS)).unwrap();
    scene.guest.add(TRANSMIT, &[(BUFFERS, 3, false), (BUFFERS + 3, 8, false)]);
    scene.guest.kick(TRANSMIT);
    scene.guest.wait(TRANSMIT, 1);
    let mut got = [0; 11];
    scene.line.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"to the host");

    // What came before there were buffers has waited.
    scene.guest.add(RECEIVE, &[(BUFFERS, 3, true)]);
    scene.guest.add(RECEIVE, &[(BUFFERS + 16, 16, true)]);
    scene.guest.add(RECEIVE, &[(BUFFERS + 32, 16, true)]);
    scene.guest.kick(RECEIVE);
    assert_eq!(scene.guest.wait(RECEIVE, 2), [(0, 3), (1, 2)]);
    scene.line.write_all(b"later").unwrap();
    assert_eq!(scene.guest.wait(RECEIVE, 1), [(2, 5)]);
    assert_eq!(scene.bytes(BUFFERS + 32, 5), b"later");

    scene.say(PORT_OPEN, 0);
    assert_eq!(scene.opened.recv_timeout(SOON), Ok(false));
    scene.open();
    scene.guest.reset();
    assert_eq!(scene.opened.recv_timeout(SOON), Ok(false), "a reset closes it");
}

#[test]
fn a_guest_that_writes_more_than_is_read_blocks_no_one() {
    let mut scene = scene(VERSION_1 | MULTIPORT);
    scene.open();
    for _ in 0..8 {
        scene.guest.add(TRANSMIT, &[(BUFFERS, 1 << 20, false)]);
        scene.guest.kick(TRANSMIT);
        scene.guest.wait(TRANSMIT, 1);
    }
    // There is no reader; a later reader gets whole messages once there is room.
    scene.line.set_nonblocking(true).unwrap();
    let mut old = Vec::new();
    assert!(scene.line.read_to_end(&mut old).is_err(), "it is not closed");
    assert!(!old.is_empty() && old.len() < 8 << 20);
}

#[test]
fn a_driver_that_knows_no_ports_has_none() {
    let mut scene = scene(VERSION_1);
    scene.say(DEVICE_READY, 1);
    scene.say(PORT_OPEN, 1);
    assert!(scene.opened.try_recv().is_err());
}

proptest! {
    /// No message makes more wait than there is room for, whatever its port.
    #[test]
    fn no_message_makes_it_grow(active: bool, messages: Vec<[u8; SIZE]>) {
        let mut control = Control::new(NAME);
        control.begin(active);
        for message in messages.into_iter().cycle().take(1000) {
            let reported = control.handle(message);
            prop_assert!(reported.is_none() || active);
        }
        let mut count = 0;
        while control.next().is_some() {
            control.sent();
            count += 1;
        }
        prop_assert!(count <= 8);
    }
}
