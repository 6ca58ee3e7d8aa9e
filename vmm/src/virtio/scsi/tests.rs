use std::io::Write;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{BUFFERS, Guest, VERSION_1};
use super::*;
use crate::block::engine::manual::Manual;
use crate::config::DiskImage;
use crate::pci::Function as _;

const HEADER: u64 = BUFFERS;
const ANSWER: u64 = BUFFERS + 0x1000;
const DATA: u64 = BUFFERS + 0x2000;

fn scsi() -> Scsi {
    let disk = |byte: u8| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![byte; 1 << 16]).unwrap();
        Disk::new(DiskImage::Raw(file))
    };
    let (first, second) = (disk(1), disk(2));
    let Ok(scsi) = Scsi::new(&[(&first, DiskDevice::Disk), (&second, DiskDevice::CdRom)]) else {
        panic!("an image is rejected")
    };
    scsi
}

fn guest() -> Guest {
    let mut guest = Guest::new(Box::new(scsi()));
    guest.start(VERSION_1, 32);
    guest
}

/// One whose reads are over when the test has it so.
fn guest_with(engine: &Manual) -> Guest {
    let mut guest = Guest::new(Box::new(scsi().with_engine(Box::new(engine.clone()))));
    guest.start(VERSION_1, 256);
    guest
}

/// Puts a command of the first drive into the queue; the head, and where its answer and its data will be.
fn put(guest: &mut Guest, number: u64, cdb: &[u8], room: u32) -> (u32, u64) {
    let at = BUFFERS + 0x10_0000 + number * 0x2000;
    let mut header = [0; 51];
    header[..4].copy_from_slice(&[1, 0, 0x40, 0]);
    header[19..19 + cdb.len()].copy_from_slice(cdb);
    guest.memory.write_slice(&header, GuestAddress(at)).unwrap();
    guest.memory.write_slice(&[0xee; 108], GuestAddress(at + 0x400)).unwrap();
    let mut chain = vec![(at, 51, false), (at + 0x400, 108, true)];
    if room > 0 {
        chain.push((at + 0x1000, room, true));
    }
    (guest.add(2, &chain).into(), at)
}

/// A read of one block.
fn read(guest: &mut Guest, block: u8) -> (u32, u64) {
    let asked = put(guest, block.into(), &[0x28, 0, 0, 0, 0, block, 0, 0, 1, 0], 512);
    guest.kick(2);
    asked
}

/// The status byte of an answer, and its response code.
fn outcome(guest: &Guest, at: u64) -> [u8; 2] {
    guest.memory.read_obj(GuestAddress(at + 0x400 + 10)).unwrap()
}

#[test]
fn reads_are_answered_in_the_order_in_which_they_are_over() {
    let engine = Manual::new();
    let mut guest = guest_with(&engine);
    let asked: Vec<_> = (0..3).map(|block| read(&mut guest, block)).collect();
    drop(engine.when(|state| state.running.len() == 3));
    for block in [2, 0, 1_usize] {
        let (head, at) = asked[block];
        assert_eq!(outcome(&guest, at), [0xee; 2]);
        engine.complete(block as u64 * 512, Ok(512));
        assert_eq!(guest.wait(2, 1), [(head, 108 + 512)]);
        assert_eq!(outcome(&guest, at), [GOOD, OK]);
    }
}

#[test]
fn what_is_no_transfer_waits_for_those_in_flight() {
    let engine = Manual::new();
    let mut guest = guest_with(&engine);
    let (first, _) = read(&mut guest, 0);
    drop(engine.when(|state| state.running.len() == 1));
    let (second, at) = put(&mut guest, 9, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0);
    guest.kick(2);
    drop(engine.when(|state| state.waited > 0));
    assert_eq!(guest.answers(2), [], "a flush with a read in flight");
    engine.complete(0, Ok(512));
    assert_eq!(guest.wait(2, 2), [(first, 620), (second, 108)]);
    assert_eq!(outcome(&guest, at), [GOOD, OK]);
    // And so does what a task management function asks for.
    let (third, _) = read(&mut guest, 1);
    drop(engine.when(|state| state.running.len() == 1));
    let request = [&[0; 4][..], &5_u32.to_le_bytes(), &[1, 0, 0x40, 0, 0, 0, 0, 0], &[0; 8]].concat();
    guest.memory.write_slice(&request, GuestAddress(HEADER)).unwrap();
    guest.add(0, &[(HEADER, 24, false), (ANSWER, 5, true)]);
    let waited = engine.when(|_| true).waited;
    guest.kick(0);
    drop(engine.when(|state| state.waited > waited));
    assert_eq!(guest.answers(0), []);
    engine.complete(512, Ok(512));
    assert_eq!(guest.wait(2, 1), [(third, 620)]);
    guest.wait(0, 1);
}

