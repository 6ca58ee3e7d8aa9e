use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{BUFFERS, EVENT_IDX, Guest, VERSION_1};
use super::Block;
use crate::block::ImageError;
use crate::config::{Blocks, Disk, DiskImage, DiskSerial};

const FLUSH: u64 = 1 << 9;
const FEATURES: u64 = VERSION_1 | FLUSH;
const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 16;
const DATA: u64 = BUFFERS + 0x1000;
const SECTORS: u64 = 2048;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at / 512 % 251).unwrap() ^ u8::try_from(at % 256).unwrap()).collect()
}

fn image() -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(usize::try_from(SECTORS * 512).unwrap())).unwrap();
    file
}

fn raw(file: &File) -> Disk {
    Disk::new(DiskImage::Raw(file.try_clone().unwrap()))
}

fn guest(disk: &Disk) -> Guest {
    let mut guest = Guest::new(Box::new(Block::new(disk).unwrap()));
    let features = guest.offered() & (FEATURES | EVENT_IDX);
    guest.start(features, 64);
    guest
}

/// One request; the status byte.
fn ask(guest: &mut Guest, kind: u32, sector: u64, buffers: &[(u64, u32, bool)]) -> u8 {
    guest.memory.write_obj(kind, GuestAddress(HEADER)).unwrap();
    guest.memory.write_obj(sector, GuestAddress(HEADER + 8)).unwrap();
    guest.memory.write_obj(0xee_u8, GuestAddress(STATUS)).unwrap();
    let mut chain = vec![(HEADER, 16, false)];
    chain.extend(buffers);
    chain.push((STATUS, 1, true));
    guest.add(0, &chain);
    guest.kick(0);
    guest.wait(0, 1);
    guest.memory.read_obj(GuestAddress(STATUS)).unwrap()
}

fn bytes(guest: &Guest, at: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    guest.memory.read_slice(&mut data, GuestAddress(at)).unwrap();
    data
}

#[test]
fn sectors_are_read_and_written_at_their_offset() {
    let file = image();
    let disk = raw(&file);
    let mut guest = guest(&disk);
    assert_eq!(ask(&mut guest, 0, 3, &[(DATA, 512, true), (DATA + 0x1000, 1024, true)]), 0);
    let whole = pattern(6 * 512);
    assert_eq!(bytes(&guest, DATA, 512), whole[3 * 512..4 * 512]);
    assert_eq!(bytes(&guest, DATA + 0x1000, 1024), whole[4 * 512..]);

    guest.memory.write_slice(&[0xa5; 1024], GuestAddress(DATA)).unwrap();
    assert_eq!(ask(&mut guest, 1, SECTORS - 2, &[(DATA, 1000, false), (DATA + 1000, 24, false)]), 0);
    assert_eq!(ask(&mut guest, 4, 0, &[]), 0);
    let mut back = [0; 1024];
    file.read_exact_at(&mut back, (SECTORS - 2) * 512).unwrap();
    assert_eq!(back, [0xa5; 1024]);
    let counted = [disk.counters().reads(), disk.counters().writes(), disk.counters().flushes()];
    assert_eq!(counted.map(|of| (of.requests, of.bytes)), [(1, 1536), (1, 1024), (1, 0)]);
}

#[test]
fn what_no_disk_can_do_is_an_error_of_that_request() {
    let mut guest = guest(&raw(&image()));
    let one = [(DATA, 512, true)];
    let out = [(DATA, 512, false)];
    let (ok, error, unsupported) = (0, 1, 2);
    for (kind, sector, buffers, want) in [
        (0, SECTORS - 1, &one[..], ok),
        (0, SECTORS, &one, error),
        (0, u64::MAX, &one, error),
        (0, u64::MAX / 512, &one, error),
        (0, 0, &[(DATA, 511, true)], error),
        (1, SECTORS, &out, error),
        (1, u64::MAX - 1, &out, error),
        (0, 0, &[], ok),
        (77, 0, &one, unsupported),
        (11, 0, &[], error),
        (11, 0, &[(DATA, 15, false)], error),
        (11, 0, &[(DATA, 512, false)], error),
    ] {
        assert_eq!(ask(&mut guest, kind, sector, buffers), want, "{kind} at {sector}");
    }
    // No room for a header, no room for a status.
    guest.add(0, &[(HEADER, 8, false), (STATUS, 1, true)]);
    guest.add(0, &[(HEADER, 16, false)]);
    guest.kick(0);
    assert_eq!(guest.wait(0, 2).iter().map(|answer| answer.1).collect::<Vec<_>>(), [1, 0]);
}

