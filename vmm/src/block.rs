//! Where a disk's content is kept, whatever bus the disk is on.

mod counted;
pub(crate) mod engine;
pub(crate) mod flight;
mod format;
mod held;
mod raw;
mod refcounts;
mod removable;

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::sync::{Arc, OnceLock};

use rustix::fs::OFlags;

use self::engine::ImageFile;
use crate::config::{Disk, DiskImage, LaneStall};
use crate::memory::{GuestMemory, Segments};

/// Bytes of a sector.
pub(crate) const SECTOR: u64 = 512;
/// Sectors that a guest may discard as one range, and ranges in one request: 256 MiB and 2 GiB. They bound how long a
/// disk's worker is away, as [`MAX_ZEROED_SECTORS`] does. SATA has limits of its own.
pub(crate) const MAX_RANGE_SECTORS: u32 = 1 << 19;
pub(crate) const MAX_RANGES: u32 = 8;
/// Sectors that a guest may zero by one request, as one range: 64 MiB, because a host may have to write them.
pub(crate) const MAX_ZEROED_SECTORS: u32 = 1 << 17;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The host reported an error.
    #[error("the disk image cannot be opened")]
    Open(#[source] io::Error),
    /// The file system cannot bypass the page cache.
    #[error(
        "the disk image's file system has no direct I/O, which the cache mode none needs: choose another mode"
    )]
    Direct(#[source] io::Error),
    /// Disks have whole sectors.
    #[error("the disk has {0} bytes, no multiple of 512")]
    Ragged(u64),
    /// A disk has at least one sector.
    #[error("the disk image is empty")]
    Empty,
    /// A disk has at least one block.
    #[error("the disk image is smaller than one of its blocks, which have {0} bytes")]
    Small(u32),
    /// The qcow2 image uses an unsupported feature, which the text names.
    #[error("the qcow2 image {0}")]
    Unsupported(&'static str),
}

/// Sectors that can be read and written. The caller keeps to their number.
pub(crate) trait Backend: Send {
    /// How many.
    fn sectors(&self) -> u64;
    fn read(&mut self, memory: &GuestMemory, to: &Segments, offset: u64) -> io::Result<()>;
    fn write(&mut self, memory: &GuestMemory, from: &Segments, offset: u64) -> io::Result<()>;
    /// What was written is on stable storage when this returns.
    fn flush(&mut self) -> io::Result<()>;
    /// Discards the content. May do nothing.
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// Reads as zeros from now on; with `unmap`, the space may be freed.
    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()>;
    /// Where all bytes that these buffers take are in a file, as they are, and at which offset, so that they can be read
    /// there, or written, beside other requests. `None`: only [`Self::read`] and [`Self::write`] know. What it says holds until
    /// a discard, or zeros, are begun.
    fn locate(&mut self, offset: u64, buffers: &Segments, write: bool) -> Option<(ImageFile, u64)>;
    /// The image has as many sectors now, which are more than before.
    fn grow(&mut self, sectors: u64) -> io::Result<()>;
    /// Whether nothing may be in flight while [`Self::write`] is called.
    fn runs_alone(&self) -> bool;
    /// Whether a request that the host cannot carry out is held, where the policy has it so; else it fails.
    fn set_patient(&mut self, yes: bool) {
        let _ = yes;
    }
    /// Flushes without a request of the guest, whether it succeeded. It is not held when the host cannot do it.
    fn flush_now(&mut self) -> bool {
        self.set_patient(false);
        let flushed = self.flush();
        self.set_patient(true);
        flushed.inspect_err(|error| tracing::warn!(%error, "a disk cannot be flushed")).is_ok()
    }
    /// Prepares a flush: what was written is on stable storage when the image's file is. False: only [`Self::flush`]
    /// can do it.
    fn prepare_flush(&mut self) -> bool;
    /// The image's file could not be flushed, after [`Self::prepare_flush`].
    fn flush_failed(&mut self, error: &io::Error);
    /// The same image once more, for another thread, without the policy and the counters. `None`: it can only be used by one.
    fn open_beside(&self) -> io::Result<Option<Box<dyn Backend>>> {
        Ok(None)
    }
}

/// Files of its own of what a disk's image and the one below it are, for an engine.
pub(crate) fn files(disk: &Disk) -> io::Result<Vec<File>> {
    match disk.image() {
        DiskImage::Raw(file) => Ok(vec![file.try_clone()?]),
        DiskImage::Qcow2 { image, backing } => {
            [Some(image), backing.as_ref()].into_iter().flatten().map(File::try_clone).collect()
        }
        DiskImage::Drive(_) => Ok(Vec::new()),
    }
}

/// The image of a disk that was opened for one lane.
pub(crate) struct Opened {
    pub(crate) backend: Box<dyn Backend>,
    /// Where the requests of the lane are held.
    pub(crate) stall: Arc<LaneStall>,
}

/// Opens the image of a disk on file descriptors of its own.
pub(crate) fn open(disk: &Disk, read_only: bool) -> Result<Opened, ImageError> {
    let direct = disk.is_direct();
    let backend: Box<dyn Backend> = match disk.image() {
        DiskImage::Raw(file) => open_raw(file, read_only, direct)?,
        DiskImage::Qcow2 { image, backing } => {
            Box::new(format::Formatted::open_qcow2(image, backing.as_ref(), (read_only, direct))?)
        }
        DiskImage::Drive(drive) => Box::new(removable::Removable(drive.clone())),
    };
    Ok(opened(disk, backend))
}

/// As [`open`], once more for another lane that serves the same disk at the same time; `first` is that of the first lane.
/// `None`: only one can, because what it writes needs what it has in memory, or blocks that are larger than a sector.
pub(crate) fn open_beside(disk: &Disk, first: &Opened) -> Result<Option<Opened>, ImageError> {
    let backend = first.backend.open_beside().map_err(ImageError::Open)?;
    Ok(backend.map(|backend| opened(disk, backend)))
}

fn opened(disk: &Disk, backend: Box<dyn Backend>) -> Opened {
    let stall = disk.stall().lane();
    let policy = disk.answers_errors_by();
    let backend = Box::new(held::Held { backend, policy, stall: stall.clone(), is_patient: true });
    Opened { backend: Box::new(counted::Counted { backend, counters: disk.counters().clone() }), stall }
}

/// Opens a raw image on a file descriptor of its own, whether it is read-only and bypasses the page cache.
pub(crate) fn open_raw(file: &File, read_only: bool, direct: bool) -> Result<Box<dyn Backend>, ImageError> {
    if !direct {
        return Ok(Box::new(raw::Raw::open(file)?));
    }
    bypass_cache(file, true)?;
    Ok(Box::new(format::Formatted::open_direct(file, read_only)?))
}

/// Has a file, in all its descriptors, bypass the page cache, or not.
fn bypass_cache(file: &File, yes: bool) -> Result<(), ImageError> {
    let mut flags = rustix::fs::fcntl_getfl(file).map_err(|errno| ImageError::Direct(errno.into()))?;
    flags.set(OFlags::DIRECT, yes);
    rustix::fs::fcntl_setfl(file, flags).map_err(|errno| ImageError::Direct(errno.into()))
}

/// Whether everything that was written has reached stable storage: what the kernel could not write it drops from its
/// cache, so that a success after a failure would be meaningless. Shared by what writes to the same file, of which the
/// kernel notifies one.
#[derive(Clone, Default)]
struct Stable {
    lost: Arc<OnceLock<io::ErrorKind>>,
}

impl Stable {
    /// Flushes by `sync`, unless that has failed before.
    fn flush(&mut self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self.lost.get() {
            Some(kind) => {
                Err(io::Error::new(*kind, "what was written before could not be flushed and is lost"))
            }
            None => sync().inspect_err(|error| self.failed(error)),
        }
    }

    /// A flush failed.
    fn failed(&mut self, error: &io::Error) {
        // The first one counts.
        let _ = self.lost.set(error.kind());
    }

    /// Whether no flush has failed.
    fn is_intact(&self) -> bool {
        self.lost.get().is_none()
    }
}

/// The whole sectors of an open file or block device.
pub(crate) fn sectors_of(mut file: &File) -> io::Result<u64> {
    Ok(file.seek(SeekFrom::End(0))? / SECTOR)
}

fn whole_sectors(bytes: u64) -> Result<u64, ImageError> {
    match bytes {
        0 => Err(ImageError::Empty),
        bytes if bytes.is_multiple_of(SECTOR) => Ok(bytes / SECTOR),
        bytes => Err(ImageError::Ragged(bytes)),
    }
}