#[test]
fn a_read_that_did_not_do_all_is_carried_out_again() {
    let engine = Manual::new();
    let mut guest = guest_with(&engine);
    for moved in [Ok(100), Err(std::io::ErrorKind::Interrupted.into())] {
        let (head, at) = read(&mut guest, 3);
        engine.complete(3 * 512, moved);
        assert_eq!(guest.wait(2, 1), [(head, 620)]);
        assert_eq!(outcome(&guest, at), [GOOD, OK]);
        let mut data = [0; 512];
        guest.memory.read_slice(&mut data, GuestAddress(at + 0x1000)).unwrap();
        assert_eq!(data, [1; 512], "from the file");
        guest.memory.write_slice(&[0; 512], GuestAddress(at + 0x1000)).unwrap();
    }
}

#[test]
fn a_reset_and_a_pause_wait_for_what_is_in_flight() {
    let engine = Manual::new();
    let mut guest = guest_with(&engine);
    let (head, _) = read(&mut guest, 0);
    drop(engine.when(|state| state.running.len() == 1));
    let device = guest.device.clone();
    let pausing = std::thread::spawn(move || device.pause());
    drop(engine.when(|state| state.waited > 0));
    engine.complete(0, Ok(512));
    assert!(pausing.join().unwrap());
    assert_eq!(guest.answers(2), [(head, 620)]);
    guest.device.resume();
    let (_, at) = read(&mut guest, 1);
    drop(engine.when(|state| state.running.len() == 1));
    let waited = engine.when(|_| true).waited;
    guest.write(0x14, &[0]);
    drop(engine.when(|state| state.waited > waited));
    assert_ne!(guest.status(), 0, "the buffers are still the device's");
    engine.complete(512, Ok(512));
    guest.reset();
    assert_eq!(outcome(&guest, at), [0xee; 2], "no request is answered");
}

#[test]
fn reads_that_do_not_all_fit_are_answered() {
    let engine = Manual::new();
    let mut guest = guest_with(&engine);
    // Descriptors of a ring.
    for block in 0..80_u8 {
        put(&mut guest, block.into(), &[0x28, 0, 0, 0, 0, block, 0, 0, 1, 0], 512);
    }
    guest.kick(2);
    for over in 0..80_usize {
        let state = engine.when(|state| state.running.len() == (80 - over).min(128));
        let (_, offset) = state.running[0];
        drop(state);
        engine.complete(offset, Ok(512));
    }
    guest.wait(2, 80);
}

#[test]
fn writes_beside_each_other_reach_the_file() {
    let mut guest = guest();
    for block in 1..5_u8 {
        let at = BUFFERS + 0x20_0000 + u64::from(block) * 0x2000;
        let mut header = [0; 51];
        header[..4].copy_from_slice(&[1, 0, 0x40, 0]);
        header[19..29].copy_from_slice(&[0x2a, 0, 0, 0, 0, block, 0, 0, 1, 0]);
        guest.memory.write_slice(&header, GuestAddress(at)).unwrap();
        guest.memory.write_slice(&[0x40 + block; 512], GuestAddress(at + 0x1000)).unwrap();
        guest.add(2, &[(at, 51, false), (at + 0x1000, 512, false), (at + 0x400, 108, true)]);
    }
    guest.kick(2);
    guest.wait(2, 4);
    for block in 1..5_u8 {
        assert_eq!(outcome(&guest, BUFFERS + 0x20_0000 + u64::from(block) * 0x2000), [GOOD, OK]);
        let cdb = [0x28, 0, 0, 0, 0, block, 0, 0, 1, 0];
        assert_eq!(ask(&mut guest, [1, 0, 0x40, 0], &cdb, (0, 512)), ((0, 0, 0), 0));
        assert_eq!(guest.memory.read_obj::<u8>(GuestAddress(DATA)).unwrap(), 0x40 + block);
    }
}

/// Status, response code and sense key of a request, and how many bytes were missing.
fn ask(guest: &mut Guest, lun: [u8; 4], cdb: &[u8], (out, room): (u32, u32)) -> ((u8, u8, u8), u32) {
    let mut header = [0; 51];
    header[..4].copy_from_slice(&lun);
    header[19..19 + cdb.len()].copy_from_slice(cdb);
    guest.memory.write_slice(&header, GuestAddress(HEADER)).unwrap();
    guest.memory.write_slice(&[0; 108], GuestAddress(ANSWER)).unwrap();
    let mut chain = vec![(HEADER, 51, false)];
    if out > 0 {
        chain.push((DATA, out, false));
    }
    chain.push((ANSWER, 108, true));
    if room > 0 {
        chain.push((DATA, room, true));
    }
    guest.add(2, &chain);
    guest.kick(2);
    guest.wait(2, 1);
    let mut answer = [0; 30];
    guest.memory.read_slice(&mut answer, GuestAddress(ANSWER)).unwrap();
    let residual = u32::from_le_bytes([answer[4], answer[5], answer[6], answer[7]]);
    ((answer[10], answer[11], answer[14]), residual)
}

