//! Entry points to the command processing of drives.

use std::fs::File;

use vireo_vmconfig::DiskDevice;
use vm_memory::{Bytes, GuestAddress};

use crate::config::{Disk, DiskImage};
use crate::memory::{GuestMemory, Segments};
use crate::scsi::{Buffers, Unit};

/// Bytes of an image.
const IMAGE: u64 = 1 << 20;
/// Bytes of RAM, which buffers lie in.
const RAM: usize = 64 << 10;

fn disk() -> Disk {
    let fd = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    let file = File::from(fd);
    file.set_len(IMAGE).expect("room");
    Disk::new(DiskImage::Raw(file))
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
