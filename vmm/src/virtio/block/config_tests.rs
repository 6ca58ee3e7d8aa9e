//! The cache mode that a driver sets (section 5.2.5), and a capacity that grows.

use std::fs::File;
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{BUFFERS, Guest, VECTOR_DATA, VERSION_1};
use super::Block;
use super::config::BlockConfig;
use crate::block::ImageError;
use crate::block::engine::manual::Manual;
use crate::config::{Blocks, Disk, DiskImage};
use crate::state::{AnySection as _, SectionError};

const FLUSH: u64 = 1 << 9;
const CONFIG_WCE: u64 = 1 << 11;
/// Of `writeback` in the BAR.
const WRITE_BACK: u64 = 0x2000 + 32;

fn disk() -> Disk {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    Disk::new(DiskImage::Raw(file))
}

/// A disk whose writes are not carried out by an engine, so that its flushes are counted.
fn block(disk: &Disk) -> Box<Block> {
    Box::new(Block::new(disk).unwrap().with_engines(vec![Box::new(Manual::new())]))
}

fn write(guest: &mut Guest) {
    guest.memory.write_obj(1_u32, GuestAddress(BUFFERS)).unwrap();
    guest.memory.write_obj(0_u64, GuestAddress(BUFFERS + 8)).unwrap();
    guest.add(0, &[(BUFFERS, 16, false), (BUFFERS + 0x1000, 512, false), (BUFFERS + 16, 1, true)]);
    guest.kick(0);
    guest.wait(0, 1);
    assert_eq!(guest.memory.read_obj::<u8>(GuestAddress(BUFFERS + 16)).unwrap(), 0);
}

fn flushes(disk: &Disk) -> u64 {
    disk.counters().flushes().requests
}

fn mode(guest: &Guest) -> u8 {
    guest.read::<1>(WRITE_BACK)[0]
}

#[test]
fn writes_are_stable_unless_a_driver_knows_of_the_cache_and_has_it_on() {
    // What the driver accepts, what it writes to the field, what it reads, and whether its writes may wait.
    let all = FLUSH | CONFIG_WCE;
    for (accepted, set, reads, waits) in [
        (0, None, 0, false),
        (FLUSH, None, 1, true),
        (FLUSH, Some(0), 1, true),
        (CONFIG_WCE, None, 0, false),
        (CONFIG_WCE, Some(1), 0, false),
        (all, None, 1, true),
        (all, Some(0), 0, false),
        (all, Some(1), 1, true),
    ] {
        let disk = disk();
        let mut guest = Guest::new(block(&disk));
        assert_eq!(guest.offered() & all, all);
        guest.negotiate(VERSION_1 | accepted, 16);
        if let Some(value) = set {
            guest.write(WRITE_BACK, &[value]);
        }
        guest.write(0x14, &[0xf]);
        assert_eq!(mode(&guest), reads, "{accepted:#x} {set:?}");
        write(&mut guest);
        assert_eq!(flushes(&disk), u64::from(!waits), "{accepted:#x} {set:?}");
        guest.reset();
        assert_eq!(mode(&guest), 1, "a reset takes back what the driver has set");
    }
}

#[test]
fn a_disk_without_a_cache_has_no_mode_to_set() {
    let disk = disk().write_through(true);
    let mut guest = Guest::new(block(&disk));
    assert_eq!(guest.offered() & (FLUSH | CONFIG_WCE), 0);
    guest.start(VERSION_1, 16);
    for bytes in [&[1_u8][..], &[1; 8]] {
        guest.write(WRITE_BACK, bytes);
        guest.write(WRITE_BACK - 1, bytes);
    }
    assert_eq!(mode(&guest), 0);
    write(&mut guest);
    assert_eq!(flushes(&disk), 1);
}

#[test]
fn what_was_written_before_the_cache_was_switched_off_is_flushed() {
    let disk = disk();
    let mut guest = Guest::new(block(&disk));
    guest.start(VERSION_1 | FLUSH | CONFIG_WCE, 16);
    write(&mut guest);
    assert_eq!(flushes(&disk), 0);
    guest.write(WRITE_BACK, &[0]);
    let begin = Instant::now();
    while flushes(&disk) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is not flushed");
        std::thread::yield_now();
    }
    write(&mut guest);
    assert_eq!(flushes(&disk), 2);
    guest.write(WRITE_BACK, &[1]);
    write(&mut guest);
    assert_eq!(flushes(&disk), 2);
}

#[test]
fn a_saved_driver_finds_the_mode_that_it_has_set() {
    let disk = disk();
    for set in [0_u8, 1] {
        let mut guest = Guest::new(block(&disk));
        guest.start(VERSION_1 | FLUSH | CONFIG_WCE, 16);
        guest.write(WRITE_BACK, &[set]);
        let mut guest = guest.loaded_into(block(&disk));
        assert_eq!(mode(&guest), set);
        let before = flushes(&disk);
        write(&mut guest);
        assert_eq!(flushes(&disk) - before, u64::from(set == 0));
        guest.write(WRITE_BACK, &[1 - set]);
        assert_eq!(mode(&guest), 1 - set, "it can still be set");
    }
}

