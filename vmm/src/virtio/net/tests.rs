use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{
    BUFFERS, EVENT_IDX, Guest, VECTOR_DATA, VERSION_1, random_descriptors, random_heads,
};
use super::NetDevice;
use super::offload::{CTRL_VQ, GUEST_ANNOUNCE, GUEST_CSUM, MQ, MRG_RXBUF, STATUS};
use super::receive::is_end;
use crate::config::{Link, Net};
use crate::pci::Function as _;

const LARGE: u64 = GUEST_CSUM | 1 << 7;

/// A NIC whose taps are datagram sockets: what a tap does with frames, without the privileges. The wires of its queues.
fn nic(queues: usize) -> (Guest, Vec<OwnedFd>, Arc<Link>) {
    let (device, wires, link) = device(queues);
    (Guest::new(Box::new(device)), wires, link)
}

fn device(queues: usize) -> (NetDevice, Vec<OwnedFd>, Arc<Link>) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let pairs = (0..queues).map(|_| socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap());
    let (wires, taps): (Vec<_>, Vec<_>) = pairs.unzip();
    let mac = "52:54:00:00:00:01".parse().unwrap();
    let net = Net::new(taps[0].try_clone().unwrap(), mac).mtu(Some(1400));
    (NetDevice::on(taps, &net), wires, net.link().clone())
}

fn guest() -> (Guest, OwnedFd) {
    let (guest, mut wires, _) = nic(1);
    (guest, wires.remove(0))
}

fn frame(len: usize, seed: u8) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend((0..len).map(|at| u8::try_from(at % 251).unwrap() ^ seed));
    frame
}

fn offer(guest: &mut Guest, count: u64, len: u32) {
    for at in 0..count {
        guest.add(0, &[(BUFFERS + at * u64::from(len), len, true)]);
    }
    guest.kick(0);
}

fn bytes(guest: &Guest, at: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    guest.memory.read_slice(&mut data, GuestAddress(at)).unwrap();
    data
}

