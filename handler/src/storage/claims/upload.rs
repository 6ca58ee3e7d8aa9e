//! Fills a claim's disk with an uploaded image: the image is received in a file beside the disk, which replaces the
//! disk atomically once it is complete and fits.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use vireo_importer::{Failure, FailureKind, ReadAction};

use super::pool::directories;
use super::{ClaimError, Claims};
use crate::jobs::{JobContext, JobError};
use crate::storage::images::ImageError;
use crate::storage::importer::{ImageReader, take_back};

/// The received data.
const RECEIVED: &str = "upload.received";
/// The unpacked image.
const UNPACKED: &str = "upload.unpacked";
/// The size that an image may have beyond its content, for its tables.
const OVERHEAD: u64 = 64 << 20;

/// Why an image is rejected.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// There is no disk to fill.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// Another upload is under way.
    #[error("another upload to this claim is going on")]
    Busy,
    /// The image does not fit.
    #[error("the image needs {wanted} bytes, the claim has {has}: make a larger one")]
    TooLarge {
        /// At least so many.
        wanted: u64,
        /// The claim's.
        has: u64,
    },
    /// No image, or one that is not taken.
    #[error(transparent)]
    Format(Failure),
    /// A compressed image that is truncated or invalid.
    #[error("the compressed image is damaged")]
    Damaged(#[source] Failure),
    /// It looks like an image, and cannot be read as one.
    #[error("the image cannot be converted")]
    Convert(#[source] ImageError),
    /// The disk of this node is full.
    #[error("the disk of the node is full")]
    Full,
    /// The disk of this node otherwise.
    #[error("the image cannot be written")]
    Write(#[source] io::Error),
    /// It took too long, or too much hangs already.
    #[error(transparent)]
    Job(#[from] JobError),
}

fn writing(error: io::Error) -> UploadError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => UploadError::Full,
        _ => UploadError::Write(error),
    }
}

/// The files of an upload beside a disk; removed when dropped.
#[derive(Debug)]
struct Beside {
    directory: PathBuf,
}

impl Beside {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for name in [RECEIVED, UNPACKED] {
            match fs::remove_file(self.path(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    tracing::warn!(%error, directory = %self.directory.display(), "an upload's file stays");
                }
                _ => {}
            }
        }
    }
}

/// An upload in progress.
#[derive(Debug)]
pub struct Upload {
    file: File,
    beside: Beside,
    disk: PathBuf,
    /// Bytes of the disk.
    size: u64,
    received: u64,
    reader: ImageReader,
}

/// A complete image that fits.
#[derive(Debug)]
pub struct Filled {
    image: PathBuf,
    disk: PathBuf,
    /// Held until the image replaced the disk.
    _file: File,
    _beside: Beside,
}

impl Claims {
    /// Begins to fill a claim's disk. Blocks.
    ///
    /// # Errors
    /// When there is no disk, it is being filled already, or nothing can be written beside it.
    pub fn begin_upload(&self, namespace: &str, name: &str) -> Result<Upload, UploadError> {
        let disk = self.disk(namespace, name)?;
        let size = fs::metadata(&disk).map_err(writing)?.len();
        let directory = self.directory(namespace, name);
        let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).map_err(|_| UploadError::Busy)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nofollow)
            .open(directory.join(RECEIVED))
            .map_err(writing)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| UploadError::Busy)?;
        // Drop the data of an upload before a crash.
        file.set_len(0).map_err(writing)?;
        Ok(Upload {
            file,
            beside: Beside { directory },
            disk,
            size,
            received: 0,
            reader: self.reader.clone(),
        })
    }

    /// Removes the files of uploads that ended with an earlier process. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn sweep_uploads(&self) -> io::Result<()> {
        for namespace in directories(&self.root)? {
            for directory in directories(&namespace)? {
                drop(Beside { directory });
            }
        }
        Ok(())
    }
}

impl Upload {
    /// How many bytes the claim's disk has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Checks whether an image of this many bytes may fit.
    ///
    /// # Errors
    /// When no image of so many bytes fits.
    pub fn expect(&self, bytes: u64) -> Result<(), UploadError> {
        // An image that holds every block of the disk, with its tables.
        let most = self.size.saturating_add(self.size / 64).saturating_add(OVERHEAD);
        if bytes > most {
            return Err(UploadError::TooLarge { wanted: bytes, has: self.size });
        }
        Ok(())
    }

    /// Writes the next bytes. Zeros take no space. Blocks.
    ///
    /// # Errors
    /// When the image is too large, or cannot be written.
    pub fn write(&mut self, data: &[u8]) -> Result<(), UploadError> {
        let end = self.received.saturating_add(data.len() as u64);
        self.expect(end)?;
        if data.iter().any(|byte| *byte != 0) {
            self.file.write_all_at(data, self.received).map_err(writing)?;
        }
        self.received = end;
        Ok(())
    }

    /// Makes a disk of the received image: unpacked, raw and as large as the claim. Blocks, and may take long.
    ///
    /// # Errors
    /// When the image is rejected, does not fit, or there is no space for it.
    pub fn finish(self, job: &JobContext) -> Result<Filled, UploadError> {
        let Self { mut file, beside, disk, size, received, reader } = self;
        file.set_len(received).map_err(writing)?;
        file.rewind().map_err(writing)?;
        let output = create(&beside.path(UNPACKED))?;
        let source = file.try_clone().map_err(writing)?;
        let rejected = |error| match error {
            ImageError::Import(failure) => match failure.kind {
                FailureKind::Format => UploadError::Format(failure),
                FailureKind::Damaged => UploadError::Damaged(failure),
                FailureKind::DiskTooLarge { wanted } => UploadError::TooLarge { wanted, has: size },
                _ => UploadError::Convert(ImageError::Import(failure)),
            },
            ImageError::Full => UploadError::Full,
            ImageError::Store { source, .. } => writing(source),
            error => UploadError::Convert(error),
        };
        let action = ReadAction::Upload { size };
        let is_received =
            reader.unpack(&action, source.into(), (&output, &beside.directory), job).map_err(rejected)?;
        take_back(&file).map_err(writing)?;
        let (image, whole) = if is_received { (RECEIVED, &file) } else { (UNPACKED, &output) };
        let image = beside.path(image);
        whole.set_len(size).and_then(|()| whole.sync_all()).map_err(writing)?;
        Ok(Filled { image, disk, _file: file, _beside: beside })
    }
}

fn create(path: &Path) -> Result<File, UploadError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(writing)
}

impl Filled {
    /// Replaces the claim's disk with the image. Blocks, but not for long.
    ///
    /// # Errors
    /// When the claim is gone, or its directory cannot be written.
    pub fn put(self) -> Result<(), UploadError> {
        // Fails when the claim's disk was removed meanwhile.
        fs::metadata(&self.disk).map_err(writing)?;
        fs::rename(&self.image, &self.disk).map_err(writing)?;
        let directory = self.disk.parent().unwrap_or(Path::new("/"));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(writing)
    }
}

#[cfg(test)]
mod tests;
