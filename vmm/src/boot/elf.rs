//! The parts of an ELF64 file that loading a kernel needs (the System V ABI, chapters 4 and 5).

use std::ops::Range;

use super::error::LoadError;

const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// No kernel has more than a handful.
const PROGRAM_HEADERS_MAX: usize = 64;
/// Program headers follow the file header at once in every kernel; this leaves room.
const HEADERS_MAX: usize = 64 << 10;
const TYPE_EXECUTABLE: u16 = 2;
const MACHINE_X86_64: u16 = 62;
const SEGMENT_LOAD: u32 = 1;
const SEGMENT_NOTE: u32 = 4;
/// `__START_KERNEL_map`: where a 64-bit kernel is linked.
pub(super) const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
const XEN_PHYS32_ENTRY: u32 = 18;

/// A part of the file that goes to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Where it is in the file.
    pub(super) offset: u64,
    pub(super) file_size: u64,
    /// Physical address it is linked for.
    pub(super) address: u64,
    /// At least `file_size`; the rest is zero.
    pub(super) memory_size: u64,
}

/// An executable for x86_64 whose segments neither wrap nor run past the file format's limits.
#[derive(Debug)]
pub(super) struct Elf {
    /// Physical address of the first instruction, for a kernel.
    pub(super) entry: u64,
    pub(super) segments: Vec<Segment>,
    /// Note segments in the file.
    pub(super) notes: Vec<Range<u64>>,
    /// Where the file ends by its headers.
    pub(super) end: u64,
    /// Whether a segment is linked into the kernel's half of the address space.
    pub(super) in_kernel_map: bool,
}

/// The result of looking at the first bytes of a file.
#[derive(Debug)]
pub(super) enum Parsed {
    /// That many bytes are needed.
    Need(usize),
    /// Not an ELF executable for x86_64.
    Foreign,
    /// All headers are there.
    Elf(Elf),
}

/// Reads the headers from the first bytes of a file.
pub(super) fn parse(head: &[u8]) -> Result<Parsed, LoadError> {
    if head.len() < FILE_HEADER {
        return Ok(Parsed::Need(FILE_HEADER));
    }
    let damaged = || LoadError::Damaged("its ELF headers contradict themselves");
    let machine = u16_at(head, 18);
    if !head.starts_with(b"\x7fELF\x02\x01") || machine != Some(MACHINE_X86_64) {
        return Ok(Parsed::Foreign);
    }
    if u16_at(head, 16) != Some(TYPE_EXECUTABLE) {
        return Ok(Parsed::Foreign);
    }
    let (Some(entry), Some(table), Some(sections)) = (u64_at(head, 24), u64_at(head, 32), u64_at(head, 40))
    else {
        return Err(damaged());
    };
    let (Some(entry_size), Some(count)) = (u16_at(head, 54), u16_at(head, 56)) else { return Err(damaged()) };
    let (Some(section_size), Some(section_count)) = (u16_at(head, 58), u16_at(head, 60)) else {
        return Err(damaged());
    };
    let (table, count) = (usize::try_from(table).map_err(|_| damaged())?, usize::from(count));
    if usize::from(entry_size) != PROGRAM_HEADER || count == 0 || count > PROGRAM_HEADERS_MAX {
        return Err(damaged());
    }
    let needed = table.checked_add(count * PROGRAM_HEADER).filter(|end| *end <= HEADERS_MAX);
    let needed = needed.ok_or_else(damaged)?;
    let Some(headers) = head.get(table..needed) else { return Ok(Parsed::Need(needed)) };
    let end = sections.checked_add(u64::from(section_size) * u64::from(section_count)).ok_or_else(damaged)?;
    let mut elf = Elf { entry, segments: Vec::new(), notes: Vec::new(), end, in_kernel_map: false };
    for header in headers.chunks_exact(PROGRAM_HEADER) {
        add_segment(&mut elf, header).ok_or_else(damaged)?;
    }
    Ok(Parsed::Elf(elf))
}

/// `None` if the header describes what cannot be.
fn add_segment(elf: &mut Elf, header: &[u8]) -> Option<()> {
    let kind = u32_at(header, 0)?;
    let (offset, file_size) = (u64_at(header, 8)?, u64_at(header, 32)?);
    let file_end = offset.checked_add(file_size)?;
    match kind {
        SEGMENT_LOAD => {
            let (address, memory_size) = (u64_at(header, 24)?, u64_at(header, 40)?);
            address.checked_add(memory_size)?;
            if memory_size < file_size {
                return None;
            }
            elf.in_kernel_map |= u64_at(header, 16)? >= KERNEL_MAP;
            elf.segments.push(Segment { offset, file_size, address, memory_size });
        }
        SEGMENT_NOTE => elf.notes.push(offset..file_end),
        _ => return Some(()),
    }
    elf.end = elf.end.max(file_end);
    Some(())
}

impl Elf {
    /// From the first to behind the last physical address.
    pub(super) fn physical_span(&self) -> Range<u64> {
        let start = self.segments.iter().map(|segment| segment.address).min().unwrap_or(0);
        let end =
            self.segments.iter().map(|segment| segment.address + segment.memory_size).max().unwrap_or(0);
        start..end
    }
}

/// Finds the 32-bit PVH entry among notes (Xen's elfnote.h): an address of four or eight bytes.
pub(super) fn pvh_entry(notes: &[u8]) -> Option<u64> {
    let mut rest = notes;
    while rest.len() >= 12 {
        let name_size = usize::try_from(u32_at(rest, 0)?).ok()?;
        let value_size = usize::try_from(u32_at(rest, 4)?).ok()?;
        let kind = u32_at(rest, 8)?;
        let value_at = 12_usize.checked_add(name_size.checked_next_multiple_of(4)?)?;
        let next = value_at.checked_add(value_size.checked_next_multiple_of(4)?)?;
        let name = rest.get(12..12_usize.checked_add(name_size)?)?;
        if kind == XEN_PHYS32_ENTRY && name == b"Xen\0" {
            return match value_size {
                4 => u32_at(rest, value_at).map(u64::from),
                8 => u64_at(rest, value_at),
                _ => None,
            };
        }
        rest = rest.get(next..)?;
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}
