use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{
    BUFFERS, EVENT_IDX, Guest, VECTOR_DATA, VERSION_1, random_descriptors, random_heads,
};
use super::NetDevice;
use super::offload::{CTRL_VQ, GUEST_ANNOUNCE, MRG_RXBUF, STATUS};
use crate::config::{Link, Net};
use crate::pci::Function as _;

/// No test waits as long for its peer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Of configuration changes.
const CHANGE: u32 = VECTOR_DATA + 3;
const DOWN: [u8; 2] = [0, 0];
const UP: [u8; 2] = [1, 0];

fn net() -> (Net, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(TIMEOUT)).unwrap();
    theirs.set_write_timeout(Some(TIMEOUT)).unwrap();
    (Net::stream(ours.into(), "52:54:00:00:00:01".parse().unwrap()), theirs)
}

fn guest() -> (Guest, UnixStream, Arc<Link>) {
    let (net, wire) = net();
    (guest_of(&net), wire, net.link().clone())
}

fn guest_of(net: &Net) -> Guest {
    Guest::new(Box::new(NetDevice::new(net).unwrap()))
}

fn frame(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap() ^ seed).collect()
}

/// As it is on the wire.
fn framed(frame: &[u8]) -> Vec<u8> {
    [&u32::try_from(frame.len()).unwrap().to_be_bytes(), frame].concat()
}

/// The next frame on the wire.
fn receive(mut wire: &UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    wire.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    wire.read_exact(&mut frame).unwrap();
    frame
}