#[test]
fn frames_reach_the_wire_whole() {
    let (mut guest, wire) = guest();
    guest.start(VERSION_1 | EVENT_IDX, 64);
    for (round, len) in (0_u8..).zip([1, 60, 1514, 65_000]) {
        let sent = frame(len, round);
        guest.memory.write_slice(&sent, GuestAddress(BUFFERS)).unwrap();
        let total = u32::try_from(sent.len()).unwrap();
        guest.add(1, &[(BUFFERS, 12, false), (BUFFERS + 12, total - 12, false)]);
        guest.kick(1);
        guest.wait(1, 1);
        let mut got = vec![0; 70_000];
        let (count, _) = rustix::net::recv(&wire, &mut got, rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(got[..count], sent);
    }
    // No frame, too large a frame: answered, not sent.
    guest.add(1, &[(BUFFERS, 12, false)]);
    guest.add(1, &[(BUFFERS, 100_000, false)]);
    guest.kick(1);
    guest.wait(1, 2);
    let nothing = rustix::net::recv(&wire, &mut [0; 64], rustix::net::RecvFlags::empty());
    assert_eq!(nothing.unwrap_err(), rustix::io::Errno::AGAIN);
}

fn send(wire: &OwnedFd, frame: &[u8]) {
    rustix::io::write(wire.as_fd(), frame).unwrap();
}

#[test]
fn a_frame_is_spread_over_buffers_and_becomes_visible_at_once() {
    let (mut guest, wire) = guest();
    guest.start(VERSION_1 | MRG_RXBUF | LARGE, 64);
    offer(&mut guest, 50, 1526);
    let sent = frame(5000, 7);
    send(&wire, &sent);
    let answers = guest.wait(0, 4);
    assert_eq!(answers, [(0, 1526), (1, 1526), (2, 1526), (3, 5012 - 3 * 1526)]);
    let mut got = bytes(&guest, BUFFERS, 5012);
    assert_eq!(got[10..12], 4_u16.to_le_bytes(), "num_buffers");
    got[10..12].fill(0);
    assert_eq!(got, sent);
}

#[test]
fn without_room_the_wire_waits_and_nothing_is_lost() {
    let (mut guest, wire) = guest();
    guest.start(VERSION_1 | MRG_RXBUF | EVENT_IDX, 8);
    for round in 0..6 {
        send(&wire, &frame(1000, round));
    }
    for round in 0..6 {
        assert_eq!(guest.answers(0), []);
        guest.add(0, &[(BUFFERS, 2000, true)]);
        guest.kick(0);
        assert_eq!(guest.wait(0, 1)[0].1, 1012);
        assert_eq!(bytes(&guest, BUFFERS + 12, 1000), frame(1000, round)[12..]);
    }
}

#[test]
fn more_frames_than_are_taken_at_a_time_all_arrive() {
    let (mut guest, wire) = guest();
    guest.start(VERSION_1 | MRG_RXBUF | LARGE | EVENT_IDX, 256);
    for round in 0..4 {
        guest.device.pause();
        offer(&mut guest, 250, 1526);
        for _ in 0..180 {
            send(&wire, &frame(40, round));
        }
        guest.device.resume();
        assert_eq!(guest.wait(0, 180).len(), 180);
        guest.start(VERSION_1 | MRG_RXBUF | LARGE | EVENT_IDX, 256);
    }
}

#[test]
fn frames_that_wait_are_one_interrupt() {
    let (mut guest, wire) = guest();
    for features in [MRG_RXBUF, MRG_RXBUF | EVENT_IDX] {
        guest.start(VERSION_1 | features, 64);
        assert!(guest.device.pause());
        offer(&mut guest, 60, 1526);
        for _ in 0..40 {
            send(&wire, &frame(60, 1));
        }
        guest.device.resume();
        guest.router.take(VECTOR_DATA);
        assert_eq!(guest.answers(0).len(), 40, "{features:#x}");
    }
}

/// What the driver does wrong with one queue ends the lane of that queue, until the reset.
#[test]
fn a_queue_that_is_unusable_leaves_the_other() {
    let (mut guest, wire) = guest();
    for round in 0..3 {
        guest.start(VERSION_1 | MRG_RXBUF, 8);
        let index = GuestAddress(guest.ring(1).available + 2);
        guest.memory.write_obj(5000_u16, index).unwrap();
        guest.kick(1);
        guest.wait_for_plea();
        offer(&mut guest, 4, 1600);
        send(&wire, &frame(90, round));
        assert_eq!(guest.wait(0, 1), [(0, 102)]);
        assert!(guest.device.pause());
        guest.device.resume();
    }
}

#[test]
fn without_merging_a_frame_has_one_buffer() {
    let (mut guest, wire) = guest();
    guest.start(VERSION_1, 8);
    offer(&mut guest, 4, 1526);
    send(&wire, &frame(1514, 1));
    send(&wire, &frame(100, 2));
    assert_eq!(guest.wait(0, 2), [(0, 1526), (1, 112)]);
    assert_eq!(bytes(&guest, BUFFERS + 10, 2), 1_u16.to_le_bytes());
}

#[test]
fn a_reset_lets_go_of_the_buffers() {
    let (mut guest, wire) = guest();
    for round in 0..4 {
        guest.start(VERSION_1 | MRG_RXBUF, 8);
        offer(&mut guest, 4, 1600);
        send(&wire, &frame(90, round));
        assert_eq!(guest.wait(0, 1), [(0, 102)]);
    }
}

/// A kernel that is started by another (kexec) would find frames in its memory.
#[test]
fn nothing_is_received_while_the_function_may_not_access_memory() {
    let (mut guest, wire) = guest();
    guest.start(VERSION_1 | MRG_RXBUF, 8);
    offer(&mut guest, 4, 1600);
    send(&wire, &frame(90, 1));
    assert_eq!(guest.wait(0, 1), [(0, 102)], "its buffers are taken");
    guest.write_config(4, &[2, 0]);
    // What the worker was at has ended.
    assert!(guest.device.pause());
    guest.device.resume();
    let before = bytes(&guest, BUFFERS, 4 * 1600);
    send(&wire, &frame(90, 2));
    // The worker saw the frame, or will when it goes on.
    assert!(guest.device.pause());
    guest.device.resume();
    assert!(guest.device.pause());
    assert_eq!((guest.answers(0), bytes(&guest, BUFFERS, 4 * 1600) == before), (vec![], true));
    guest.device.resume();
    guest.write_config(4, &[6, 0]);
    assert_eq!(guest.wait(0, 1), [(1, 102)]);
}

#[test]
fn only_a_tap_that_is_gone_ends_receiving() {
    use rustix::io::Errno;
    for (errno, end) in
        [(Errno::INVAL, false), (Errno::NOMEM, false), (Errno::BADFD, true), (Errno::NODEV, true)]
    {
        assert_eq!(is_end(&errno.into()), end, "{errno:?}");
    }
    assert!(is_end(&std::io::ErrorKind::UnexpectedEof.into()));
}

#[test]
fn the_driver_learns_address_link_and_mtu() {
    let (guest, _wire) = guest();
    assert_eq!(guest.read::<8>(0x2000), [0x52, 0x54, 0, 0, 0, 1, 1, 0]);
    assert_eq!(guest.read::<2>(0x200a), 1400_u16.to_le_bytes());
    assert_eq!(guest.offered() & (1 << 3 | 1 << 5 | 1 << 16), 1 << 3 | 1 << 5 | 1 << 16);
}

/// The answer to a command; none if it had no room.
fn command(guest: &mut Guest, queue: usize, bytes: &[u8]) -> u8 {
    guest.memory.write_slice(bytes, GuestAddress(BUFFERS)).unwrap();
    guest.memory.write_obj(0xff_u8, GuestAddress(BUFFERS + 0x1000)).unwrap();
    let length = u32::try_from(bytes.len()).unwrap();
    guest.add(queue, &[(BUFFERS, 1, false), (BUFFERS + 1, length - 1, false), (BUFFERS + 0x1000, 1, true)]);
    guest.kick(queue);
    assert_eq!(guest.wait(queue, 1)[0].1, 1);
    guest.memory.read_obj(GuestAddress(BUFFERS + 0x1000)).unwrap()
}

#[test]
fn commands_are_carried_out_or_refused() {
    let (mut guest, _wires, link) = nic(2);
    guest.start(VERSION_1 | CTRL_VQ | MQ | STATUS | GUEST_ANNOUNCE, 16);
    for (bytes, answer) in [
        (&[0, 0, 1][..], 0),
        (&[0, 5, 0], 0),
        (&[0, 0], 1),
        (&[0, 6, 1], 1),
        (&[1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6], 0),
        (&[1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 2, 3, 4, 5, 6], 1),
        (&[1, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], 1),
        (&[1, 1, 2, 0, 0, 0, 0, 9], 0),
        (&[1, 1, 2, 0, 0], 1),
        (&[2, 0, 1, 0], 1),
        (&[4, 0, 2, 0], 0),
        (&[4, 0, 0, 0], 1),
        (&[4, 0, 3, 0], 1),
        (&[4, 0, 2], 1),
        (&[5, 0, 0, 0], 1),
        (&[9, 9], 1),
    ] {
        assert_eq!(command(&mut guest, 4, bytes), answer, "{bytes:?}");
    }
    assert_eq!(guest.read::<6>(0x2000), [2, 0, 0, 0, 0, 9]);
    guest.add(4, &[(BUFFERS, 16, false)]);
    guest.kick(4);
    assert_eq!(guest.wait(4, 1)[0].1, 0, "no room for an answer");
    assert_eq!(guest.read::<2>(0x2006), [1, 0]);
    link.announce();
    guest.router.take(VECTOR_DATA + 5);
    assert_eq!(guest.read::<2>(0x2006), [3, 0]);
    assert_eq!(command(&mut guest, 4, &[3, 0]), 0);
    assert_eq!(guest.read::<2>(0x2006), [1, 0]);
    link.announce();
    guest.start(VERSION_1 | CTRL_VQ, 16);
    assert_eq!(
        guest.read::<8>(0x2000),
        [0x52, 0x54, 0, 0, 0, 1, 1, 0],
        "its own address, and nothing to announce"
    );
    assert_eq!(command(&mut guest, 2, &[0, 0, 1]), 0, "the queue is where it is without others");
    assert_eq!(command(&mut guest, 2, &[4, 0, 2, 0]), 1);
}

#[test]
fn queue_pairs_are_used_as_the_driver_sets_them() {
    let (mut guest, wires, _) = nic(2);
    assert_eq!(guest.read::<2>(0x2008), 2_u16.to_le_bytes());
    for _ in 0..3 {
        guest.start(VERSION_1 | CTRL_VQ | MQ | MRG_RXBUF, 16);
        for pair in [0, 2] {
            for at in 0..4 {
                guest.add(pair, &[(BUFFERS + 0x4000 * pair as u64 + 0x2000 + 2000 * at, 2000, true)]);
            }
            guest.kick(pair);
        }
        for wire in &wires {
            send(wire, &frame(70, 1));
        }
        assert_eq!(guest.wait(0, 1)[0].1, 82);
        assert_eq!(command(&mut guest, 4, &[4, 0, 2, 0]), 0);
        assert_eq!(guest.wait(2, 1)[0].1, 82, "what waited");
        send(&wires[1], &frame(71, 1));
        assert_eq!(guest.wait(2, 1)[0].1, 83);
        for (queue, wire) in [(1, &wires[0]), (3, &wires[1])] {
            guest.add(queue, &[(BUFFERS, 90, false)]);
            guest.kick(queue);
            guest.wait(queue, 1);
            let (count, _) = rustix::net::recv(wire, &mut [0; 99], rustix::net::RecvFlags::empty()).unwrap();
            assert_eq!(count, 90);
        }
        assert_eq!(command(&mut guest, 4, &[4, 0, 1, 0]), 0);
    }
}

#[test]
fn a_link_that_is_down_loses_frames() {
    let (mut guest, wires, link) = nic(1);
    link.set_up(false);
    assert_eq!(guest.read::<2>(0x2006), [0, 0]);
    guest.start(VERSION_1 | MRG_RXBUF | STATUS, 16);
    offer(&mut guest, 2, 1600);
    guest.add(1, &[(BUFFERS, 90, false)]);
    guest.kick(1);
    guest.wait(1, 1);
    assert!(rustix::net::recv(&wires[0], &mut [0; 99], rustix::net::RecvFlags::empty()).is_err());
    // The socket has no room for all of these until some are read.
    for _ in 0..2000 {
        while rustix::io::write(&wires[0], &frame(70, 1)) == Err(rustix::io::Errno::AGAIN) {
            std::thread::yield_now();
        }
    }
    assert_eq!(guest.answers(0), []);
    link.set_up(true);
    guest.router.take(VECTOR_DATA + 3);
    assert_eq!(guest.read::<2>(0x2006), [1, 0]);
}

/// What happens to a NIC.
#[derive(Clone, Debug)]
enum Step {
    /// The driver makes a buffer available.
    Offer,
    /// A frame arrives.
    Frame(usize),
    /// The driver allows the device to access memory, or forbids it.
    BusMaster(bool),
    /// The VM is paused and goes on.
    Pause,
    /// It goes on in another process, with another tap.
    Load,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Offer),
        4 => (1_usize..1500).prop_map(Step::Frame),
        2 => any::<bool>().prop_map(Step::BusMaster),
        2 => Just(Step::Pause),
        1 => Just(Step::Load),
    ]
}