/// Field 41 of `/proc/PID/stat` (proc(5)) of the thread that serves the disk.
fn policy() -> i32 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let stat = tasks
        .filter_map(|task| std::fs::read_to_string(task.join("stat")).ok())
        .find(|stat| stat.contains("(virtio-block)"))
        .unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(38).unwrap().parse().unwrap()
}

#[test]
fn its_thread_gives_way_while_requests_come_together() {
    let mut guest = guest(&raw(&image()));
    guest.memory.write_slice(&[0; 16], GuestAddress(HEADER)).unwrap();
    for (at_once, wanted) in [(8, libc::SCHED_BATCH), (1, libc::SCHED_OTHER), (8, libc::SCHED_BATCH)] {
        let is_so = (0..2000).any(|_| {
            for _ in 0..at_once {
                guest.add(0, &[(HEADER, 16, false), (DATA, 512, true), (STATUS, 1, true)]);
            }
            guest.kick(0);
            guest.wait(0, at_once);
            policy() == wanted
        });
        assert!(is_so, "{at_once} at once: the policy is {}", policy());
    }
}

/// The engine takes 128 at a time, and those that the host has in memory are over at once.
#[test]
fn more_requests_than_are_in_flight_at_a_time_are_all_answered() {
    const COUNT: u64 = 250;
    let mut guest = Guest::new(Box::new(Block::new(&raw(&image())).unwrap()));
    guest.start(FEATURES | 1 << 28, 256);
    let whole = pattern(usize::try_from(COUNT * 512).unwrap());
    for round in 0..3 {
        let table = |at: u64| BUFFERS + at * 128;
        for at in 0..COUNT {
            // Header and status behind a table of three descriptors.
            let (header, status, data) = (table(at) + 64, table(at) + 96, DATA + 0x10_0000 + at * 512);
            guest.memory.write_obj(0_u32, GuestAddress(header)).unwrap();
            guest.memory.write_obj(at, GuestAddress(header + 8)).unwrap();
            let parts = [(header, 16_u32, 1_u16, 1_u16), (data, 512, 3, 2), (status, 1, 2, 0)];
            for (slot, (address, len, flags, next)) in (0..).zip(parts) {
                let slot = table(at) + slot * 16;
                guest.memory.write_obj(address, GuestAddress(slot)).unwrap();
                guest.memory.write_obj(len, GuestAddress(slot + 8)).unwrap();
                guest.memory.write_obj(flags, GuestAddress(slot + 12)).unwrap();
                guest.memory.write_obj(next, GuestAddress(slot + 14)).unwrap();
            }
            let head = u16::try_from(at).unwrap();
            guest.put_descriptor(0, head, (table(at), 48, 4, 0));
            guest.put_available(0, head);
        }
        guest.kick(0);
        let answered: std::collections::BTreeSet<u32> =
            guest.wait(0, 250).iter().map(|answer| answer.0).collect();
        assert_eq!(answered.len(), 250, "round {round}");
        assert!(bytes(&guest, DATA + 0x10_0000, whole.len()) == whole, "round {round}");
        guest.memory.write_slice(&vec![0; whole.len()], GuestAddress(DATA + 0x10_0000)).unwrap();
    }
}

