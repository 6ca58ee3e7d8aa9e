use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use imago::file::File as Storage;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, ShallowMapping, StorageOpenOptions};

use vm_memory::VolatileSlice;

use super::engine::ImageFile;
use super::refcounts::{self, Layout};
use super::{Backend, GuestMemory, ImageError, SECTOR, Segments, Stable, bypass_cache, whole_sectors};
use crate::sys::vectored::MAX_VECTORS;

/// What the importer lets a disk have, too.
const MAX_SIZE: u64 = 16 << 40;
/// Bytes of tables, which are QEMU's limits as well.
const MAX_L1: u64 = 32 << 20;
const MAX_REFCOUNTS: u64 = 8 << 20;

/// An image that imago reads and writes: qcow2, over a raw one where it has a backing file, and a raw one that bypasses
/// the page cache, whose sectors may be smaller than what the host transfers.
///
/// No file named by the image is opened: the backing image is given, and the gate rejects everything else.
pub(super) struct Formatted {
    image: FormatAccess<Storage>,
    /// The file of a raw image, and whether it is only read.
    raw: Option<(File, bool)>,
    sectors: u64,
    /// Bytes that offsets and lengths, and addresses of buffers, are multiples of where they bypass the page cache.
    alignment: u64,
    stable: Stable,
}

impl Formatted {
    /// A qcow2 image. Its backing image is read through the page cache, which all its overlays share.
    pub(super) fn open_qcow2(
        image: &File,
        backing: Option<&File>,
        (read_only, direct): (bool, bool),
    ) -> Result<Self, ImageError> {
        // What is read to be checked is not aligned; imago finds out what has to be. A guest that has reset itself opens an
        // image that bypasses the cache already.
        let bypass = |yes| if direct { bypass_cache(image, yes) } else { Ok(()) };
        bypass(false)?;
        let layout = check_header(image)?;
        bypass(true)?;
        let backing = backing
            .map(|file| {
                let raw = Raw::builder(storage(file, false, false)?).open(DenyImplicitOpenGate::default())?;
                Ok(FormatAccess::new(raw))
            })
            .transpose()
            .map_err(ImageError::Open)?;
        let opened = storage(image, !read_only, direct)
            .and_then(|storage| {
                Qcow2::<Storage>::builder(storage)
                    .write(!read_only)
                    .backing(backing)
                    .data_file(None)
                    .open(DenyImplicitOpenGate::default())
            })
            .map_err(ImageError::Open)?;
        // Only now it is known that there are no features by which tables mean something else.
        if !read_only {
            bypass(false)?;
            refcounts::check(image, &layout)?;
            bypass(true)?;
        }
        Self::new(FormatAccess::new(opened), None, direct)
    }

    /// A raw image that bypasses the page cache.
    pub(super) fn open_direct(file: &File, read_only: bool) -> Result<Self, ImageError> {
        let image = raw_direct(file, read_only).map_err(ImageError::Open)?;
        let file = file.try_clone().map_err(ImageError::Open)?;
        Self::new(image, Some((file, read_only)), true)
    }

    fn new(
        image: FormatAccess<Storage>,
        raw: Option<(File, bool)>,
        direct: bool,
    ) -> Result<Self, ImageError> {
        let sectors = whole_sectors(image.size())?;
        let alignment = if direct { image.req_align().max(image.mem_align()) } else { 1 };
        let alignment = u64::try_from(alignment).unwrap_or(u64::MAX).max(1);
        Ok(Self { image, raw, sectors, alignment, stable: Stable::default() })
    }

    /// Whether the file's blocks are no larger than a sector.
    fn has_small_blocks(&self) -> bool {
        u64::try_from(self.image.req_align()).is_ok_and(|block| block <= SECTOR)
    }
}

/// A raw image that bypasses the page cache, as large as it is now.
fn raw_direct(file: &File, read_only: bool) -> io::Result<FormatAccess<Storage>> {
    let storage = storage(file, !read_only, true)?;
    let raw = Raw::builder(storage).write(!read_only).open(DenyImplicitOpenGate::default())?;
    Ok(FormatAccess::new(raw))
}

/// As many buffers as one system call takes, and where they belong in the image.
fn calls<'a, 'm>(
    slices: &'a [VolatileSlice<'m>],
    mut offset: u64,
) -> impl Iterator<Item = (&'a [VolatileSlice<'m>], u64)> {
    slices.chunks(MAX_VECTORS).map(move |slices| {
        let here = offset;
        let len = slices.iter().map(|slice| u64::try_from(slice.len()).unwrap_or(u64::MAX));
        offset = len.fold(offset, u64::saturating_add);
        (slices, here)
    })
}

