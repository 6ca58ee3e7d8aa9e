use std::io::Write;

use proptest::prelude::*;
use vireo_vmconfig::DiskDevice;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::config::{CdDrive, Disk, DiskImage, DiskSerial, MediumLocked};
use crate::memory::{GuestMemory, Segments};

const BYTES: usize = 1 << 20;
const BUFFER: u64 = 0x1000;

struct Bench {
    memory: GuestMemory,
    unit: Unit,
}

fn bench(kind: DiskDevice, read_only: bool) -> Bench {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content()).unwrap();
    let serial = DiskSerial::new("S3R1AL").unwrap();
    let disk = Disk::new(DiskImage::Raw(file)).serial(serial).read_only(read_only);
    let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
    Bench { memory, unit: Unit::new(&disk, kind).unwrap() }
}

fn content() -> Vec<u8> {
    (0_u32..).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).take(BYTES).collect()
}

impl Bench {
    fn segments(&self, len: u32) -> Segments {
        let mut all = Segments::default();
        // In two parts, the first of an odd length.
        let first = len.min(37);
        all.push(&self.memory, GuestAddress(BUFFER), first).unwrap();
        all.push(&self.memory, GuestAddress(BUFFER + u64::from(first)), len - first).unwrap();
        all
    }

    /// What a command answers into a buffer of `room` bytes.
    fn ask(&mut self, cdb: &[u8], room: u32) -> Result<Vec<u8>, [u8; 18]> {
        let to_guest = self.segments(room);
        self.run(cdb, Buffers { to_guest, ..Buffers::default() }).map(|len| {
            let mut bytes = vec![0; usize::try_from(len).unwrap()];
            self.memory.read_slice(&mut bytes, GuestAddress(BUFFER)).unwrap();
            bytes
        })
    }

    fn give(&mut self, cdb: &[u8], data: &[u8]) -> Result<u64, [u8; 18]> {
        self.memory.write_slice(data, GuestAddress(BUFFER)).unwrap();
        let from_guest = self.segments(u32::try_from(data.len()).unwrap());
        self.run(cdb, Buffers { from_guest, ..Buffers::default() })
    }

    fn run(&mut self, cdb: &[u8], buffers: Buffers) -> Result<u64, [u8; 18]> {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let reply = self.unit.execute(&self.memory, &padded, buffers);
        reply.sense.map_or(Ok(reply.transferred), |sense| Err(sense.fixed()))
    }

    fn sense_of(&mut self, cdb: &[u8]) -> (u8, u8) {
        let sense = self.ask(cdb, 512).unwrap_err();
        (sense[2], sense[12])
    }
}

#[test]
fn a_disk_reads_what_is_there_and_writes_what_is_given() {
    let mut bench = bench(DiskDevice::Disk, false);
    let all = content();
    for (cdb, at, len) in [
        (&[0x28, 0, 0, 0, 0, 3, 0, 0, 2, 0][..], 3 * 512, 1024),
        (&[0x08, 0, 0, 7, 1, 0], 7 * 512, 512),
        (&[0xa8, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0], 9 * 512, 512),
        (&[0x88, 0, 0, 0, 0, 0, 0, 0, 7, 0xff, 0, 0, 0, 1, 0, 0], 2047 * 512, 512),
    ] {
        assert!(bench.ask(cdb, 4096).unwrap() == all[at..at + len], "{cdb:x?}");
    }
    let data = [0xc3; 1024];
    assert_eq!(bench.give(&[0x2a, 8, 0, 0, 0, 4, 0, 0, 2, 0], &data).unwrap(), 1024);
    assert_eq!(bench.ask(&[0x28, 0, 0, 0, 0, 4, 0, 0, 2, 0], 1024).unwrap(), data);
    assert!(bench.ask(&[0x28, 0, 0, 0, 0, 6, 0, 0, 1, 0], 512).unwrap() == all[6 * 512..7 * 512]);
    assert_eq!(bench.ask(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0).unwrap(), []);
}