fn range(guest: &mut Guest, kind: u32, sector: u64, count: u32, flags: u32) -> u8 {
    guest.memory.write_obj(sector, GuestAddress(DATA)).unwrap();
    guest.memory.write_obj(count, GuestAddress(DATA + 8)).unwrap();
    guest.memory.write_obj(flags, GuestAddress(DATA + 12)).unwrap();
    ask(guest, kind, 0, &[(DATA, 16, false)])
}

#[test]
fn discarded_and_zeroed_sectors_lose_their_content_and_no_others_do() {
    let file = image();
    let mut guest = guest(&raw(&file));
    assert_eq!(range(&mut guest, 13, 8, 8, 0), 0);
    assert_eq!(range(&mut guest, 13, 24, 8, 1), 0);
    assert_eq!(range(&mut guest, 11, 40, 8, 0), 0);
    let want = |sector: u64| matches!(sector, 8..16 | 24..32 | 40..48);
    let whole = pattern(64 * 512);
    for sector in 0..64_u64 {
        let mut back = [0; 512];
        file.read_exact_at(&mut back, sector * 512).unwrap();
        let at = usize::try_from(sector * 512).unwrap();
        let zero = back == [0; 512];
        assert_eq!(zero, want(sector), "sector {sector}");
        assert!(zero || back == whole[at..at + 512]);
    }
    assert_eq!(range(&mut guest, 11, 0, 8, 1), 2, "no such flag");
    assert_eq!(range(&mut guest, 13, SECTORS - 1, 2, 0), 1, "past the end");
    assert_eq!(range(&mut guest, 13, 0, u32::MAX, 0), 1, "more than offered");
}

/// What a request may keep a lane busy with is what the device says.
#[test]
fn a_request_discards_and_zeroes_no_more_than_is_offered() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 30).unwrap();
    let mut guest = guest(&raw(&file));
    for (kind, at) in [(11, 36), (13, 48)] {
        let most = u32::from_le_bytes(guest.read(0x2000 + at));
        let ranges = u32::from_le_bytes(guest.read(0x2000 + at + 4));
        assert!(most <= 1 << 19 && ranges <= 8, "{kind}: {most} sectors, {ranges} ranges");
        assert_eq!(range(&mut guest, kind, 0, most, 0), 0);
        assert_eq!(range(&mut guest, kind, 0, most + 1, 0), 1);
        let list = ranges * 16;
        guest.memory.write_slice(&vec![0; list as usize + 16], GuestAddress(DATA)).unwrap();
        assert_eq!(ask(&mut guest, kind, 0, &[(DATA, list, false)]), 0, "{kind}: {ranges} ranges");
        assert_eq!(ask(&mut guest, kind, 0, &[(DATA, list + 16, false)]), 1, "{kind}: one more");
    }
    let zeroed = u32::from_le_bytes(guest.read(0x2030));
    assert_eq!((u64::from(zeroed) * 512, u32::from_le_bytes(guest.read(0x2034))), (64 << 20, 1));
}

#[test]
fn a_disk_with_large_blocks_takes_whole_ones() {
    let file = image();
    // The last block is not whole.
    file.set_len((SECTORS + 7) * 512).unwrap();
    let blocks = Blocks::new(4096, 16384, Some(8192)).unwrap();
    let mut guest = guest(&raw(&file).with_blocks(blocks));
    assert_eq!(u64::from_le_bytes(guest.read(0x2000)), SECTORS, "capacity");
    assert_eq!(u32::from_le_bytes(guest.read(0x2014)), 4096, "blk_size");
    assert_eq!(guest.read::<4>(0x2018), [2, 0, 4, 0], "physical_block_exp, min_io_size");
    assert_eq!(u32::from_le_bytes(guest.read(0x202c)), 16, "discard_sector_alignment");
    assert_eq!(ask(&mut guest, 0, 8, &[(DATA, 4096, true)]), 0);
    assert_eq!(bytes(&guest, DATA, 4096), pattern(64 * 512)[4096..8192]);
    assert_eq!(ask(&mut guest, 0, 8, &[(DATA, 512, true)]), 1, "a part of a block");
    assert_eq!(ask(&mut guest, 1, 1, &[(DATA, 4096, false)]), 1, "parts of two");
    assert_eq!(range(&mut guest, 13, 8, 8, 0), 0);
    assert_eq!(range(&mut guest, 13, 8, 4, 0), 1);
    let small = tempfile::tempfile().unwrap();
    small.set_len(512).unwrap();
    assert!(matches!(Block::new(&raw(&small).with_blocks(blocks)), Err(ImageError::Small(4096))));
}

