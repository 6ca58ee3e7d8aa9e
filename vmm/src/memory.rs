//! Guest memory: one memfd, mapped shared and without reservation, populated only where something touches it.

use std::fs::File;

use rustix::fs::{MemfdFlags, SealFlags};
use vm_memory::mmap::FromRangesError;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use crate::config::MemorySize;
use crate::layout;

/// The guest's RAM.
pub type GuestMemory = GuestMemoryMmap<()>;

/// The name of the memfd: how the guest's RAM is told apart from the monitor's own memory in `/proc/PID/smaps`.
pub const RAM_NAME: &str = "vireo-guest-ram";

/// A range of guest-physical addresses backed by RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamRange {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

/// Why guest memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The memfd could not be created or sized.
    #[error("cannot create a memfd of {bytes} bytes for guest memory")]
    Create {
        /// The guest's RAM.
        bytes: u64,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The memfd could not be mapped.
    #[error("cannot map guest memory")]
    Map(#[source] FromRangesError),
}

/// Where RAM lies: all of it from address zero if it ends before the ECAM window, else split around the hole.
pub fn ram_ranges(size: MemorySize) -> Vec<RamRange> {
    let bytes = size.bytes();
    if bytes <= layout::RAM_BELOW_4G_MAX {
        return vec![RamRange { start: 0, len: bytes }];
    }
    vec![
        RamRange { start: 0, len: layout::RAM_BELOW_4G_SPLIT },
        RamRange { start: layout::RAM_ABOVE_4G, len: bytes - layout::RAM_BELOW_4G_SPLIT },
    ]
}

/// Creates and maps RAM of `size`.
pub fn create(size: MemorySize) -> Result<GuestMemory, MemoryError> {
    let file = ram_file(size.bytes())
        .map_err(|errno| MemoryError::Create { bytes: size.bytes(), source: errno.into() })?;
    let mut offset = 0;
    let mut ranges = Vec::new();
    for RamRange { start, len } in ram_ranges(size) {
        let file = file.try_clone().map_err(|source| MemoryError::Create { bytes: size.bytes(), source })?;
        let len_here =
            usize::try_from(len).map_err(|_| MemoryError::Map(FromRangesError::InvalidGuestRegion))?;
        ranges.push((GuestAddress(start), len_here, Some(FileOffset::new(file, offset))));
        offset += len;
    }
    GuestMemory::from_ranges_with_files(ranges).map_err(MemoryError::Map)
}

/// Sealed against resizing: a mapping that runs past the end of its file would end the process with SIGBUS.
fn ram_file(bytes: u64) -> rustix::io::Result<File> {
    let fd = rustix::fs::memfd_create(RAM_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(File::from(fd))
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestMemoryBackend};

    use super::*;

    fn size(bytes: u64) -> MemorySize {
        MemorySize::from_bytes(bytes).unwrap()
    }

    #[test]
    fn ram_keeps_clear_of_the_hole() {
        let gib = 1 << 30;
        let cases: [(u64, &[(u64, u64)]); 5] = [
            (gib, &[(0, gib)]),
            (0xB000_0000, &[(0, 0xB000_0000)]),
            (0xB000_1000, &[(0, 2 * gib), (4 * gib, 0x3000_1000)]),
            (6 * gib, &[(0, 2 * gib), (4 * gib, 4 * gib)]),
            (64 * gib, &[(0, 2 * gib), (4 * gib, 62 * gib)]),
        ];
        for (bytes, want) in cases {
            let got: Vec<_> = ram_ranges(size(bytes)).iter().map(|r| (r.start, r.len)).collect();
            assert_eq!(got, want, "{bytes:#x}");
        }
    }

    #[test]
    fn both_sides_of_the_hole_are_memory_and_the_hole_is_not() {
        let memory = create(size(4 << 30)).unwrap();
        for address in [0, 0x7fff_fff8, 0x1_0000_0000, 0x1_7fff_fff8] {
            memory.write_obj(0x1122_3344_5566_7788_u64, GuestAddress(address)).unwrap();
            assert_eq!(memory.read_obj::<u64>(GuestAddress(address)).unwrap(), 0x1122_3344_5566_7788);
        }
        assert!(memory.write_obj(1_u8, GuestAddress(0x8000_0000)).is_err());
        assert_eq!(memory.num_regions(), 2);
    }

    #[test]
    fn the_mapping_can_be_found_by_its_name_and_is_not_populated() {
        let memory = create(size(1 << 30)).unwrap();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let at = smaps.find(RAM_NAME).expect("guest memory is a named mapping");
        let rss = smaps[at..].lines().find(|line| line.starts_with("Rss:")).unwrap();
        assert_eq!(rss.split_whitespace().nth(1), Some("0"), "{rss}");
        drop(memory);
    }
}