#[test]
fn less_room_than_blocks_takes_what_fits() {
    let mut bench = bench(DiskDevice::Disk, false);
    assert_eq!(bench.ask(&[0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0], 700).unwrap(), content()[..700]);
    assert_eq!(bench.give(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 2, 0], &[9; 700]).unwrap(), 512, "whole blocks");
    assert!(bench.ask(&[0x28, 0, 0, 0, 0, 1, 0, 0, 1, 0], 512).unwrap() == content()[512..1024]);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let mut disk = bench(DiskDevice::Disk, false);
    for (cdb, sense) in [
        (&[0x28, 0, 0, 0, 8, 0, 0, 0, 1, 0][..], (5, 0x21)),
        (&[0x28, 0, 0, 0, 7, 0xff, 0, 0, 2, 0], (5, 0x21)),
        (&[0x88, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0], (5, 0x21)),
        (&[0xff], (5, 0x20)),
        (&[0x43, 0, 0, 0, 0, 0, 0, 0, 8, 0], (5, 0x20)),
        (&[0x12, 0, 5, 0, 36, 0], (5, 0x24)),
        (&[0x12, 1, 0x99, 0, 36, 0], (5, 0x24)),
        (&[0x1a, 0, 0x2a, 0, 36, 0], (5, 0x24)),
        (&[0x93, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], (5, 0x24)),
    ] {
        assert_eq!(disk.sense_of(cdb), sense, "{cdb:x?}");
        // The sense is kept for who asks for it, once.
        let kept = disk.ask(&[0x03, 0, 0, 0, 18, 0], 18).unwrap();
        assert_eq!((kept[0], kept[2], kept[12]), (0x70, sense.0, sense.1));
        assert_eq!(disk.ask(&[0x03, 0, 0, 0, 18, 0], 18).unwrap()[2], 0);
    }
    let mut locked = bench(DiskDevice::Disk, true);
    assert_eq!(locked.give(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0; 512]).unwrap_err()[2], 7);
    assert_eq!(locked.ask(&[0x1a, 0, 8, 0, 64, 0], 64).unwrap()[2] & 0x80, 0x80, "write-protected");
}

#[test]
fn inquiry_identifies_a_disk() {
    let mut bench = bench(DiskDevice::Disk, false);
    let inquiry = bench.ask(&[0x12, 0, 0, 0, 36, 0], 96).unwrap();
    assert_eq!((inquiry.len(), inquiry[0], inquiry[1]), (36, 0, 0));
    assert_eq!(&inquiry[8..32], b"VIREO   DISK            ");
    assert_eq!(bench.ask(&[0x12, 0, 0, 0, 5, 0], 96).unwrap().len(), 5);
    assert_eq!(&bench.ask(&[0x12, 1, 0x80, 0, 36, 0], 96).unwrap()[3..], b"\x06S3R1AL");
    let pages = bench.ask(&[0x12, 1, 0, 0, 36, 0], 96).unwrap();
    for page in &pages[4..] {
        let reply = bench.ask(&[0x12, 1, *page, 0, 255, 0], 255).unwrap();
        assert_eq!((reply[1], usize::from(reply[3]) + 4), (*page, reply.len()));
    }
    assert_eq!(bench.ask(&[0x25], 8).unwrap(), [0, 0, 7, 0xff, 0, 0, 2, 0]);
    let capacity = bench.ask(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], 32).unwrap();
    assert_eq!((&capacity[..12], capacity[14]), (&[0, 0, 0, 0, 0, 0, 7, 0xff, 0, 0, 2, 0][..], 0x80));
}