#[test]
fn a_read_only_disk_offers_ro_and_rejects_writes() {
    let file = image();
    let disk = raw(&file).read_only(true);
    let mut guest = guest(&disk);
    assert_eq!(guest.offered() & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5);
    assert_eq!(ask(&mut guest, 1, 0, &[(DATA, 512, false)]), 1);
    assert_eq!(range(&mut guest, 13, 0, 8, 0), 1);
    assert_eq!(ask(&mut guest, 0, 0, &[(DATA, 512, true)]), 0);
    assert_eq!(bytes(&guest, DATA, 512), pattern(512));
}

#[test]
fn the_driver_learns_size_serial_and_cache() {
    let disk = raw(&image()).serial(DiskSerial::new("vireo-1").unwrap());
    let mut guest = guest(&disk);
    assert_eq!(u64::from_le_bytes(guest.read(0x2000)), SECTORS);
    assert_eq!(guest.offered() & FLUSH, FLUSH);
    assert_eq!(ask(&mut guest, 8, 0, &[(DATA, 20, true)]), 0);
    assert_eq!(bytes(&guest, DATA, 20), b"vireo-1\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let through = Guest::new(Box::new(Block::new(&disk.write_through(true)).unwrap()));
    assert_eq!(through.offered() & FLUSH, 0);
}

#[test]
fn images_that_are_no_disks_are_refused() {
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(Block::new(&raw(&file)), Err(ImageError::Empty)));
    file.set_len(1000).unwrap();
    assert!(matches!(Block::new(&raw(&file)), Err(ImageError::Ragged(1000))));
    let qcow2 = Disk::new(DiskImage::Qcow2 { image: file, backing: None });
    assert!(matches!(Block::new(&qcow2), Err(ImageError::Unsupported("is not qcow2"))));
}

/// A guest whose disk bypasses the page cache, where the file system of the sources can do that.
fn guest_past_the_cache(disk: &Disk) -> Option<Guest> {
    match Block::new(disk) {
        Ok(block) => Some(Guest::new(Box::new(block))),
        Err(ImageError::Direct(error)) => {
            eprintln!("not tested: the file system of the sources has no direct I/O ({error})");
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// On a file system with direct I/O: what the host's page cache would hide is seen.
#[test]
fn a_disk_that_bypasses_the_cache_takes_any_sectors_and_buffers() {
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut model = pattern(1 << 20);
    file.write_all_at(&model, 0).unwrap();
    file.sync_all().unwrap();
    let disk = raw(&file).direct(true);
    let Some(mut guest) = guest_past_the_cache(&disk) else { return };
    guest.start(FEATURES, 64);
    // Aligned, unaligned in memory, unaligned in the file, both.
    for (round, (at, sector, len)) in
        [(DATA, 8, 4096), (DATA + 1, 16, 4096), (DATA, 33, 512), (DATA + 7, 41, 1536)].into_iter().enumerate()
    {
        let data = vec![u8::try_from(round).unwrap() + 1; len];
        guest.memory.write_slice(&data, GuestAddress(at)).unwrap();
        let buffer = u32::try_from(len).unwrap();
        assert_eq!(ask(&mut guest, 1, sector, &[(at, buffer, false)]), 0);
        let start = usize::try_from(sector * 512).unwrap();
        model[start..start + len].copy_from_slice(&data);
        assert_eq!(ask(&mut guest, 0, sector, &[(DATA + 0x4000 + 3, buffer, true)]), 0);
        assert!(bytes(&guest, DATA + 0x4003, len) == data, "round {round}");
    }
    assert_eq!(ask(&mut guest, 4, 0, &[]), 0);
    let mut back = vec![0; model.len()];
    file.read_exact_at(&mut back, 0).unwrap_or_else(|_| {
        // The file itself takes aligned buffers only now.
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::DIRECT).unwrap();
        file.read_exact_at(&mut back, 0).unwrap();
    });
    assert!(back == model);
}

/// Its tables are checked each time that it is opened, also when a guest has reset itself.
#[test]
fn a_qcow2_disk_may_bypass_the_cache() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("disk.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2", path.to_str().unwrap(), "1M"]);
    let image = File::options().read(true).write(true).open(&path).unwrap();
    let disk = Disk::new(DiskImage::Qcow2 { image, backing: None }).direct(true);
    for round in 1..3 {
        let Some(mut guest) = guest_past_the_cache(&disk) else { return };
        guest.start(FEATURES, 64);
        let data = vec![round; 4096];
        guest.memory.write_slice(&data, GuestAddress(DATA)).unwrap();
        assert_eq!(ask(&mut guest, 1, 8, &[(DATA, 4096, false)]), 0);
        assert_eq!(ask(&mut guest, 0, 8, &[(DATA + 0x4000, 4096, true)]), 0);
        assert!(bytes(&guest, DATA + 0x4000, 4096) == data, "round {round}");
        assert_eq!(ask(&mut guest, 4, 0, &[]), 0);
    }
    qemu_img(&["check", "-q", path.to_str().unwrap()]);
}