#[test]
fn a_state_with_a_cache_is_not_loaded_into_a_disk_without() {
    let state = BlockConfig::new(2048, true, 1, Blocks::default()).encode().unwrap();
    let loaded = BlockConfig::new(2048, false, 1, Blocks::default()).decode(&state);
    assert!(matches!(loaded, Err(SectionError::Invalid("the disk has another cache mode"))), "{loaded:?}");
}

const SIZE: u64 = 1 << 20;
/// Of `capacity` in the BAR.
const CAPACITY: u64 = 0x2000;

/// A disk on a file that the caller has, too.
fn disk_on(file: &File) -> Disk {
    Disk::new(DiskImage::Raw(file.try_clone().unwrap()))
}

fn capacity(guest: &Guest) -> u64 {
    u64::from_le_bytes(guest.read(CAPACITY)) * 512
}

/// Reads the sector before `end`; the status byte.
fn read_before(guest: &mut Guest, end: u64) -> u8 {
    guest.memory.write_obj(0_u32, GuestAddress(BUFFERS)).unwrap();
    guest.memory.write_obj(end / 512 - 1, GuestAddress(BUFFERS + 8)).unwrap();
    guest.add(0, &[(BUFFERS, 16, false), (BUFFERS + 0x1000, 512, true), (BUFFERS + 16, 1, true)]);
    guest.kick(0);
    guest.wait(0, 1);
    guest.memory.read_obj::<u8>(GuestAddress(BUFFERS + 16)).unwrap()
}

/// Waits for the interrupt of a configuration change.
fn wait_for_change(guest: &Guest, generation: u8) {
    guest.router.take(VECTOR_DATA + 1);
    assert_ne!(guest.read::<1>(0x15)[0], generation, "the generation of the configuration");
}

#[test]
fn a_driver_learns_that_its_disk_has_grown_and_uses_it() {
    for direct in [false, true] {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.set_len(SIZE).unwrap();
        let disk = disk_on(&file).direct(direct);
        let block = match Block::new(&disk) {
            Err(ImageError::Direct(error)) => {
                eprintln!("not tested: the file system of the sources has no direct I/O ({error})");
                continue;
            }
            block => Box::new(block.unwrap()),
        };
        let mut guest = Guest::new(block);
        guest.start(VERSION_1 | FLUSH, 16);
        disk.growth().check();
        assert_eq!((capacity(&guest), read_before(&mut guest, 3 * SIZE)), (SIZE, 1));
        let generation = guest.read::<1>(0x15)[0];

        // No whole sector more, then some.
        file.set_len(3 * SIZE + 100).unwrap();
        disk.growth().check();
        wait_for_change(&guest, generation);
        assert_eq!((capacity(&guest), read_before(&mut guest, 3 * SIZE)), (3 * SIZE, 0));
        assert_eq!(read_before(&mut guest, 3 * SIZE + 512), 1);

        // It does not shrink, whatever becomes of the file.
        file.set_len(SIZE).unwrap();
        disk.growth().check();
        assert_eq!(capacity(&guest), 3 * SIZE);
    }
}

#[test]
fn a_disk_that_has_grown_before_the_driver_is_ready_is_as_large() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    let disk = disk_on(&file);
    let mut guest = Guest::new(Box::new(Block::new(&disk).unwrap()));
    file.set_len(2 * SIZE).unwrap();
    disk.growth().check();
    guest.start(VERSION_1 | FLUSH, 16);
    assert_eq!((capacity(&guest), read_before(&mut guest, 2 * SIZE)), (2 * SIZE, 0));
    assert_eq!(guest.read::<1>(0x15)[0], 0, "no interrupt before the driver is ready");
    // One that may have read the capacity before.
    guest.negotiate(VERSION_1 | FLUSH, 16);
    file.set_len(3 * SIZE).unwrap();
    disk.growth().check();
    guest.write(0x14, &[0xf]);
    wait_for_change(&guest, 0);
}

#[test]
fn a_saved_driver_learns_that_its_disk_has_grown_since() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    let mut guest = Guest::new(Box::new(Block::new(&disk_on(&file)).unwrap()));
    guest.start(VERSION_1 | FLUSH, 16);
    file.set_len(2 * SIZE).unwrap();
    let mut guest = guest.loaded_into(Box::new(Block::new(&disk_on(&file)).unwrap()));
    wait_for_change(&guest, 0);
    assert_eq!((capacity(&guest), read_before(&mut guest, 2 * SIZE)), (2 * SIZE, 0));
    let state = BlockConfig::new(4096, true, 1, Blocks::default()).encode().unwrap();
    let loaded = BlockConfig::new(2048, true, 1, Blocks::default()).decode(&state);
    assert!(matches!(loaded, Err(SectionError::Invalid("the disk is smaller than it was"))), "{loaded:?}");
}
