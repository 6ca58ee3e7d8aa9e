//! The kernel proper, an ELF image, into guest memory: out of a bzImage's payload or from a file.

use std::io::BufRead;
use std::time::Instant;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::bzimage::BzImage;
use super::decompress;
use super::elf::{self, Elf, Parsed};
use super::error::LoadError;
use super::image::Image;
use super::kaslr::{self, Draw, Room};
use super::relocs::{Placed, Relocs};

const PAGE: usize = 4096;
/// Notes of a kernel are a few hundred bytes.
const NOTES_MAX: usize = 64 << 10;

/// A kernel in memory.
pub(super) struct Loaded {
    /// `startup_64`.
    pub(super) entry: GuestAddress,
    /// Whether its addresses are random.
    pub(super) randomised: bool,
}

/// Decompresses, places and relocates the payload. `None` if it is of a kind that only the image itself can handle;
/// what has been written to memory by then is inside `room` and harmless.
pub(super) fn load_payload(
    memory: &GuestMemoryMmap,
    image: &Image<'_>,
    bz: &BzImage,
    room: &Room,
    command_line: &str,
    draw: &mut Draw<'_>,
) -> Result<Option<Loaded>, LoadError> {
    if !bz.has_payload() {
        return Ok(None);
    }
    let Some(compression) = bz.compression(image)? else {
        tracing::warn!("the kernel's compression is unknown: it decompresses itself");
        return Ok(None);
    };
    let randomise = kaslr::wanted(command_line);
    let physical =
        if randomise && kaslr::physical_wanted(command_line) { room.random(draw)? } else { room.fixed()? };
    let (payload, size) = bz.payload(image, compression)?;
    let destination = Destination { base: room.preferred, physical, size: room.size };
    let mut writer = Writer::new(memory, destination, size);
    let start = Instant::now();
    decompress::decompress(compression, image.part(payload), &mut |bytes| writer.take(bytes))?;
    let Some((elf, table)) = writer.finish()? else {
        tracing::warn!(%compression, "the kernel's payload is not an ELF image: it decompresses itself");
        return Ok(None);
    };
    tracing::debug!(%compression, bytes = size, elapsed = ?start.elapsed(), "decompressed the kernel");
    let entry = destination.resolve(elf.entry, 1)?;
    if table.is_empty() || !randomise {
        return Ok(Some(Loaded { entry, randomised: false }));
    }
    let Some(relocs) = Relocs::parse(&table) else {
        tracing::warn!("the kernel's relocation table is of an unknown kind: it decompresses itself");
        return Ok(None);
    };
    let slide = kaslr::slide(room.preferred, room.size, room.align, draw)?;
    let start = Instant::now();
    relocs.apply(memory, Placed { physical, preferred: room.preferred, size: room.size, slide })?;
    tracing::debug!(words = table.len() / 4, elapsed = ?start.elapsed(), "relocated the kernel");
    Ok(Some(Loaded { entry, randomised: true }))
}

/// An ELF kernel in a file.
pub(super) struct Vmlinux {
    elf: Elf,
    /// 64-bit entry.
    pub(super) entry: u64,
    /// 32-bit PVH entry.
    pub(super) pvh_entry: Option<u64>,
}

impl Vmlinux {
    /// Physical addresses that the kernel takes.
    pub(super) fn physical_span(&self) -> std::ops::Range<u64> {
        self.elf.physical_span()
    }
}

/// Reads the headers and notes of an ELF kernel.
pub(super) fn open_elf(image: &Image<'_>) -> Result<Vmlinux, LoadError> {
    let mut head = Vec::new();
    let elf = loop {
        match elf::parse(&head)? {
            Parsed::Need(size) => {
                head.resize(size, 0);
                image.read_exact(&mut head, 0)?;
            }
            Parsed::Foreign => {
                return Err(LoadError::NotAKernel("an ELF file that is not an x86_64 executable".to_owned()));
            }
            Parsed::Elf(elf) => break elf,
        }
    };
    let pvh_entry = read_pvh_entry(image, &elf)?;
    let span = elf.physical_span();
    if pvh_entry.is_none() && !elf.in_kernel_map {
        let what =
            "an ELF program that is neither a Linux kernel nor has a PVH entry (XEN_ELFNOTE_PHYS32_ENTRY)";
        return Err(LoadError::NotAKernel(what.to_owned()));
    }
    let entry = elf.entry;
    if !span.contains(&pvh_entry.unwrap_or(entry)) {
        return Err(LoadError::Damaged("its entry lies outside its segments"));
    }
    Ok(Vmlinux { elf, entry, pvh_entry })
}

