use std::io::Write;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{BUFFERS, Guest, VERSION_1};
use super::*;
use crate::config::DiskImage;

const HEADER: u64 = BUFFERS;
const ANSWER: u64 = BUFFERS + 0x1000;
const DATA: u64 = BUFFERS + 0x2000;

fn guest() -> Guest {
    let disk = |byte: u8| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![byte; 1 << 16]).unwrap();
        Disk::new(DiskImage::Raw(file))
    };
    let (first, second) = (disk(1), disk(2));
    let Ok(scsi) = Scsi::new(&[(&first, DiskDevice::Disk), (&second, DiskDevice::CdRom)]) else {
        panic!("an image is rejected")
    };
    let mut guest = Guest::new(Box::new(scsi));
    guest.start(VERSION_1, 32);
    guest
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
fn task_management_finds_nothing_on_the_way() {
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