#[test]
fn unmapping_takes_whole_lists_or_nothing() {
    let mut bench = bench(DiskDevice::Disk, false);
    let list = |ranges: &[(u64, u32)]| {
        let len = u16::try_from(ranges.len() * 16).unwrap();
        let mut list = [&(len + 6).to_be_bytes()[..], &len.to_be_bytes(), &[0; 4]].concat();
        for (lba, blocks) in ranges {
            list.extend(lba.to_be_bytes());
            list.extend(blocks.to_be_bytes());
            list.extend([0; 4]);
        }
        list
    };
    let unmap = |len: usize| [0x42, 0, 0, 0, 0, 0, 0, 0, u8::try_from(len).unwrap(), 0];
    let bad = list(&[(0, 8), (2040, 9)]);
    assert_eq!(bench.give(&unmap(bad.len()), &bad).unwrap_err()[12], 0x21);
    assert!(bench.ask(&[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], 4096).unwrap() == content()[..4096]);
    let good = list(&[(0, 8), (16, 8)]);
    bench.give(&unmap(good.len()), &good).unwrap();
    assert_eq!(bench.ask(&[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], 4096).unwrap(), [0; 4096]);
    assert!(bench.ask(&[0x28, 0, 0, 0, 0, 8, 0, 0, 8, 0], 4096).unwrap() == content()[4096..8192]);
    let same = [0x93, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0];
    bench.give(&same, &[0; 512]).unwrap();
    assert_eq!(bench.ask(&[0x28, 0, 0, 0, 0, 8, 0, 0, 4, 0], 2048).unwrap(), [0; 2048]);
    assert_eq!(bench.give(&same, &[1; 512]).unwrap_err()[12], 0x24, "only zeros");
}

#[test]
fn a_cdrom_has_one_track_and_a_tray() {
    let mut bench = bench(DiskDevice::CdRom, false);
    let inquiry = bench.ask(&[0x12, 0, 0, 0, 36, 0], 96).unwrap();
    assert_eq!(inquiry[..2], [5, 0x80]);
    assert_eq!(bench.ask(&[0x25], 8).unwrap(), [0, 0, 1, 0xff, 0, 0, 8, 0]);
    assert!(bench.ask(&[0x28, 0, 0, 0, 0, 2, 0, 0, 1, 0], 2048).unwrap() == content()[4096..6144]);
    let toc = bench.ask(&[0x43, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64).unwrap();
    assert_eq!(toc, [0, 18, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0, 0, 0x14, 0xaa, 0, 0, 0, 2, 0]);
    let toc = bench.ask(&[0x43, 2, 0, 0, 0, 0, 0xaa, 0, 64, 0], 64).unwrap();
    assert_eq!(toc[8..], [0, 0, 8, 62], "two seconds and 512 frames");
    let profile =
        |bench: &mut Bench| bench.ask(&[0x46, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64).unwrap()[6..8].to_vec();
    assert_eq!(profile(&mut bench), [0, 8]);
    let event =
        |bench: &mut Bench| bench.ask(&[0x4a, 1, 0, 0, 0x10, 0, 0, 0, 8, 0], 8).unwrap()[4..6].to_vec();
    assert_eq!(event(&mut bench), [0, 2]);

    bench.ask(&[0x1e, 0, 0, 0, 1, 0], 0).unwrap();
    assert_eq!(bench.sense_of(&[0x1b, 0, 0, 0, 2, 0]), (5, 0x53), "locked");
    bench.ask(&[0x1e, 0, 0, 0, 0, 0], 0).unwrap();
    bench.ask(&[0x1b, 0, 0, 0, 2, 0], 0).unwrap();
    assert_eq!(event(&mut bench), [3, 1]);
    assert_eq!(profile(&mut bench), [0, 0]);
    for cdb in [&[0x00][..], &[0x25], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0x43, 0, 0, 0, 0, 0, 0, 0, 64, 0]]
    {
        assert_eq!(bench.sense_of(cdb), (2, 0x3a), "{cdb:x?}");
    }
    bench.ask(&[0x1b, 0, 0, 0, 3, 0], 0).unwrap();
    assert_eq!(event(&mut bench), [2, 2]);
    assert_eq!(bench.ask(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 2048).unwrap().len(), 2048);
    assert_eq!(bench.give(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0; 2048]).unwrap_err()[2], 7);
}

/// An image that begins with `byte`.
fn image(byte: u8) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[byte; 4096]).unwrap();
    file
}

