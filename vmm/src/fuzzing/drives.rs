//! Entry points to the command processing of drives.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use vireo_vmconfig::{DiskDevice, ErrorPolicy};
use vm_memory::{Bytes, GuestAddress};

use crate::block;
use crate::config::{Disk, DiskImage};
use crate::memory::{GuestMemory, Segments};
use crate::scsi::{Buffers, Unit};

/// Bytes of an image.
const IMAGE: u64 = 1 << 20;
/// Bytes of RAM, which buffers lie in.
const RAM: usize = 64 << 10;

pub(super) fn disk() -> Disk {
    let file = file(&[]);
    file.set_len(IMAGE).expect("room");
    Disk::new(DiskImage::Raw(file))
}

pub(super) fn file(content: &[u8]) -> File {
    let fd = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    let file = File::from(fd);
    file.write_all_at(content, 0).expect("room");
    file
}

pub(super) fn ram() -> GuestMemory {
    GuestMemory::from_ranges(&[(GuestAddress(0), RAM)]).expect("address space")
}

/// Commands to a disk, or with an odd first byte to a CD-ROM drive: each is a command block, and the lengths of the
/// buffers in both directions in units of 16 bytes. What data there is for the drive is the script itself.
pub fn scsi(script: &[u8]) {
    let Some((kind, mut commands)) = script.split_first() else { return };
    let kind = if kind & 1 == 0 { DiskDevice::Disk } else { DiskDevice::CdRom };
    let mut unit = Unit::new(&disk(), kind).expect("an image");
    let memory = ram();
    memory.write_slice(script.get(..4096).unwrap_or(script), GuestAddress(0)).expect("RAM at 0");
    let buffer = |units: u8| {
        let mut segments = Segments::default();
        segments.push(&memory, GuestAddress(0), u32::from(units) * 16).expect("in RAM");
        segments
    };
    while let Some((cdb, rest)) = commands.split_first_chunk::<16>() {
        let Some((&[to, from], rest)) = rest.split_first_chunk::<2>() else { return };
        commands = rest;
        let buffers = Buffers { to_guest: buffer(to), from_guest: buffer(from) };
        let reply = unit.execute(&memory, cdb, buffers);
        assert!(reply.transferred <= 16 * u64::from(to.max(from)), "more than there is room for");
    }
}

/// Command lists and tables of the SATA controller: the script is RAM from address 0, where the list lies. The slots
/// are carried out one after the other, on a disk and on a CD-ROM drive.
pub fn ahci(script: &[u8]) {
    let memory = ram();
    let script = script.get(..RAM).unwrap_or(script);
    memory.write_slice(script, GuestAddress(0)).expect("RAM at 0");
    crate::ahci::fuzz_slots(&memory, &disk());
}

/// A qcow2 image, from its header on, of which a few bytes in front say what is done with the disk: four bytes an access,
/// whose first counts them.
pub fn qcow2(script: &[u8]) {
    let Some((count, script)) = script.split_first() else { return };
    let count = usize::from(count % 16) * 4;
    let Some((accesses, image)) = script.split_at_checked(count) else { return };
    let disk =
        Disk::new(DiskImage::Qcow2 { image: file(image), backing: None }).on_error(ErrorPolicy::Report);
    let Ok(block::Opened { mut backend, .. }) = block::open(&disk, false) else { return };
    let memory = ram();
    let sectors = backend.sectors();
    assert!(sectors > 0, "a disk without a sector");
    let (accesses, _) = accesses.as_chunks::<4>();
    for &[kind, low, high, len] in accesses {
        let len = (u64::from(len % 64) + 1).min(sectors);
        // Near the beginning, or near the end.
        let near = u64::from(u16::from_le_bytes([low, high]));
        let at = if kind & 0x80 == 0 { near } else { sectors.saturating_sub(near) }.min(sectors - len);
        let (offset, bytes) = (at * block::SECTOR, len * block::SECTOR);
        let mut buffer = Segments::default();
        let size = u32::try_from(bytes).expect("a few sectors");
        buffer.push(&memory, GuestAddress(0), size).expect("in RAM");
        // All of them may fail.
        let _ = match kind % 6 {
            0 => backend.read(&memory, &buffer, offset),
            1 => backend.write(&memory, &buffer, offset),
            2 => backend.flush(),
            3 => backend.discard(offset, bytes),
            4 => backend.write_zeroes(offset, bytes, kind & 0x40 == 0),
            _ => {
                backend.locate(offset, &buffer, kind & 0x40 == 0);
                Ok(())
            }
        };
    }
    let _ = backend.flush();
}
