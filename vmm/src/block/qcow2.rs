use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use imago::file::File as Storage;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, ShallowMapping, StorageOpenOptions};

use super::engine::ImageFile;
use super::{Backend, GuestMemory, ImageError, Segments, Stable, whole_sectors};

/// A qcow2 image, over a raw one where it has a backing file.
///
/// No file named by the image is opened: the backing image is given, and the gate rejects everything else.
pub(super) struct Qcow2Image {
    image: FormatAccess<Storage>,
    sectors: u64,
    stable: Stable,
}

impl Qcow2Image {
    pub(super) fn open(image: &File, backing: Option<&File>, read_only: bool) -> Result<Self, ImageError> {
        check_header(image)?;
        let backing = backing
            .map(|file| {
                let raw = Raw::builder(storage(file, false)?).open(DenyImplicitOpenGate::default())?;
                Ok(FormatAccess::new(raw))
            })
            .transpose()
            .map_err(ImageError::Open)?;
        let image = storage(image, !read_only)
            .and_then(|storage| {
                Qcow2::<Storage>::builder(storage)
                    .write(!read_only)
                    .backing(backing)
                    .data_file(None)
                    .open(DenyImplicitOpenGate::default())
            })
            .map_err(ImageError::Open)?;
        let image = FormatAccess::new(image);
        Ok(Self { sectors: whole_sectors(image.size())?, image, stable: Stable::default() })
    }
}

fn storage(file: &File, writable: bool) -> io::Result<Storage> {
    Storage::from_open_file(file.try_clone()?, StorageOpenOptions::new().write(writable))
}

/// Refuses what would be served wrongly: imago does not look at the encryption method, and a data file is nothing we
/// are given.
fn check_header(image: &File) -> Result<(), ImageError> {
    let mut header = [0; 80];
    image.read_exact_at(&mut header, 0).map_err(ImageError::Open)?;
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| header[at + i]));
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
    Ok(())
}

impl Backend for Qcow2Image {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&mut self, memory: &GuestMemory, to: &Segments, offset: u64) -> io::Result<()> {
        let slices = to.slices(memory)?;
        let (vector, _mapped) = IoVectorMut::from_volatile_slice(&slices);
        self.image.readv(vector, offset)
    }

    fn write(&mut self, memory: &GuestMemory, from: &Segments, offset: u64) -> io::Result<()> {
        let slices = from.slices(memory)?;
        let (vector, _mapped) = IoVector::from_volatile_slice(&slices);
        self.image.writev(vector, offset)
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

    fn locate(&mut self, offset: u64, len: u64, write: bool) -> Option<(ImageFile, u64)> {
        let mut found = None;
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

    fn prepare_flush(&mut self) -> bool {
        self.stable.is_intact() && self.image.flush().is_ok()
    }

    fn flush_failed(&mut self, error: &io::Error) {
        self.stable.failed(error);
    }
}