#[test]
fn direct_io_is_refused_where_there_is_none() {
    // Pipes have none, and no sectors either.
    let (reader, _writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(reader));
    assert!(Block::new(&raw(&file).direct(true)).is_err());
}

fn qemu_img(arguments: &[&str]) {
    let output = Command::new("qemu-img").args(arguments).output().expect("qemu-img is installed");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_qcow2_overlay_holds_what_was_written_and_the_backing_image_stays() {
    let dir = tempfile::tempdir().unwrap();
    let [base, top, flat] = ["base.raw", "top.qcow2", "flat.raw"].map(|name| dir.path().join(name));
    let mut model = pattern(4 << 20);
    std::fs::write(&base, &model).unwrap();
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", text(&base), "-F", "raw", text(&top)]);

    let open = |path: &Path, write| File::options().read(true).write(write).open(path).unwrap();
    let image = DiskImage::Qcow2 { image: open(&top, true), backing: Some(open(&base, false)) };
    let disk = Disk::new(image);
    let mut guest = guest(&disk);
    for (round, sector) in [0_u64, 1, 127, 128, 4000, 8191, 300, 129].into_iter().enumerate() {
        let data = vec![u8::try_from(round).unwrap() + 1; 512];
        guest.memory.write_slice(&data, GuestAddress(DATA)).unwrap();
        assert_eq!(ask(&mut guest, 1, sector, &[(DATA, 200, false), (DATA + 200, 312, false)]), 0);
        let at = usize::try_from(sector * 512).unwrap();
        model[at..at + 512].copy_from_slice(&data);
    }
    assert_eq!(range(&mut guest, 13, 1024, 300, 1), 0);
    model[1024 * 512..1324 * 512].fill(0);
    assert_eq!(range(&mut guest, 13, 2048, 129, 0), 0);
    model[2048 * 512..2177 * 512].fill(0);
    for sector in (0..8192).step_by(64) {
        assert_eq!(ask(&mut guest, 0, sector, &[(DATA, 10_000, true), (DATA + 10_000, 22_768, true)]), 0);
        let at = usize::try_from(sector * 512).unwrap();
        assert!(bytes(&guest, DATA, 32_768) == model[at..at + 32_768], "sector {sector}");
    }
    assert_eq!(ask(&mut guest, 4, 0, &[]), 0);
    drop(guest);

    qemu_img(&["check", "-q", text(&top)]);
    qemu_img(&["convert", "-O", "raw", text(&top), text(&flat)]);
    assert!(std::fs::read(&flat).unwrap() == model);
    assert!(std::fs::read(&base).unwrap() == pattern(4 << 20), "the backing image was written to");

    // A discard must never bring the backing image's content back.
    let mut guest = self::guest(&disk);
    assert_eq!(range(&mut guest, 11, 0, 128, 0), 0);
    assert_eq!(ask(&mut guest, 0, 64, &[(DATA, 512, true)]), 0);
    let read = bytes(&guest, DATA, 512);
    assert!(read == [0; 512] || read == model[64 * 512..65 * 512]);
}

#[test]
fn a_qcow2_header_opens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [secret, evil] = ["secret", "evil.qcow2"].map(|name| dir.path().join(name));
    std::fs::write(&secret, vec![0x5e; 1 << 20]).unwrap();
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", text(&secret), "-F", "raw", text(&evil)]);
    let image = File::options().read(true).write(true).open(&evil).unwrap();
    let mut guest = guest(&Disk::new(DiskImage::Qcow2 { image, backing: None }));
    assert_eq!(ask(&mut guest, 0, 0, &[(DATA, 512, true)]), 0);
    assert_eq!(bytes(&guest, DATA, 512), [0; 512]);

    let data = format!("data_file={}", text(&dir.path().join("data")));
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", &data, text(&evil), "1M"]);
    let image = File::options().read(true).write(true).open(&evil).unwrap();
    let disk = Disk::new(DiskImage::Qcow2 { image, backing: None });
    assert!(matches!(Block::new(&disk), Err(ImageError::Unsupported("keeps its data in another file"))));
}