#[test]
fn each_drive_is_a_target() {
    let mut guest = guest();
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(ask(&mut guest, [1, 0, 0x40, 0], &read, (0, 512)), ((0, 0, 0), 0));
    assert_eq!(guest.memory.read_obj::<u64>(GuestAddress(DATA)).unwrap(), 0x0101_0101_0101_0101);
    assert_eq!(ask(&mut guest, [1, 1, 0, 0], &read, (0, 4096)), ((0, 0, 0), 2048));
    assert_eq!(guest.memory.read_obj::<u64>(GuestAddress(DATA)).unwrap(), 0x0202_0202_0202_0202);
    for (lun, want) in [
        ([1, 2, 0x40, 0], (0, BAD_TARGET, 0)),
        ([1, 255, 0, 0], (0, BAD_TARGET, 0)),
        ([0, 0, 0, 0], (0, BAD_TARGET, 0)),
        ([1, 0, 0x40, 1], (2, OK, 5)),
        ([1, 0, 0xc1, 1], (2, OK, 5)),
    ] {
        assert_eq!(ask(&mut guest, lun, &read, (0, 512)), (want, 512), "{lun:?}");
    }
}

#[test]
fn nothing_is_read_from_an_open_tray() {
    let mut guest = guest();
    let cdrom = [1, 1, 0, 0];
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(ask(&mut guest, cdrom, &[0x1b, 0, 0, 0, 2, 0], (0, 0)).0, (0, 0, 0), "eject");
    assert_eq!(ask(&mut guest, cdrom, &read, (0, 2048)), ((2, OK, 2), 2048));
    assert_eq!(ask(&mut guest, cdrom, &[0x1b, 0, 0, 0, 3, 0], (0, 0)).0, (0, 0, 0), "load");
    assert_eq!(ask(&mut guest, cdrom, &read, (0, 2048)), ((0, 0, 0), 0));
}

#[test]
fn a_rejected_request_has_sense_data() {
    let mut guest = guest();
    let first = [1, 0, 0, 0];
    guest.memory.write_slice(&[7; 512], GuestAddress(DATA)).unwrap();
    assert_eq!(ask(&mut guest, first, &[0x2a, 0, 0, 0, 0, 3, 0, 0, 1, 0], (512, 0)), ((0, 0, 0), 0));
    assert_eq!(ask(&mut guest, first, &[0x28, 0, 0, 0, 0, 3, 0, 0, 1, 0], (0, 512)), ((0, 0, 0), 0));
    assert_eq!(guest.memory.read_obj::<u8>(GuestAddress(DATA)).unwrap(), 7);
    assert_eq!(ask(&mut guest, first, &[0x28, 0, 1, 0, 0, 0, 0, 0, 1, 0], (0, 512)).0, (2, 0, 5));
    assert_eq!(ask(&mut guest, [1, 1, 0, 0], &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], (512, 0)).0, (2, 0, 7));
}

#[test]
fn task_management_functions_have_their_answers() {
    let mut guest = guest();
    let mut control = |kind: u32, function: u32, lun: [u8; 8]| {
        let request = [&kind.to_le_bytes()[..], &function.to_le_bytes(), &lun, &[0; 8]].concat();
        guest.memory.write_slice(&request, GuestAddress(HEADER)).unwrap();
        guest.add(0, &[(HEADER, 24, false), (ANSWER, 5, true)]);
        guest.kick(0);
        let (_, len) = guest.wait(0, 1)[0];
        let at = ANSWER + u64::from(len) - 1;
        (len, guest.memory.read_obj::<u8>(GuestAddress(at)).unwrap())
    };
    let first = [1, 0, 0x40, 0, 0, 0, 0, 0];
    assert_eq!(control(0, 0, first), (1, OK), "abort task");
    assert_eq!(control(0, 5, first), (1, OK), "reset of the unit");
    assert_eq!(control(0, 5, [1, 9, 0, 0, 0, 0, 0, 0]), (1, BAD_TARGET));
    assert_eq!(control(0, 99, first), (1, REJECTED));
    assert_eq!(control(2, 0, first), (5, OK), "subscribe");
    assert_eq!(control(77, 0, first), (1, FAILURE));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes in chains of any shape are answered, and the next request is served.
    #[test]
    fn any_request_is_answered(
        bytes in prop::collection::vec(any::<u8>(), 200),
        parts in prop::collection::vec((0_u64..0x300, 0_u32..200, any::<bool>()), 1..6),
        queue in prop_oneof![Just(0), Just(2)],
    ) {
        let mut guest = guest();
        guest.memory.write_slice(&bytes, GuestAddress(HEADER)).unwrap();
        let chain: Vec<_> = parts.iter().map(|&(at, len, write)| (HEADER + at, len, write)).collect();
        guest.add(queue, &chain);
        guest.kick(queue);
        guest.wait(queue, 1);
        let inquiry = ask(&mut guest, [1, 0, 0, 0], &[0x12, 0, 0, 0, 36, 0], (0, 36));
        prop_assert_eq!(inquiry, ((0, 0, 0), 0));
    }
}