/// A driver, with the frames and the buffers that wait for each other.
struct Book {
    guest: Guest,
    wire: OwnedFd,
    is_master: bool,
    offered: u32,
    /// Heads and addresses, the oldest first.
    free: VecDeque<(u32, u64)>,
    frames: VecDeque<Vec<u8>>,
}

impl Book {
    const BUFFER: u32 = 1600;

    fn take(mut self, step: &Step) -> Self {
        match *step {
            // The descriptors of a ring.
            Step::Offer if self.offered < 60 => {
                let at = BUFFERS + u64::from(self.offered * Self::BUFFER);
                self.offered += 1;
                let head = self.guest.add(0, &[(at, Self::BUFFER, true)]);
                self.guest.kick(0);
                self.free.push_back((head.into(), at));
            }
            // As many as a socket keeps.
            Step::Frame(len) if self.frames.len() < 8 => {
                let frame = frame(len, u8::try_from(len % 256).unwrap());
                send(&self.wire, &frame);
                self.frames.push_back(frame);
            }
            Step::BusMaster(yes) => {
                self.guest.write_config(4, &[2 | u8::from(yes) << 2, 0]);
                self.is_master = yes;
            }
            Step::Pause => {
                assert!(self.guest.device.pause());
                self.guest.device.resume();
            }
            Step::Load if self.is_master => {
                let (device, mut wires, _) = device(1);
                self.guest = self.guest.loaded_into(Box::new(device));
                self.wire = wires.remove(0);
                self.frames.clear();
            }
            Step::Offer | Step::Frame(_) | Step::Load => {}
        }
        self.check();
        self
    }