fn storage(file: &File, writable: bool, direct: bool) -> io::Result<Storage> {
    let options = StorageOpenOptions::new().write(writable).direct(direct);
    Storage::from_open_file(file.try_clone()?, options)
}

/// Refuses what would be served wrongly: imago does not look at the encryption method, and a data file is nothing we
/// are given. Refuses also what a few bytes would make large: imago reads the tables whole when it opens an image.
fn check_header(image: &File) -> Result<Layout, ImageError> {
    let mut header = [0; 104];
    // That of the second version ends earlier, and its clusters later.
    image.read_exact_at(&mut header, 0).map_err(ImageError::Open)?;
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| header[at + i]));
    let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    if word(0) != 0x5146_49fb {
        return Err(ImageError::Unsupported("is not qcow2"));
    }
    if word(32) != 0 {
        return Err(ImageError::Unsupported("is encrypted"));
    }
    // Incompatible features: bit 2: the data is in another file.
    if word(4) >= 3 && word(76) & 1 << 2 != 0 {
        return Err(ImageError::Unsupported("keeps its data in another file"));
    }
    if long(24) > MAX_SIZE {
        return Err(ImageError::Unsupported("is larger than the 16 TiB that a disk may have"));
    }
    let cluster_bits = word(20);
    if !(9..=21).contains(&cluster_bits) {
        return Err(ImageError::Unsupported("has clusters of a size that qcow2 does not have"));
    }
    let refcount_order = if word(4) >= 3 { word(96) } else { 4 };
    if refcount_order > 6 {
        return Err(ImageError::Unsupported("has reference counts of a size that qcow2 does not have"));
    }
    let cluster = 1 << cluster_bits;
    let length = { image }.seek(SeekFrom::End(0)).map_err(ImageError::Open)?;
    // A file may end inside its last cluster.
    let length = length.checked_next_multiple_of(cluster).unwrap_or(u64::MAX);
    for (start, bytes, most) in [
        (long(40), u64::from(word(36)) * 8, MAX_L1),
        (long(48), u64::from(word(56)) * cluster, MAX_REFCOUNTS),
    ] {
        if bytes > most {
            return Err(ImageError::Unsupported("has a table that is larger than QEMU makes any"));
        }
        if start.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(ImageError::Unsupported("has a table that lies beyond its end"));
        }
    }
    Ok(Layout {
        cluster_bits,
        refcount_order,
        size: long(24),
        l1: (long(40), u64::from(word(36))),
        refcounts: (long(48), u64::from(word(56)) * (cluster / 8)),
        snapshots: (long(64), u64::from(word(60))),
    })
}