#[test]
fn an_encrypted_qcow2_image_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("luks.qcow2");
    let secret = "secret,id=s,data=abc";
    let options = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    qemu_img(&["create", "-q", "--object", secret, "-f", "qcow2", "-o", options, text(&path), "1M"]);
    let image = File::options().read(true).write(true).open(&path).unwrap();
    let disk = Disk::new(DiskImage::Qcow2 { image, backing: None });
    assert!(matches!(Block::new(&disk), Err(ImageError::Unsupported("is encrypted"))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any descriptors at all: each chain is answered once, or the device needs a reset; and it serves afterwards.
    #[test]
    fn random_chains_are_answered_once(
        descriptors in prop::collection::vec(
            (prop_oneof![0_u64..0x200, BUFFERS..BUFFERS + 0x2000, any::<u64>()],
             prop_oneof![0_u32..64, 500_u32..520, any::<u32>()], 0_u16..8, 0_u16..20), 16),
        heads in prop::collection::vec(0_u16..17, 1..12),
        requests in prop::collection::vec((0_u32..15, 0_u64..SECTORS + 2), 16),
    ) {
        let mut guest = guest(&raw(&image()));
        guest.start(VERSION_1 | FLUSH, 16);
        for (slot, (kind, sector)) in (0_u64..).zip(requests) {
            guest.memory.write_obj(kind, GuestAddress(BUFFERS + slot * 16)).unwrap();
            guest.memory.write_obj(sector, GuestAddress(BUFFERS + slot * 16 + 8)).unwrap();
        }
        for (index, descriptor) in (0..).zip(descriptors) {
            guest.put_descriptor(0, index, descriptor);
        }
        let lying = heads.contains(&16);
        for &head in &heads {
            guest.put_available(0, head);
        }
        guest.kick(0);
        // A wild chain may read into the rings themselves; then anything goes, but a reset.
        if lying {
            guest.wait_for_plea();
        } else {
            let answered = guest.wait(0, heads.len());
            let mut want: Vec<u32> = heads.iter().copied().map(u32::from).collect();
            let mut got: Vec<u32> = answered.iter().map(|answer| answer.0).collect();
            want.sort_unstable();
            got.sort_unstable();
            prop_assert_eq!(got, want);
        }
        guest.start(VERSION_1 | FLUSH, 16);
        prop_assert_eq!(ask(&mut guest, 0, 0, &[(DATA, 512, true)]), 0);
    }
}