    /// Each frame is in the buffer that was offered first, and no other buffer is answered.
    fn check(&mut self) {
        let count = if self.is_master { self.frames.len().min(self.free.len()) } else { 0 };
        if !self.is_master {
            // What the worker was at has ended.
            assert!(self.guest.device.pause());
            self.guest.device.resume();
        }
        let answers = if count > 0 { self.guest.wait(0, count) } else { self.guest.answers(0) };
        let delivered = self.frames.drain(..count).zip(self.free.drain(..count));
        let mut want = Vec::new();
        for (mut frame, (head, at)) in delivered {
            want.push((head, u32::try_from(frame.len()).unwrap()));
            frame[10] = 1;
            assert!(bytes(&self.guest, at, frame.len()) == frame, "the frame of buffer {head}");
        }
        assert_eq!(answers, want);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_frame_is_received_once_and_in_order(steps in prop::collection::vec(step(), 1..50)) {
        let (mut guest, wire) = guest();
        guest.start(VERSION_1 | MRG_RXBUF, 64);
        let (free, frames) = (VecDeque::new(), VecDeque::new());
        let mut book = Book { guest, wire, is_master: true, offered: 0, free, frames };
        for step in steps.iter().chain([&Step::BusMaster(true), &Step::Offer, &Step::Frame(60)]) {
            book = book.take(step);
        }
    }

    /// Any descriptors in both queues while frames arrive: nothing panics, no worker hangs, a reset is enough.
    #[test]
    fn random_chains_are_survived(
        descriptors in random_descriptors(),
        heads in random_heads(),
        frames in prop::collection::vec(0_usize..4000, 0..8),
        merge in any::<bool>(),
    ) {
        let (mut guest, wire) = guest();
        guest.start(VERSION_1 | if merge { MRG_RXBUF | LARGE } else { 0 }, 16);
        guest.put_descriptors(descriptors);
        for len in frames {
            send(&wire, &frame(len, 1));
        }
        guest.serve_heads(heads);
        guest.start(VERSION_1 | MRG_RXBUF, 16);
        let empty = |_: &()| rustix::net::recv(&wire, &mut [0; 9], rustix::net::RecvFlags::empty()).is_err();
        while !empty(&()) {}
        guest.add(1, &[(BUFFERS, 80, false)]);
        guest.kick(1);
        guest.wait(1, 1);
    }
}

#[test]
fn buffers_that_were_taken_and_not_used_are_given_back() {
    let (mut guest, wire) = guest();
    guest.start(VERSION_1 | MRG_RXBUF | LARGE, 64);
    offer(&mut guest, 50, 1526);
    send(&wire, &frame(100, 1));
    assert_eq!(guest.wait(0, 1), [(0, 112)]);
    for round in 1..4_u8 {
        let (device, wires, _) = device(1);
        guest = guest.loaded_into(Box::new(device));
        send(&wires[0], &frame(100, round));
        assert_eq!(guest.wait(0, 1), [(u32::from(round), 112)]);
    }
    // And so are they when the same device goes on.
    assert!(guest.device.pause());
    guest.device.resume();
}

#[test]
fn a_driver_with_invalid_chains_gets_empty_frames_for_the_others() {
    let (mut guest, _wire) = guest();
    guest.start(VERSION_1 | MRG_RXBUF | LARGE, 64);
    for len in [1000, 4, 1000] {
        guest.add(0, &[(BUFFERS, len, true)]);
    }
    guest.kick(0);
    assert_eq!(guest.wait(0, 1), [(1, 0)], "no room for a header");
    let (device, wires, _) = device(1);
    let mut guest = guest.loaded_into(Box::new(device));
    assert_eq!(guest.wait(0, 2), [(0, 0), (2, 0)]);
    offer(&mut guest, 50, 1526);
    send(&wires[0], &frame(100, 1));
    assert_eq!(guest.wait(0, 1), [(3, 112)]);
}

#[test]
fn queue_pairs_and_the_address_stay_as_the_driver_set_them() {
    let (mut guest, _wires, _) = nic(2);
    guest.start(VERSION_1 | MQ | CTRL_VQ, 16);
    assert_eq!(command(&mut guest, 4, &[4, 0, 2, 0]), 0);
    assert_eq!(command(&mut guest, 4, &[1, 1, 2, 4, 6, 8, 10, 12]), 0);
    let (device, wires, _) = device(2);
    let mut guest = guest.loaded_into(Box::new(device));
    assert_eq!(guest.read::<6>(0x2000), [2, 4, 6, 8, 10, 12]);
    guest.add(2, &[(BUFFERS, 2000, true)]);
    guest.kick(2);
    send(&wires[1], &frame(100, 1));
    assert_eq!(guest.wait(2, 1), [(0, 112)], "the second pair is in use");
}

#[test]
fn a_guest_that_was_loaded_announces_itself() {
    let (mut guest, _wires, _) = nic(1);
    guest.start(VERSION_1 | CTRL_VQ | STATUS | GUEST_ANNOUNCE, 16);
    assert_eq!(guest.read::<2>(0x2006), [1, 0]);
    let (device, _wires, _) = device(1);
    let mut guest = guest.loaded_into(Box::new(device));
    guest.router.take(VECTOR_DATA + 3);
    assert_eq!(guest.read::<2>(0x2006), [3, 0]);
    assert_eq!(command(&mut guest, 2, &[3, 0]), 0);
    assert_eq!(guest.read::<2>(0x2006), [1, 0]);
}

/// UDP is segmented where the host's kernel can do that; one without leave to make a tap is skipped.
#[test]
fn a_tap_says_what_it_can_do() {
    let tap = match crate::sys::tap::open("vireo-uso-test") {
        Ok(tap) => tap,
        Err(error) => {
            eprintln!("not tested: no tap ({error})");
            return;
        }
    };
    let release = rustix::system::uname();
    let mut version = release.release().to_str().unwrap().split(['.', '-']).map(|part| part.parse::<u32>());
    let since_6_2 = (version.next().unwrap().unwrap(), version.next().unwrap().unwrap()) >= (6, 2);
    let mac = "52:54:00:00:00:01".parse().unwrap();
    let device = NetDevice::new(&Net::new(tap, mac)).unwrap();
    let guest = Guest::new(Box::new(device));
    let uso = 1 << 54 | 1 << 55 | 1 << 56;
    assert_eq!(guest.offered() & uso, if since_6_2 { uso } else { 0 });
}