#[test]
fn a_medium_is_inserted_changed_and_ejected() {
    let drive = std::sync::Arc::new(CdDrive::default());
    let disk = Disk::new(DiskImage::Drive(drive.clone()));
    let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
    let mut bench = Bench { memory, unit: Unit::new(&disk, DiskDevice::CdRom).unwrap() };
    let event =
        |bench: &mut Bench| bench.ask(&[0x4a, 1, 0, 0, 0x10, 0, 0, 0, 8, 0], 8).unwrap()[4..6].to_vec();
    let read = [0x28, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    assert_eq!((bench.sense_of(&[0x00]), event(&mut bench)), ((2, 0x3a), vec![0, 0]));
    assert!(drive.insert(&tempfile::tempfile().unwrap(), false).is_err(), "an empty file");
    for byte in [1, 2] {
        drive.insert(&image(byte), false).unwrap();
        assert_eq!(event(&mut bench), [2, 2]);
        assert_eq!(bench.ask(&[0x12, 0, 0, 0, 36, 0], 96).unwrap()[..2], [5, 0x80], "not for INQUIRY");
        assert_eq!(bench.sense_of(&read), (6, 0x28), "a unit attention, once");
        assert_eq!(bench.ask(&[0x25], 8).unwrap(), [0, 0, 0, 1, 0, 0, 8, 0]);
        assert_eq!(bench.ask(&read, 2048).unwrap(), [byte; 2048]);
    }
    bench.ask(&[0x1e, 0, 0, 0, 1, 0], 0).unwrap();
    assert_eq!(drive.eject(), Err(MediumLocked));
    assert_eq!(event(&mut bench), [1, 2], "the guest is asked for it");
    assert_eq!(event(&mut bench), [0, 2]);
    assert_eq!(bench.ask(&read, 2048).unwrap(), [2; 2048]);
    bench.ask(&[0x1e, 0, 0, 0, 0, 0], 0).unwrap();
    drive.eject().unwrap();
    assert_eq!((bench.sense_of(&read), event(&mut bench)), ((2, 0x3a), vec![3, 0]));
    // A reset, and a VM that is built again, unlock it.
    drive.insert(&image(3), false).unwrap();
    bench.sense_of(&[0x00]);
    bench.ask(&[0x1e, 0, 0, 0, 1, 0], 0).unwrap();
    bench.unit.reset();
    drive.eject().unwrap();
    drive.insert(&image(4), false).unwrap();
    bench.unit = Unit::new(&disk, DiskDevice::CdRom).unwrap();
    assert_eq!(bench.ask(&read, 2048).unwrap(), [4; 2048], "it was there when the unit was made");
}

proptest! {
    /// Any command with any buffers is answered, and what it answers fits.
    #[test]
    fn any_command_is_survived(
        kind in prop_oneof![Just(DiskDevice::Disk), Just(DiskDevice::CdRom)],
        commands in prop::collection::vec((
            prop_oneof![any::<u8>(), prop::sample::select(&[
                0x00, 0x03, 0x08, 0x0a, 0x12, 0x1a, 0x1b, 0x1e, 0x25, 0x28, 0x2a, 0x2f, 0x35, 0x41, 0x42, 0x43,
                0x46, 0x4a, 0x51, 0x5a, 0x88, 0x8a, 0x91, 0x93, 0x9e, 0xa0, 0xa8, 0xaa, 0xbd,
            ][..])],
            prop::array::uniform15(prop_oneof![Just(0), Just(1), Just(0x10), any::<u8>()]),
            0_u32..8192, 0_u32..8192, prop::collection::vec(any::<u8>(), 64),
        ), 1..30),
    ) {
        let mut bench = bench(kind, false);
        for (opcode, rest, to, from, data) in commands {
            bench.memory.write_slice(&data, GuestAddress(BUFFER)).unwrap();
            let cdb: Vec<u8> = std::iter::once(opcode).chain(rest).collect();
            let buffers = Buffers { to_guest: bench.segments(to), from_guest: bench.segments(from) };
            if let Ok(transferred) = bench.run(&cdb, buffers) {
                prop_assert!(transferred <= u64::from(to.max(from)), "{:x?}", cdb);
            }
        }
    }
}