fn read_pvh_entry(image: &Image<'_>, elf: &Elf) -> Result<Option<u64>, LoadError> {
    for note in &elf.notes {
        let size = usize::try_from(note.end - note.start).unwrap_or(usize::MAX);
        if size > NOTES_MAX {
            return Err(LoadError::Damaged("its notes are larger than any kernel's"));
        }
        let mut bytes = vec![0; size];
        image.read_exact(&mut bytes, note.start)?;
        if let Some(entry) = elf::pvh_entry(&bytes) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Copies the segments to where they are linked. The caller has checked that there is room.
pub(super) fn load_elf(
    memory: &GuestMemoryMmap,
    image: &Image<'_>,
    vmlinux: &Vmlinux,
) -> Result<(), LoadError> {
    for segment in &vmlinux.elf.segments {
        let end = segment.offset + segment.file_size;
        if end > image.len() {
            return Err(LoadError::Truncated { expected: end, actual: image.len() });
        }
        let mut part = image.part(segment.offset..end);
        let mut at = segment.address;
        loop {
            let bytes = part.fill_buf().map_err(LoadError::ReadKernel)?;
            if bytes.is_empty() {
                break;
            }
            write_sparse(memory, at, bytes)?;
            let count = bytes.len();
            at += count as u64;
            part.consume(count);
        }
    }
    Ok(())
}

/// Where the image goes: what is linked at `base` at `physical`, `size` bytes of it.
#[derive(Clone, Copy)]
struct Destination {
    base: u64,
    physical: u64,
    size: u64,
}

impl Destination {
    /// Where `size` bytes linked at `address` are.
    fn resolve(&self, address: u64, size: u64) -> Result<GuestAddress, LoadError> {
        let outside = LoadError::Damaged("a segment lies outside the memory it reserves");
        let Some(offset) = address.checked_sub(self.base) else { return Err(outside) };
        match offset.checked_add(size) {
            Some(end) if end <= self.size => Ok(GuestAddress(self.physical + offset)),
            _ => Err(outside),
        }
    }
}

/// What the stream has turned out to be.
enum Content {
    /// Headers, as far as they have come.
    Head(Vec<u8>),
    /// An image, with what followed it.
    Elf(Elf, Vec<u8>),
    /// Something else.
    Foreign,
}

/// Puts an ELF image that comes as a stream into guest memory.
struct Writer<'a> {
    memory: &'a GuestMemoryMmap,
    destination: Destination,
    /// How many bytes are to come in all.
    expected: u64,
    position: u64,
    content: Content,
}

impl<'a> Writer<'a> {
    fn new(memory: &'a GuestMemoryMmap, destination: Destination, expected: u64) -> Self {
        Self { memory, destination, expected, position: 0, content: Content::Head(Vec::new()) }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), LoadError> {
        let end = self.position.saturating_add(bytes.len() as u64);
        if end > self.expected || end > self.destination.size {
            return Err(LoadError::PayloadSize { expected: self.expected });
        }
        if let Content::Head(head) = &mut self.content {
            head.extend_from_slice(bytes);
            match elf::parse(head)? {
                Parsed::Need(_) => {}
                Parsed::Foreign => self.content = Content::Foreign,
                Parsed::Elf(elf) => {
                    for segment in &elf.segments {
                        self.destination.resolve(segment.address, segment.memory_size)?;
                    }
                    let head = std::mem::take(head);
                    self.content = Content::Elf(elf, Vec::new());
                    self.put(&head, 0)?;
                }
            }
        } else {
            self.put(bytes, self.position)?;
        }
        self.position = end;
        Ok(())
    }

    /// Writes what of `bytes`, which stand at `position` in the file, is part of a segment; keeps what follows the
    /// image.
    fn put(&mut self, bytes: &[u8], position: u64) -> Result<(), LoadError> {
        let Content::Elf(elf, table) = &mut self.content else { return Ok(()) };
        for segment in &elf.segments {
            let start = segment.offset.max(position);
            if let Some(part) = within(bytes, position, start..segment.offset + segment.file_size) {
                let address = segment.address + (start - segment.offset);
                let address = self.destination.resolve(address, part.len() as u64)?;
                write_sparse(self.memory, address.0, part)?;
            }
        }
        if let Some(part) = within(bytes, position, elf.end.max(position)..u64::MAX) {
            table.extend_from_slice(part);
        }
        Ok(())
    }

    /// The image and what followed it; `None` if it was no ELF image.
    fn finish(self) -> Result<Option<(Elf, Vec<u8>)>, LoadError> {
        if self.position != self.expected {
            return Err(LoadError::PayloadSize { expected: self.expected });
        }
        match self.content {
            Content::Elf(elf, table) if elf.end <= self.position => Ok(Some((elf, table))),
            Content::Elf(..) | Content::Head(_) => {
                Err(LoadError::Damaged("its payload ends before the image it holds"))
            }
            Content::Foreign => Ok(None),
        }
    }
}

/// The part of `bytes`, which stand at `position`, that lies in `range`; `None` if none does.
fn within(bytes: &[u8], position: u64, range: std::ops::Range<u64>) -> Option<&[u8]> {
    let start = usize::try_from(range.start.checked_sub(position)?).ok()?;
    let end = usize::try_from(range.end.saturating_sub(position)).unwrap_or(usize::MAX).min(bytes.len());
    bytes.get(start..end).filter(|part| !part.is_empty())
}

/// Writes `bytes`, leaving out whole pages of zeros: guest memory is zero already, and a page that is not touched
/// takes no memory.
fn write_sparse(memory: &GuestMemoryMmap, address: u64, bytes: &[u8]) -> Result<(), LoadError> {
    let mut at = address;
    let mut rest = bytes;
    while !rest.is_empty() {
        let zeros = run(rest, at, true);
        let (_, after) = rest.split_at(zeros);
        let (content, after) = after.split_at(run(after, at + zeros as u64, false));
        if !content.is_empty() {
            memory.write_slice(content, GuestAddress(at + zeros as u64)).map_err(LoadError::Memory)?;
        }
        at += (zeros + content.len()) as u64;
        rest = after;
    }
    Ok(())
}

/// How many of `bytes`, which go to `address`, are pages of zeros at their beginning, or pages that are not.
fn run(bytes: &[u8], address: u64, zeros: bool) -> usize {
    let to_boundary = PAGE - usize::try_from(address % PAGE as u64).unwrap_or(0);
    let (first, rest) = bytes.split_at(to_boundary.min(bytes.len()));
    let pages = std::iter::once(first).chain(rest.chunks(PAGE));
    pages.take_while(|page| (*page == &[0; PAGE][..page.len()]) == zeros).map(<[u8]>::len).sum()
}
