//! Guest memory: anonymous, without reservation, populated only where something touches it, and in huge pages where
//! the host has them. Where other processes serve devices, it is a file in memory that they map, too.
//!
//! A guest's first touch of a page is an exit. With small pages a kernel's start has 16 thousand of them, with huge
//! ones some hundred; and a host gives huge pages to private memory by default, to shared memory (a memfd) only where
//! an administrator allowed it. So it is shared only where it has to be.

pub mod device;
mod segments;

pub use segments::{OutsideMemory, Segments};

use std::fs::File;
use std::io;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::Advice;
use vireo_vmconfig::{GuestNode, HugePage};
use vm_memory::mmap::{FromRangesError, MmapRegionError};
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
    MmapRegion,
};

use crate::config::MemorySize;
use crate::{layout, sys};

/// The guest's RAM.
pub type GuestMemory = GuestMemoryMmap<()>;

/// What the vCPU maps at once, if host and guest addresses are congruent.
const HUGE_PAGE: usize = 2 << 20;
/// A page of the host.
const HOST_PAGE: u64 = 4096;
/// How often a mapping is tried to be aligned before it is taken as it comes.
const ALIGN_ATTEMPTS: usize = 8;

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
    /// It does not fit in the address space.
    #[error("cannot map {bytes} bytes for guest memory")]
    Map {
        /// Of one range.
        bytes: u64,
        /// The kernel's error.
        #[source]
        source: MmapRegionError,
    },
    /// The host has too few huge pages, or none of this size.
    #[error("cannot map {bytes} bytes of huge pages of {page} for guest memory")]
    HugePages {
        /// Of one range.
        bytes: u64,
        /// Their size.
        page: HugePage,
        /// The kernel's error.
        #[source]
        source: MmapRegionError,
    },
    /// A node of the host has too little, or there is none.
    #[error("cannot take {bytes} bytes of guest memory from NUMA node {node}")]
    Node {
        /// Of one range.
        bytes: u64,
        /// Of the host.
        node: u32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The ranges do not make a memory.
    #[error("cannot put guest memory together")]
    Ranges(#[source] FromRangesError),
}

/// The ranges of RAM: all of it from address zero if it ends before the ECAM window, else split around the hole.
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

/// The RAM of NUMA nodes with so many bytes: each range with the position of its node, by their addresses.
pub(crate) fn node_ranges(size: MemorySize, nodes: &[GuestNode]) -> Vec<(usize, RamRange)> {
    let mut found = Vec::new();
    let mut nodes = nodes.iter().map(|node| node.memory).enumerate();
    let mut current = nodes.next();
    for RamRange { mut start, mut len } in ram_ranges(size) {
        while len > 0 {
            let Some((node, left)) = current else { break };
            let taken = left.min(len);
            if taken > 0 {
                found.push((node, RamRange { start, len: taken }));
            }
            (start, len) = (start.saturating_add(taken), len - taken);
            current = if left == taken { nodes.next() } else { Some((node, left - taken)) };
        }
    }
    found
}

/// Has the memory of each node be of its node of the host, and takes it: where one has too few pages, a guest would be killed
/// when it touches them.
///
/// # Errors
/// When one has too few.
pub(crate) fn bind(memory: &GuestMemory, size: MemorySize, nodes: &[GuestNode]) -> Result<(), MemoryError> {
    for (position, RamRange { start, len }) in node_ranges(size, nodes) {
        let Some(node) = nodes.get(position).map(|node| node.host) else { continue };
        let bound = bind_range(memory, GuestAddress(start), len, node);
        bound.map_err(|source| MemoryError::Node { bytes: len, node, source })?;
    }
    Ok(())
}

fn bind_range(memory: &GuestMemory, start: GuestAddress, len: u64, node: u32) -> io::Result<()> {
    let absent = || io::Error::from(io::ErrorKind::InvalidInput);
    let region = memory.find_region(start).ok_or_else(absent)?;
    let at = start
        .0
        .checked_sub(region.start_addr().0)
        .and_then(|at| usize::try_from(at).ok())
        .ok_or_else(absent)?;
    let len = usize::try_from(len).map_err(|_| absent())?;
    sys::numa::bind(region, at, len, node)?;
    let address = region.as_ptr().wrapping_add(at).cast();
    #[expect(unsafe_code, reason = "rustix has no safe madvise")]
    // SAFETY: the range is inside of the mapping, as the call before has checked, and this advice changes no content.
    let taken = unsafe { rustix::mm::madvise(address, len, Advice::LinuxPopulateWrite) };
    Ok(taken?)
}

/// Maps RAM of `size`, of huge pages that the host has reserved where their size is given.
pub fn create(size: MemorySize, pages: Option<HugePage>) -> Result<GuestMemory, MemoryError> {
    assemble(size, |RamRange { len, .. }| match pages {
        Some(page) => map_huge(len, page),
        None => {
            let mapping = map(len)?;
            advise_huge_pages(&mapping);
            Ok(mapping)
        }
    })
}

/// As [`create`], of files in memory that other processes can map, and whose sizes they cannot change.
pub fn create_shared(size: MemorySize, pages: Option<HugePage>) -> Result<GuestMemory, MemoryError> {
    assemble(size, |RamRange { len, .. }| {
        let failed = |source| match pages {
            Some(page) => MemoryError::HugePages { bytes: len, page, source },
            None => MemoryError::Map { bytes: len, source },
        };
        let file = memory_file(len, pages).map_err(|error| failed(MmapRegionError::Mmap(error)))?;
        let flags = match pages {
            Some(_) => libc::MAP_SHARED,
            None => libc::MAP_SHARED | libc::MAP_NORESERVE,
        };
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let file = FileOffset::new(file, 0);
        let mapping = MmapRegion::build(Some(file), bytes, protection, flags).map_err(failed)?;
        if pages.is_none() {
            advise_huge_pages(&mapping);
        }
        Ok(mapping)
    })
}

/// An access beyond the end of a file that has become shorter would end this process: hence the seals.
fn memory_file(len: u64, pages: Option<HugePage>) -> io::Result<File> {
    let pages = match pages {
        None => MemfdFlags::empty(),
        Some(HugePage::Mib2) => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        Some(HugePage::Gib1) => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
    let file = rustix::fs::memfd_create("ram", flags)?;
    rustix::fs::ftruncate(&file, len)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Maps RAM of `size` from a file that has its ranges one after the other: what is written stays private.
pub(crate) fn map_file(size: MemorySize, file: &File) -> Result<GuestMemory, MemoryError> {
    let mut offset = 0;
    assemble(size, |RamRange { len, .. }| {
        let failed = |source| MemoryError::Map { bytes: len, source };
        let file = file.try_clone().map_err(|error| failed(MmapRegionError::Mmap(error)))?;
        let at = FileOffset::new(file, offset);
        offset += len;
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        let mapping = MmapRegion::build(Some(at), bytes, protection, flags).map_err(failed)?;
        advise_huge_pages(&mapping);
        Ok(mapping)
    })
}

/// Puts RAM of `size` together from a mapping of each range.
fn assemble(
    size: MemorySize,
    mut map: impl FnMut(RamRange) -> Result<MmapRegion, MemoryError>,
) -> Result<GuestMemory, MemoryError> {
    let mut regions = Vec::new();
    for range in ram_ranges(size) {
        let start = GuestAddress(range.start);
        let region = GuestRegionMmap::new(map(range)?, start);
        regions.push(region.ok_or(MemoryError::Ranges(FromRangesError::InvalidGuestRegion))?);
    }
    let ranges = |source| MemoryError::Ranges(FromRangesError::from(source));
    GuestMemory::from_regions(regions).map_err(ranges)
}

/// Whether the host has as many huge pages as memory of so many bytes takes. They are not kept.
///
/// # Errors
/// When it has not.
pub fn has_huge_pages(bytes: u64, page: HugePage) -> Result<(), MemoryError> {
    map_huge(bytes, page).map(drop)
}

/// Huge pages: the kernel reserves them for the mapping, and aligns it.
fn map_huge(bytes: u64, page: HugePage) -> Result<MmapRegion, MemoryError> {
    let size = match page {
        HugePage::Mib2 => libc::MAP_HUGE_2MB,
        HugePage::Gib1 => libc::MAP_HUGE_1GB,
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size;
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    MmapRegion::build(None, length, libc::PROT_READ | libc::PROT_WRITE, flags)
        .map_err(|source| MemoryError::HugePages { bytes, page, source })
}

/// A mapping at a multiple of the huge page's size, or anywhere if there is none to be had.
///
/// The kernel puts a mapping below the one before, where it fits. So a range that is not aligned is held (nothing is
/// charged for that) and what is below it is filled until the next try must be: with something as large as the
/// memory, for a filler of just the excess would go to any gap.
fn map(len: u64) -> Result<MmapRegion, MemoryError> {
    let bytes = usize::try_from(len).unwrap_or(usize::MAX);
    let usable = || {
        build(bytes, libc::PROT_READ | libc::PROT_WRITE)
            .map_err(|source| MemoryError::Map { bytes: len, source })
    };
    let mut fillers = Vec::new();
    for _ in 0..ALIGN_ATTEMPTS {
        let mapping = usable()?;
        let address = mapping.as_ptr().addr();
        if address.is_multiple_of(HUGE_PAGE) {
            return Ok(mapping);
        }
        drop(mapping);
        let excess = address.wrapping_sub(bytes) % HUGE_PAGE;
        for size in [bytes, bytes.next_multiple_of(HUGE_PAGE) + excess] {
            match build(size, libc::PROT_NONE) {
                Ok(filler) => fillers.push(filler),
                Err(_) => return usable(),
            }
        }
    }
    tracing::debug!("guest memory is not aligned: it will be in small pages");
    usable()
}

fn build(bytes: usize, protection: i32) -> Result<MmapRegion, MmapRegionError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    MmapRegion::build(None, bytes, protection, flags)
}

/// Gives whole pages in a range of RAM back to the host; they read as zeros afterwards. Where the host has reserved huge pages
/// for it, or a file has its content, nothing happens: the first would come from elsewhere, the other would be the content of
/// the file. What is not RAM is left out.
pub(crate) fn discard(memory: &GuestMemory, address: GuestAddress, len: u64) {
    for region in memory.iter() {
        let advice = match region.file_offset() {
            None if region.flags() & libc::MAP_HUGETLB == 0 => Advice::LinuxDontNeed,
            Some(_) if region.flags() & libc::MAP_SHARED != 0 => Advice::LinuxRemove,
            None | Some(_) => continue,
        };
        let base = region.start_addr().0;
        // Pages of the host, which regions begin and end at.
        let first = address.0.max(base).next_multiple_of(HOST_PAGE);
        let end =
            address.0.saturating_add(len).min(base.saturating_add(region.len())) / HOST_PAGE * HOST_PAGE;
        let (Some(at), Some(bytes)) = (first.checked_sub(base), end.checked_sub(first)) else { continue };
        let (Ok(at), Ok(bytes)) = (usize::try_from(at), usize::try_from(bytes)) else { continue };
        if bytes == 0 {
            continue;
        }
        let address = region.as_ptr().wrapping_add(at).cast();
        #[expect(unsafe_code, reason = "rustix has no safe madvise")]
        // SAFETY: the range is inside of the mapping, which is alive, and has no file but one in memory; guest memory has no
        // references into it, and its content may change at any time.
        let advised = unsafe { rustix::mm::madvise(address, bytes, advice) };
        if let Err(errno) = advised {
            tracing::debug!(%errno, "free memory of the guest stays");
        }
    }
}

/// Asks for huge pages, where the host gives them to those who ask. The advice also shows in `/proc/PID/smaps` as
/// `hg`, which distinguishes the guest's RAM from the monitor's own memory.
fn advise_huge_pages(mapping: &MmapRegion) {
    #[expect(unsafe_code, reason = "rustix has no safe madvise")]
    // SAFETY: the range is exactly the mapping, which is alive, and this advice changes no content.
    let advised =
        unsafe { rustix::mm::madvise(mapping.as_ptr().cast(), mapping.size(), Advice::LinuxHugepage) };
    if let Err(errno) = advised {
        tracing::debug!(%errno, "the host has no huge pages");
    }
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

    fn node(host: u32, memory: u64) -> GuestNode {
        GuestNode { host, vcpus: vec![host], memory }
    }

    #[test]
    fn nodes_have_ranges_on_both_sides_of_the_hole() {
        let gib = 1 << 30;
        let of = |nodes: &[u64]| {
            let nodes: Vec<_> = nodes.iter().map(|memory| node(0, *memory)).collect();
            let all = nodes.iter().map(|node| node.memory).sum();
            let ranges = node_ranges(size(all), &nodes).into_iter();
            ranges.map(|(node, range)| (node, range.start, range.len)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[gib]), [(0, 0, gib)]);
        assert_eq!(of(&[gib, gib / 2]), [(0, 0, gib), (1, gib, gib / 2)]);
        assert_eq!(of(&[2 * gib, 2 * gib]), [(0, 0, 2 * gib), (1, 4 * gib, 2 * gib)]);
        let across = [(0, 0, 2 * gib), (0, 4 * gib, gib), (1, 5 * gib, 3 * gib)];
        assert_eq!(of(&[3 * gib, 3 * gib]), across);
        let across = [(0, 0, gib), (1, gib, gib), (1, 4 * gib, gib), (2, 5 * gib, gib)];
        assert_eq!(of(&[gib, 2 * gib, gib]), across);
    }

    #[test]
    fn memory_of_a_node_is_bound_and_taken() {
        let memory = create(size(32 << 20), None).unwrap();
        let Err(error) = bind(&memory, size(32 << 20), &[node(1023, 32 << 20)]) else {
            panic!("this host has 1024 nodes")
        };
        assert_eq!(error.to_string(), "cannot take 33554432 bytes of guest memory from NUMA node 1023");
        if !std::fs::exists("/sys/devices/system/node/node0").unwrap() {
            eprintln!("SKIPPED: this kernel has no NUMA nodes");
            return;
        }
        bind(&memory, size(32 << 20), &[node(0, 24 << 20), node(0, 8 << 20)]).unwrap();
        let start = memory.iter().next().unwrap().as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        let line = maps.lines().find(|line| line.starts_with(&format!("{start:x} "))).expect("a mapping");
        assert!(line.contains(" bind:0 ") && line.contains(" N0="), "{line}");
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let at = smaps.find(&format!("{start:x}-")).unwrap();
        let resident = smaps[at..].lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        assert_eq!(resident.split_whitespace().next(), Some("32768"), "all of it is there");
    }

    #[test]
    fn shared_ram_is_files_of_fixed_sizes_that_give_pages_back() {
        let memory = create_shared(size(16 << 20), None).unwrap();
        let file = memory.iter().next().unwrap().file_offset().unwrap().file();
        let resized = [8 << 20, 32 << 20].map(|bytes| file.set_len(bytes).map_err(|error| error.kind()));
        assert_eq!(resized, [Err(std::io::ErrorKind::PermissionDenied); 2]);

        memory.write_slice(&[7; 1 << 20], GuestAddress(1 << 20)).unwrap();
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        let before = blocks();
        discard(&memory, GuestAddress(1 << 20), 1 << 19);
        assert!(blocks() < before, "{before} blocks stay");
        assert_eq!(memory.read_obj::<u8>(GuestAddress(1 << 20)).unwrap(), 0);
        assert_eq!(memory.read_obj::<u8>(GuestAddress((2 << 20) - 1)).unwrap(), 7);
    }

    #[test]
    fn both_sides_of_the_hole_are_memory_and_the_hole_is_not() {
        let memory = create(size(4 << 30), None).unwrap();
        for address in [0, 0x7fff_fff8, 0x1_0000_0000, 0x1_7fff_fff8] {
            memory.write_obj(0x1122_3344_5566_7788_u64, GuestAddress(address)).unwrap();
            assert_eq!(memory.read_obj::<u64>(GuestAddress(address)).unwrap(), 0x1122_3344_5566_7788);
        }
        assert!(memory.write_obj(1_u8, GuestAddress(0x8000_0000)).is_err());
        assert_eq!(memory.num_regions(), 2);
    }

    #[test]
    fn memory_of_every_size_is_aligned() {
        for bytes in [16 << 20, (16 << 20) + 0x1000, 256 << 20, (3 << 30) + 0x1ff000, 64 << 30] {
            for region in create(size(bytes), None).unwrap().iter() {
                assert_eq!(region.as_ptr().addr() % HUGE_PAGE, 0, "{bytes:#x}");
            }
        }
    }

    #[test]
    fn the_mapping_is_aligned_marked_and_not_populated() {
        let memory = create(size((1 << 30) + 0x1000), None).unwrap();
        let start = memory.iter().next().unwrap().as_ptr().addr();
        assert_eq!(start % HUGE_PAGE, 0);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let at = smaps
            .find(&format!("{start:x}-{:x} rw-p", start + (1 << 30) + 0x1000))
            .expect("a mapping of its own");
        let line = |name: &str| smaps[at..].lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(line("Rss:").split_whitespace().nth(1), Some("0"));
        assert!(line("VmFlags:").split_whitespace().any(|flag| flag == "hg"), "{}", line("VmFlags:"));
    }
}