impl Backend for Formatted {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&mut self, memory: &GuestMemory, to: &Segments, offset: u64) -> io::Result<()> {
        let slices = to.slices(memory)?;
        for (slices, offset) in calls(&slices, offset) {
            let (vector, _mapped) = IoVectorMut::from_volatile_slice(slices);
            self.image.readv(vector, offset)?;
        }
        Ok(())
    }

    fn write(&mut self, memory: &GuestMemory, from: &Segments, offset: u64) -> io::Result<()> {
        let slices = from.slices(memory)?;
        for (slices, offset) in calls(&slices, offset) {
            let (vector, _mapped) = IoVector::from_volatile_slice(slices);
            self.image.writev(vector, offset)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Tables that could not be written stay in the cache and are written the next time.
        self.image.flush()?;
        self.stable.flush(|| self.image.sync())
    }

    /// Over a backing image the cluster has to be kept as zeros: what is below must not come back.
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        match self.image.discard_to_any(offset, len) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            result => result,
        }
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        if unmap { self.image.discard_to_zero(offset, len) } else { self.image.write_zeroes(offset, len) }
    }

    fn locate(&mut self, offset: u64, buffers: &Segments, write: bool) -> Option<(ImageFile, u64)> {
        let mut found = None;
        let len = buffers.len();
        if !offset.is_multiple_of(self.alignment) || !buffers.are_aligned(self.alignment) {
            return None;
        }
        let (mut at, end) = (offset, offset.checked_add(len)?);
        // Clusters that follow each other in the file are one piece.
        while at < end {
            let (mapping, covered) = self.image.inner().get_mapping(at, end - at).ok()?;
            let (file, start, writable) = match mapping {
                ShallowMapping::Raw { offset, writable, .. } => (ImageFile::Image, offset, writable),
                // The backing image is raw: its bytes are where they are.
                ShallowMapping::Indirect { layer, offset, writable, .. } => {
                    let within = offset.checked_add(covered.min(end - at))? <= layer.size();
                    (within.then_some(ImageFile::Backing)?, offset, writable)
                }
                _ => return None,
            };
            let begin = start.checked_sub(at - offset)?;
            let same = found.is_none_or(|found| found == (file, begin));
            if write && !writable || !same || covered == 0 {
                return None;
            }
            found = Some((file, begin));
            at = at.checked_add(covered)?;
        }
        found
    }

    /// A raw image has nothing in memory that another one of the same file would not have.
    fn grow(&mut self, sectors: u64) -> io::Result<()> {
        let (file, read_only) = self.raw.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        self.image = raw_direct(file, *read_only)?;
        self.sectors = sectors;
        Ok(())
    }

    /// What is written by itself may rewrite what is beside it.
    fn runs_alone(&self) -> bool {
        self.alignment > 1
    }

    fn prepare_flush(&mut self) -> bool {
        self.stable.is_intact() && self.image.flush().is_ok()
    }

    fn flush_failed(&mut self, error: &io::Error) {
        self.stable.failed(error);
    }

    /// One of two that write parts of the same block would undo what the other has written.
    fn open_beside(&self) -> io::Result<Option<Box<dyn Backend>>> {
        let Some((file, read_only)) = self.raw.as_ref().filter(|_| self.has_small_blocks()) else {
            return Ok(None);
        };
        let raw = Some((file.try_clone()?, *read_only));
        let image = raw_direct(file, *read_only)?;
        let (sectors, alignment, stable) = (self.sectors, self.alignment, self.stable.clone());
        Ok(Some(Box::new(Self { image, raw, sectors, alignment, stable })))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    /// A small file must not make a launcher keep large tables, or serve a disk that is larger than any.
    #[test]
    fn a_header_cannot_claim_what_its_file_does_not_have() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.qcow2");
        let made =
            Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("4M").status();
        assert!(made.unwrap().success());
        let whole = std::fs::read(&path).unwrap();
        type Change = fn(&mut Vec<u8>);
        // The first is what fuzzing found: 55 PB and 2.3 million entries in 127 bytes.
        let refused: [(&str, Change); 7] = [
            ("16 TiB", |image| {
                image[24..32].copy_from_slice(&55_000_000_000_000_000_u64.to_be_bytes());
                image[36..40].copy_from_slice(&2_300_000_u32.to_be_bytes());
                image.truncate(127);
            }),
            ("beyond its end", |image| {
                image[36..40].copy_from_slice(&2_300_000_u32.to_be_bytes());
                image.truncate(127);
            }),
            ("beyond its end", |image| image[40..48].copy_from_slice(&(1_u64 << 40).to_be_bytes())),
            ("beyond its end", |image| image[40..48].fill(0xff)),
            ("beyond its end", |image| image[56..60].copy_from_slice(&100_u32.to_be_bytes())),
            ("larger than QEMU", |image| image[36..40].fill(0xff)),
            ("clusters", |image| image[20..24].fill(0xff)),
        ];
        for (word, change) in refused {
            let mut image = whole.clone();
            change(&mut image);
            std::fs::write(&path, &image).unwrap();
            let opened = Formatted::open_qcow2(&File::open(&path).unwrap(), None, (true, false));
            let error = opened.err().expect(word).to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
        std::fs::write(&path, &whole).unwrap();
        let opened = Formatted::open_qcow2(&File::open(&path).unwrap(), None, (true, false)).unwrap();
        assert_eq!(opened.sectors, 8192);
    }

    /// The system calls take 1,024.
    #[test]
    fn a_request_of_many_buffers_is_carried_out() {
        const COUNT: u64 = 1500;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.qcow2");
        let made =
            Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("4M").status();
        assert!(made.unwrap().success());
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut image = Formatted::open_qcow2(&file, None, (false, false)).unwrap();
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
        let buffers = |base: u64| {
            let mut segments = Segments::default();
            for at in 0..COUNT {
                segments.push(&memory, GuestAddress(base + at * 1024), 512).unwrap();
            }
            segments
        };
        for at in 0..COUNT {
            memory.write_obj(at, GuestAddress(at * 1024)).unwrap();
        }
        image.write(&memory, &buffers(0), 512).unwrap();
        image.read(&memory, &buffers(2 << 20), 512).unwrap();
        for at in 0..COUNT {
            assert_eq!(memory.read_obj::<u64>(GuestAddress((2 << 20) + at * 1024)).unwrap(), at);
        }
    }
}