fn is_silent(wire: &UnixStream) -> bool {
    wire.set_nonblocking(true).unwrap();
    let result = (&*wire).read(&mut [0]);
    wire.set_nonblocking(false).unwrap();
    matches!(result, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

fn offer(guest: &mut Guest, count: u64, len: u32) {
    for at in 0..count {
        guest.add(0, &[(BUFFERS + at * u64::from(len), len, true)]);
    }
    guest.kick(0);
}

/// Makes a frame of the guest available. Its buffers are of its own.
fn transmit(guest: &mut Guest, number: u64, frame: &[u8]) {
    let at = BUFFERS + 0x40_0000 + number * 0x1_1000;
    guest.memory.write_slice(&[0; 12], GuestAddress(at)).unwrap();
    guest.memory.write_slice(frame, GuestAddress(at + 12)).unwrap();
    guest.add(1, &[(at, 12, false), (at + 12, u32::try_from(frame.len()).unwrap(), false)]);
}

fn bytes(guest: &Guest, at: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    guest.memory.read_slice(&mut data, GuestAddress(at)).unwrap();
    data
}

/// Pauses and resumes: what the workers were at has ended.
fn settle(guest: &Guest) {
    assert!(guest.device.pause());
    guest.device.resume();
}

/// How much processor time this process uses while nothing happens. Each test is a process.
fn time_of_idling() -> Duration {
    let used = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
    let before = used();
    std::thread::sleep(Duration::from_millis(300));
    used() - before
}

#[test]
fn nothing_is_offered_that_a_frame_alone_cannot_say() {
    let (guest, _wire, _) = guest();
    let offloads = 0b11 | 0xff << 7 | 0b111 << 54;
    assert_eq!(guest.offered() & offloads, 0);
    let rest = MRG_RXBUF | STATUS | CTRL_VQ | GUEST_ANNOUNCE;
    assert_eq!(guest.offered() & rest, rest);
    assert_eq!(guest.read::<8>(0x2000), [0x52, 0x54, 0, 0, 0, 1, 1, 0]);
}

#[test]
fn frames_go_both_ways_behind_their_lengths() {
    let (mut guest, mut wire, _) = guest();
    guest.start(VERSION_1 | MRG_RXBUF | EVENT_IDX, 64);
    for (round, len) in (0_u8..).zip([14, 60, 1514, 65_000, 65_553]) {
        let sent = frame(len, round);
        transmit(&mut guest, 0, &sent);
        guest.kick(1);
        guest.wait(1, 1);
        assert_eq!(receive(&wire), sent);
    }
    // No frame, and too large a frame: answered, not sent.
    transmit(&mut guest, 0, &frame(13, 0));
    transmit(&mut guest, 1, &frame(65_554, 0));
    guest.add(1, &[(BUFFERS, 12, false)]);
    guest.add(1, &[(BUFFERS, 3, false)]);
    guest.kick(1);
    guest.wait(1, 4);
    assert!(is_silent(&wire));

    offer(&mut guest, 2, 1526);
    guest.memory.write_slice(&[0xff; 2000], GuestAddress(BUFFERS)).unwrap();
    wire.write_all(&framed(&frame(1514, 9))).unwrap();
    assert_eq!(guest.wait(0, 1), [(0, 1526)]);
    let mut header = [0; 12];
    header[10] = 1;
    assert_eq!(bytes(&guest, BUFFERS, 12), header, "nothing but the number of buffers");
    assert_eq!(bytes(&guest, BUFFERS + 12, 1514), frame(1514, 9));
}

#[test]
fn a_frame_may_come_in_pieces_and_in_several_buffers() {
    let (mut guest, mut wire, _) = guest();
    guest.start(VERSION_1 | MRG_RXBUF, 64);
    offer(&mut guest, 60, 1526);
    let (long, short) = (frame(20_000, 1), frame(60, 2));
    let stream = [framed(&short), framed(&long), framed(&short)].concat();
    let cuts = [1, 3, 2, 30, 29, 2, 7_000];
    let mut rest = stream.as_slice();
    for cut in cuts {
        let (now, later) = rest.split_at(cut);
        wire.write_all(now).unwrap();
        drained(&guest, &wire);
        rest = later;
    }
    assert_eq!(guest.wait(0, 1), [(0, 72)]);
    wire.write_all(rest).unwrap();
    let answers = guest.wait(0, 15);
    let last = 20_012 - 13 * 1526;
    assert_eq!(answers[0], (1, 1526));
    assert_eq!(answers[13], (14, last));
    assert_eq!(answers[14], (15, 72));
    let mut got = bytes(&guest, BUFFERS + 1526, 20_012);
    assert_eq!(got[10..12], 14_u16.to_le_bytes(), "num_buffers");
    got.drain(..12);
    assert_eq!(got, long);
}

#[test]
fn without_room_frames_wait_and_nothing_is_lost() {
    let (mut guest, mut wire, _) = guest();
    guest.start(VERSION_1 | MRG_RXBUF | EVENT_IDX, 8);
    for round in 0..6 {
        wire.write_all(&framed(&frame(3000, round))).unwrap();
    }
    settle(&guest);
    assert!(time_of_idling() < Duration::from_millis(100), "it spins");
    for round in 0..6 {
        assert_eq!(guest.answers(0), []);
        guest.add(0, &[(BUFFERS, 2000, true)]);
        guest.kick(0);
        settle(&guest);
        assert_eq!(guest.answers(0), [], "it has room for half of it");
        guest.add(0, &[(BUFFERS + 2000, 2000, true)]);
        guest.kick(0);
        assert_eq!(guest.wait(0, 2).iter().map(|answer| answer.1).sum::<u32>(), 3012);
        assert_eq!(bytes(&guest, BUFFERS + 12, 3000), frame(3000, round));
    }
}

#[test]
fn a_frame_that_fits_no_buffer_is_lost_alone() {
    let (mut guest, mut wire, _) = guest();
    guest.start(VERSION_1, 8);
    offer(&mut guest, 4, 1526);
    wire.write_all(&framed(&frame(1515, 1))).unwrap();
    wire.write_all(&framed(&frame(1514, 2))).unwrap();
    assert_eq!(guest.wait(0, 1), [(0, 1526)]);
    assert_eq!(bytes(&guest, BUFFERS + 12, 1514), frame(1514, 2));
    // With merging: larger than all buffers together.
    guest.start(VERSION_1 | MRG_RXBUF, 8);
    offer(&mut guest, 8, 1526);
    wire.write_all(&framed(&frame(8 * 1526 - 11, 3))).unwrap();
    wire.write_all(&framed(&frame(8 * 1526 - 12, 4))).unwrap();
    assert_eq!(guest.wait(0, 8).len(), 8);
    assert_eq!(bytes(&guest, BUFFERS + 12, 8 * 1526 - 12), frame(8 * 1526 - 12, 4));
}

#[test]
fn invalid_buffers_are_answered_in_their_order() {
    let (mut guest, mut wire, _) = guest();
    guest.start(VERSION_1 | MRG_RXBUF, 16);
    for len in [1000, 4, 1000] {
        guest.add(0, &[(BUFFERS, len, true)]);
    }
    guest.kick(0);
    wire.write_all(&framed(&frame(1500, 1))).unwrap();
    assert_eq!(guest.wait(0, 2), [(0, 0), (1, 0)]);
    guest.add(0, &[(BUFFERS + 1000, 1000, true)]);
    guest.kick(0);
    assert_eq!(guest.wait(0, 2), [(2, 1000), (3, 512)]);
}

/// How many frames were taken, once there are some and no more come.
fn answered(guest: &mut Guest) -> usize {
    let (mut count, mut quiet) = (0, 0);
    while quiet < 10 {
        std::thread::sleep(Duration::from_millis(10));
        let new = guest.answers(1).len();
        count += new;
        quiet = if new == 0 && count > 0 { quiet + 1 } else { 0 };
    }
    count
}

#[test]
fn a_full_socket_holds_the_guest_back_and_nothing_is_lost() {
    let (mut guest, wire, _) = guest();
    guest.start(VERSION_1 | EVENT_IDX, 128);
    let frames: Vec<_> = (0..40).map(|number| frame(60_000, number)).collect();
    for (number, frame) in (0..).zip(&frames) {
        transmit(&mut guest, number, frame);
    }
    guest.kick(1);
    let answered = answered(&mut guest);
    assert!((1..20).contains(&answered), "{answered} frames were taken");
    assert!(time_of_idling() < Duration::from_millis(100), "it spins");
    // A pause moves nothing: what is in the socket is all.
    assert!(guest.device.pause());
    wire.set_nonblocking(true).unwrap();
    let mut got = Vec::new();
    let error = (&wire).read_to_end(&mut got).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    std::thread::sleep(Duration::from_millis(50));
    assert!(is_silent(&wire));
    guest.device.resume();
    let expected: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
    let before = got.len();
    assert!(before > 0 && before < expected.len());
    got.resize(expected.len(), 0);
    (&wire).read_exact(&mut got[before..]).unwrap();
    assert!(got == expected);
    guest.wait(1, 40 - answered);
    transmit(&mut guest, 0, &frames[7]);
    guest.kick(1);
    assert_eq!(receive(&wire), frames[7]);
}

#[test]
fn a_peer_that_is_gone_takes_the_link_down() {
    for mid_frame in [false, true] {
        let (net, mut wire) = net();
        let mut guest = guest_of(&net);
        guest.start(VERSION_1 | MRG_RXBUF | STATUS, 16);
        offer(&mut guest, 4, 1526);
        assert_eq!(guest.read::<2>(0x2006), UP);
        if mid_frame {
            wire.write_all(&framed(&frame(100, 1))[..50]).unwrap();
        }
        drop(wire);
        settle(&guest);
        guest.router.take(CHANGE);
        assert_eq!(guest.read::<2>(0x2006), DOWN);
        // What the guest sends is lost, and answered.
        transmit(&mut guest, 0, &frame(90, 1));
        guest.kick(1);
        guest.wait(1, 1);
        net.link().set_up(true);
        assert_eq!(guest.read::<2>(0x2006), DOWN, "the link is down");
        assert!(time_of_idling() < Duration::from_millis(100), "it spins");
        guest.start(VERSION_1 | MRG_RXBUF | STATUS, 16);
        assert_eq!(guest.read::<2>(0x2006), DOWN);
        assert_eq!(guest_of(&net).read::<2>(0x2006), DOWN, "and so in the VM that is built next");
    }
}

#[test]
fn a_peer_that_is_gone_is_noticed_by_sending() {
    let (mut guest, wire, link) = guest();
    guest.start(VERSION_1 | EVENT_IDX, 128);
    for number in 0..40 {
        transmit(&mut guest, number, &frame(60_000, 1));
    }
    guest.kick(1);
    settle(&guest);
    drop(wire);
    guest.wait(1, 40);
    assert!(link.is_cut());
    assert!(time_of_idling() < Duration::from_millis(100), "it spins");
}

#[test]
fn what_cannot_be_a_length_takes_the_link_down() {
    for length in [0, 13, 65_554, 0x0010_0000, u32::MAX] {
        let (mut guest, mut wire, _) = guest();
        guest.start(VERSION_1 | MRG_RXBUF | STATUS, 16);
        offer(&mut guest, 8, 1526);
        wire.write_all(&framed(&frame(100, 1))).unwrap();
        assert_eq!(guest.wait(0, 1), [(0, 112)]);
        wire.write_all(&length.to_be_bytes()).unwrap();
        guest.router.take(CHANGE);
        assert_eq!(guest.read::<2>(0x2006), DOWN, "{length}");
        assert_eq!(wire.read(&mut [0]).unwrap(), 0, "the connection is closed");
        let _ = wire.write_all(&framed(&frame(100, 1)));
        settle(&guest);
        assert_eq!(guest.answers(0), []);
    }
}

#[test]
fn a_link_that_is_down_loses_whole_frames() {
    let (mut guest, mut wire, link) = guest();
    guest.start(VERSION_1 | MRG_RXBUF | STATUS, 16);
    offer(&mut guest, 4, 1526);
    let cut = framed(&frame(200, 3));
    link.set_up(false);
    guest.router.take(CHANGE);
    assert_eq!(guest.read::<2>(0x2006), DOWN);
    for _ in 0..3000 {
        wire.write_all(&framed(&frame(300, 1))).unwrap();
    }
    wire.write_all(&cut[..100]).unwrap();
    transmit(&mut guest, 0, &frame(90, 1));
    guest.kick(1);
    guest.wait(1, 1);
    assert!(is_silent(&wire));
    drained(&guest, &wire);
    link.set_up(true);
    guest.router.take(CHANGE);
    wire.write_all(&cut[100..]).unwrap();
    assert_eq!(guest.wait(0, 1), [(0, 212)]);
    assert_eq!(bytes(&guest, BUFFERS + 12, 200), frame(200, 3));
}

/// Waits until the device has read everything.
fn drained(guest: &Guest, wire: &UnixStream) {
    let begin = Instant::now();
    while unread(wire) > 0 {
        assert!(begin.elapsed() < TIMEOUT, "bytes stay in the socket");
        std::thread::yield_now();
    }
    settle(guest);
}

/// How many bytes that were sent the other end has not read (SIOCOUTQ).
fn unread(wire: &UnixStream) -> u32 {
    use std::os::fd::AsRawFd as _;
    let mut count = 0;
    #[expect(unsafe_code, reason = "no safe wrapper of SIOCOUTQ")]
    // SAFETY: TIOCOUTQ, which SIOCOUTQ is, writes one `int`, which outlives the call.
    let result = unsafe { libc::ioctl(wire.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    assert_eq!(result, 0);
    count
}

#[test]
fn nothing_moves_while_the_function_may_not_access_memory() {
    let (mut guest, mut wire, _) = guest();
    guest.start(VERSION_1 | MRG_RXBUF, 8);
    offer(&mut guest, 4, 1600);
    wire.write_all(&framed(&frame(90, 1))).unwrap();
    assert_eq!(guest.wait(0, 1), [(0, 102)]);
    guest.write_config(4, &[2, 0]);
    settle(&guest);
    let all = |guest: &Guest| bytes(guest, 0, (1 << 20) + 4 * 1600);
    transmit(&mut guest, 0, &frame(70, 2));
    let before = all(&guest);
    wire.write_all(&framed(&frame(90, 2))).unwrap();
    guest.kick(1);
    settle(&guest);
    settle(&guest);
    assert!(all(&guest) == before && is_silent(&wire));
    assert!(time_of_idling() < Duration::from_millis(100), "it spins");
    guest.write_config(4, &[6, 0]);
    assert_eq!(guest.wait(0, 1), [(1, 102)]);
    guest.wait(1, 1);
    assert_eq!(receive(&wire), frame(70, 2));
}

#[test]
fn a_paused_nic_receives_nothing() {
    let (mut guest, mut wire, _) = guest();
    guest.start(VERSION_1 | MRG_RXBUF, 8);
    offer(&mut guest, 4, 1600);
    settle(&guest);
    assert!(guest.device.pause());
    wire.write_all(&framed(&frame(90, 1))).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((guest.answers(0), unread(&wire) > 0), (vec![], true));
    guest.device.resume();
    assert_eq!(guest.wait(0, 1), [(0, 102)]);
}

/// The bytes of a frame that is under way belong to the stream, not to the driver.
#[test]
fn the_next_driver_and_the_next_vm_find_the_beginning_of_a_frame() {
    let (net, mut wire) = net();
    let mut guest = guest_of(&net);
    let cut = framed(&frame(200, 1));
    for round in 0..4 {
        if round == 2 {
            // The guest has reset the VM, which is built anew.
            guest = guest_of(&net);
        }
        guest.start(VERSION_1 | MRG_RXBUF, 16);
        if round > 0 {
            wire.write_all(&cut[77..]).unwrap();
        }
        offer(&mut guest, 4, 1526);
        if round > 0 {
            assert_eq!(guest.wait(0, 1), [(0, 212)]);
            assert_eq!(bytes(&guest, BUFFERS + 12, 200), frame(200, 1));
        }
        wire.write_all(&cut[..77]).unwrap();
        drained(&guest, &wire);
    }
    // And what the driver before has sent is sent to its end.
    for number in 0..8 {
        transmit(&mut guest, number, &frame(60_000, 1));
    }
    guest.kick(1);
    assert!(answered(&mut guest) < 8);
    guest.start(VERSION_1 | MRG_RXBUF, 16);
    transmit(&mut guest, 0, &frame(100, 2));
    guest.kick(1);
    let mut got = receive(&wire);
    while got == frame(60_000, 1) {
        got = receive(&wire);
    }
    assert_eq!(got, frame(100, 2));
}

#[test]
fn a_guest_is_loaded_with_another_socket() {
    let (mut guest, mut wire, _) = guest();
    guest.start(VERSION_1 | MRG_RXBUF | CTRL_VQ | STATUS | GUEST_ANNOUNCE, 64);
    offer(&mut guest, 50, 1526);
    wire.write_all(&framed(&frame(100, 1))).unwrap();
    assert_eq!(guest.wait(0, 1), [(0, 112)]);
    wire.write_all(&framed(&frame(100, 1))[..50]).unwrap();
    drained(&guest, &wire);
    for round in 1..4_u8 {
        let (net, mut wire) = net();
        guest = guest.loaded_into(Box::new(NetDevice::new(&net).unwrap()));
        guest.router.take(CHANGE);
        assert_eq!(guest.read::<2>(0x2006), [3, 0], "it is to announce itself");
        wire.write_all(&framed(&frame(100, round))).unwrap();
        assert_eq!(guest.wait(0, 1), [(u32::from(round), 112)]);
        transmit(&mut guest, 0, &frame(80, round));
        guest.kick(1);
        guest.wait(1, 1);
        assert_eq!(receive(&wire), frame(80, round));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// However the bytes are cut, and whatever the sizes of buffers.
    #[test]
    fn each_frame_is_received_once_and_in_order(
        lens in prop::collection::vec(14_usize..3000, 1..20),
        cuts in prop::collection::vec(1_usize..4000, 1..10),
        buffer in 100_u32..2000,
        merge in any::<bool>(),
    ) {
        let (mut guest, mut wire, _) = guest();
        let features = if merge { MRG_RXBUF } else { 0 };
        guest.start(VERSION_1 | EVENT_IDX | features, 256);
        let frames: Vec<_> = (0..).zip(&lens).map(|(seed, len)| frame(*len, seed)).collect();
        let stream: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        // The socket takes no more of small pieces than the device has read.
        let writer = std::thread::spawn(move || {
            let mut rest = stream.as_slice();
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*cut));
                wire.write_all(now).unwrap();
                rest = later;
                if rest.is_empty() {
                    return wire;
                }
            }
            wire
        });
        let fitting: Vec<_> =
            frames.iter().filter(|frame| merge || frame.len() + 12 <= buffer as usize).collect();
        let needed = |frame: &&Vec<u8>| (frame.len() + 12).div_ceil(buffer as usize);
        let mut offered = 0;
        for frame in fitting {
            for _ in 0..needed(&frame) {
                guest.add(0, &[(BUFFERS + offered * u64::from(buffer), buffer, true)]);
                guest.kick(0);
                offered += 1;
            }
            let answers = guest.wait(0, needed(&frame));
            let at = BUFFERS + (offered - answers.len() as u64) * u64::from(buffer);
            prop_assert_eq!(answers.iter().map(|one| one.1 as usize).sum::<usize>(), frame.len() + 12);
            prop_assert!(&bytes(&guest, at + 12, frame.len()) == frame);
        }
        // The others fit no buffer.
        guest.add(0, &[(BUFFERS, buffer, true)]);
        guest.kick(0);
        drained(&guest, &writer.join().unwrap());
        prop_assert_eq!(guest.answers(0), []);
    }

    /// Any descriptors in both queues, and any bytes of the peer: nothing panics, no worker hangs, a reset is enough.
    #[test]
    fn random_chains_and_bytes_are_survived(
        descriptors in random_descriptors(),
        heads in random_heads(),
        lens in prop::collection::vec(14_usize..4000, 0..8),
        nonsense in prop::collection::vec(any::<u8>(), 0..64),
        merge in any::<bool>(),
    ) {
        let (mut guest, mut wire, _) = guest();
        guest.start(VERSION_1 | if merge { MRG_RXBUF } else { 0 }, 16);
        guest.put_descriptors(descriptors);
        for len in lens {
            wire.write_all(&framed(&frame(len, 1))).unwrap();
        }
        guest.serve_heads(heads);
        // It may have closed the connection at the first of them.
        let _ = wire.write_all(&nonsense);
        guest.start(VERSION_1 | MRG_RXBUF, 16);
        offer(&mut guest, 8, 1526);
        guest.add(1, &[(BUFFERS, 80, false)]);
        guest.kick(1);
        guest.wait(1, 1);
    }
}
