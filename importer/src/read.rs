//! Reads images: finds a file in the layers of an OCI image, unpacks it, and makes a raw disk of it.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use serde::{Deserialize, Serialize};

use crate::blobs::{BlobError, Blobs, Location, plain};
use crate::format::{self, Format, FormatError};
use crate::names::ImageSelector;
use crate::oci::{self, Found, Image, OciError};
use crate::sparse::{self, Budget};
use crate::{Answer, Failure, FailureKind, Qcow2Image};

/// Sectors are 512 bytes: a raw image is padded to whole ones.
const SECTOR: u64 = 512;
/// The largest kernel or initrd.
const BOOT_FILE_LIMIT: u64 = 4 << 30;
/// The memory limit of an xz decoder.
const XZ_MEMORY: u64 = 128 << 20;
/// The size that an uploaded image may have beyond its content, for its tables.
const OVERHEAD: u64 = 64 << 20;

/// How an image layout is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayoutKind {
    /// In a directory.
    Directory,
    /// In a tar archive.
    Archive,
}

/// A file of an OCI image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WantedFile {
    /// A disk at a path, or the only one below `/disk`.
    Disk(Option<PathBuf>),
    /// A kernel or initrd at a path.
    Boot(PathBuf),
}

impl WantedFile {
    /// The disk at a path in an image, or the only one below `/disk`.
    #[must_use]
    pub fn disk(path: Option<&str>) -> Self {
        Self::Disk(path.map(|path| plain(Path::new(path))))
    }

    /// The kernel or initrd at a path in an image.
    #[must_use]
    pub fn boot(path: &str) -> Self {
        Self::Boot(plain(Path::new(path)))
    }

    /// Whether it may be at this path.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        match self {
            Self::Disk(None) => path.parent() == Some(Path::new("disk")),
            Self::Disk(Some(wanted)) | Self::Boot(wanted) => path == wanted,
        }
    }

    /// Whether it may be at this path or below it.
    pub(crate) fn may_be_below(&self, path: &Path) -> bool {
        match self {
            Self::Disk(None) => Path::new("disk").starts_with(path) || self.is_at(path),
            Self::Disk(Some(wanted)) | Self::Boot(wanted) => wanted.starts_with(path),
        }
    }
}

impl fmt::Display for WantedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(None) => f.write_str("the file below /disk"),
            Self::Disk(Some(path)) | Self::Boot(path) => write!(f, "/{}", path.display()),
        }
    }
}

/// What to read, and of what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadAction {
    /// Find the images of a layout that have names: [`Answer::Named`].
    List {
        /// Of the source.
        layout: LayoutKind,
    },
    /// Find the digest of an image's manifest: [`Answer::Resolved`].
    Identify {
        /// Of the source.
        layout: LayoutKind,
        /// Which image of it.
        image: ImageSelector,
    },
    /// Unpack a file of an image: [`Answer::Unpacked`].
    Unpack {
        /// Of the source.
        layout: LayoutKind,
        /// Which image of it.
        image: ImageSelector,
        /// Of its manifest.
        digest: String,
        /// Which file.
        file: WantedFile,
    },
    /// Make a raw disk, or a copy, of a file that was in an image: [`Answer::Unpacked`].
    Copy {
        /// Which file it was.
        file: WantedFile,
    },
    /// Make a raw disk of a file that may be compressed: [`Answer::Unpacked`] or [`Answer::AsIs`].
    Upload {
        /// The bytes of the disk.
        size: u64,
    },
}

impl ReadAction {
    /// How the source is stored, if it is a layout.
    pub(crate) fn layout(&self) -> Option<LayoutKind> {
        match self {
            Self::List { layout } | Self::Identify { layout, .. } | Self::Unpack { layout, .. } => {
                Some(*layout)
            }
            Self::Copy { .. } | Self::Upload { .. } => None,
        }
    }
}

/// The open files of a [`ReadAction`].
#[derive(Debug)]
pub struct Files {
    /// A file, or the directory of a layout.
    pub source: OwnedFd,
    /// An empty file that becomes what is wanted.
    pub output: Option<File>,
    /// An empty file for what is between.
    pub scratch: Option<File>,
}

/// Why an image cannot be read. It quotes nothing that is in the image.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Oci(#[from] OciError),
    #[error("the image has changed while it was imported: try again")]
    Changed,
    #[error("the image has no file {0}")]
    NoFile(String),
    #[error("{file} in the image is {what}, not a regular file")]
    NotRegular { file: String, what: &'static str },
    #[error(
        "the image must hold exactly one file below /disk, or containerDisk.path must name one; it holds {0}"
    )]
    NotOneDisk(&'static str),
    #[error("{file} in the image cannot be used")]
    Format { file: String, source: FormatError },
    #[error(transparent)]
    UploadFormat(#[from] FormatError),
    #[error("the image needs {wanted} bytes, the disk has {has}")]
    TooLarge { wanted: u64, has: u64 },
    #[error("the compressed image is damaged")]
    Damaged(#[source] io::Error),
    #[error("no space is left on the node for the disk image")]
    Full,
    #[error("cannot write the disk image")]
    Write(#[source] io::Error),
    #[error("a file of the request is missing")]
    NoOutput,
}

impl From<BlobError> for ReadError {
    fn from(error: BlobError) -> Self {
        Self::Oci(error.into())
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Write(error),
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let kind = match &error {
            ReadError::Full => FailureKind::Full,
            ReadError::Oci(OciError::Layer { source, .. })
                if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                return Self::from(ReadError::Full);
            }
            ReadError::TooLarge { wanted, .. } => FailureKind::DiskTooLarge { wanted: *wanted },
            ReadError::UploadFormat(_) => FailureKind::Format,
            ReadError::Damaged(_) => FailureKind::Damaged,
            _ => FailureKind::Other,
        };
        Self::new(kind, crate::failure::causes(&error))
    }
}

/// Reads an image, and writes at most so many bytes. Blocks.
#[must_use]
pub fn read(action: &ReadAction, files: Files, most_bytes: u64) -> Answer {
    let mut budget = Budget(most_bytes);
    let done = match action {
        ReadAction::List { layout } => {
            blobs(*layout, files.source).and_then(|blobs| Ok(Answer::Named(oci::named(&blobs)?)))
        }
        ReadAction::Identify { layout, image } => {
            open(*layout, files.source, image).map(|image| Answer::Resolved(image.digest().to_owned()))
        }
        ReadAction::Unpack { layout, image, digest, file } => {
            unpack((*layout, image, digest), file, files, &mut budget)
        }
        ReadAction::Copy { file } => copy(file, files, &mut budget),
        ReadAction::Upload { size } => upload(*size, files, &mut budget),
    };
    done.unwrap_or_else(|error| Answer::Failed(error.into()))
}

fn blobs(layout: LayoutKind, source: OwnedFd) -> Result<Blobs, ReadError> {
    Ok(Blobs::open(match layout {
        LayoutKind::Directory => Location::Directory(source),
        LayoutKind::Archive => Location::Archive(source.into()),
    })?)
}

fn open(layout: LayoutKind, source: OwnedFd, image: &ImageSelector) -> Result<Image, ReadError> {
    Ok(Image::open(blobs(layout, source)?, image)?)
}

fn unpack(
    (layout, image, digest): (LayoutKind, &ImageSelector, &str),
    wanted: &WantedFile,
    Files { source, output, scratch }: Files,
    budget: &mut Budget,
) -> Result<Answer, ReadError> {
    let image = open(layout, source, image)?;
    if image.digest() != digest {
        return Err(ReadError::Changed);
    }
    let mut output = output.ok_or(ReadError::NoOutput)?;
    let mut scratch = match wanted {
        WantedFile::Disk(_) => scratch.ok_or(ReadError::NoOutput)?,
        WantedFile::Boot(_) => output.try_clone()?,
    };
    let found = image.unpack(wanted, &mut scratch, budget).map_err(|error| match error {
        OciError::SecondFile => ReadError::NotOneDisk("several"),
        error => error.into(),
    })?;
    match (found, wanted) {
        (Some(Found::Regular), WantedFile::Disk(_)) => {
            disk((&mut scratch, Qcow2Image::Scratch), wanted, &mut output, budget)
        }
        (Some(Found::Regular), WantedFile::Boot(_)) => match output.metadata()?.len() > BOOT_FILE_LIMIT {
            true => Err(io::Error::from(ErrorKind::FileTooLarge).into()),
            false => Ok(Answer::Unpacked),
        },
        (Some(Found::Other(what)), _) => Err(ReadError::NotRegular { file: wanted.to_string(), what }),
        (None, WantedFile::Disk(None)) => Err(ReadError::NotOneDisk("0")),
        (None, _) => Err(ReadError::NoFile(wanted.to_string())),
    }
}

fn copy(
    wanted: &WantedFile,
    Files { source, output, scratch }: Files,
    budget: &mut Budget,
) -> Result<Answer, ReadError> {
    let mut source = File::from(source);
    if !source.metadata()?.is_file() {
        let what = "a directory or a special file";
        return Err(ReadError::NotRegular { file: wanted.to_string(), what });
    }
    let (mut output, mut scratch) = (output.ok_or(ReadError::NoOutput)?, scratch.ok_or(ReadError::NoOutput)?);
    source.rewind()?;
    match wanted {
        WantedFile::Boot(_) => {
            sparse::copy(&mut source, &mut output, BOOT_FILE_LIMIT, budget)?;
            Ok(Answer::Unpacked)
        }
        // qemu-img opens its image anew, which this user may not do with the file of an image.
        WantedFile::Disk(_) if may_reopen(&source) => {
            disk((&mut source, Qcow2Image::Source), wanted, &mut output, budget)
        }
        WantedFile::Disk(_) => {
            sparse::copy(&mut source, &mut scratch, u64::MAX, budget)?;
            disk((&mut scratch, Qcow2Image::Scratch), wanted, &mut output, budget)
        }
    }
}

fn may_reopen(file: &File) -> bool {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).is_ok()
}

/// Makes a raw disk, or says what is to be converted.
fn disk(
    (from, image): (&mut File, Qcow2Image),
    wanted: &WantedFile,
    output: &mut File,
    budget: &mut Budget,
) -> Result<Answer, ReadError> {
    let format = format::probe(from);
    match format.map_err(|source| ReadError::Format { file: wanted.to_string(), source })? {
        Format::Raw => {
            from.rewind()?;
            let length = sparse::copy(from, output, u64::MAX, budget)?;
            output.set_len(length.next_multiple_of(SECTOR))?;
            Ok(Answer::Unpacked)
        }
        Format::Qcow2 { virtual_size } => Ok(Answer::Convert { image, virtual_size }),
    }
}

fn upload(
    size: u64,
    Files { source, output, scratch }: Files,
    budget: &mut Budget,
) -> Result<Answer, ReadError> {
    let (mut output, mut scratch) = (output.ok_or(ReadError::NoOutput)?, scratch.ok_or(ReadError::NoOutput)?);
    let mut image = File::from(source);
    let is_compressed = decompress(&mut image, &mut scratch, size, budget)?;
    if is_compressed {
        image = scratch;
    }
    let format = format::probe(&image)?;
    let wanted = match format {
        Format::Raw => image.metadata()?.len(),
        Format::Qcow2 { virtual_size } => virtual_size,
    };
    if wanted > size {
        return Err(ReadError::TooLarge { wanted, has: size });
    }
    image.rewind()?;
    match format {
        Format::Raw if !is_compressed => return Ok(Answer::AsIs),
        Format::Raw => drop(sparse::copy(&mut image, &mut output, size, budget)?),
        Format::Qcow2 { virtual_size } => {
            let image = if is_compressed { Qcow2Image::Scratch } else { Qcow2Image::Source };
            return Ok(Answer::Convert { image, virtual_size });
        }
    }
    output.set_len(size)?;
    Ok(Answer::Unpacked)
}

/// Unpacks a compressed file. Returns whether it is one.
fn decompress(file: &mut File, to: &mut File, size: u64, budget: &mut Budget) -> Result<bool, ReadError> {
    let mut start = [0; 6];
    let read = file.read_at(&mut start, 0)?;
    let start = start.get(..read).unwrap_or_default();
    file.rewind()?;
    let input = BufReader::new(file);
    let mut input: Box<dyn Read> = if start.starts_with(b"\x1f\x8b") {
        Box::new(MultiGzDecoder::new(input))
    } else if start.starts_with(b"\xfd7zXZ\0") {
        let stream = Stream::new_stream_decoder(XZ_MEMORY, CONCATENATED);
        Box::new(XzDecoder::new_stream(input, stream.map_err(|error| ReadError::Damaged(error.into()))?))
    } else {
        return Ok(false);
    };
    let limit = size.saturating_add(size / 64).saturating_add(OVERHEAD);
    match sparse::copy(&mut input, to, limit, budget) {
        Ok(_) => Ok(true),
        Err(error) => Err(match error.kind() {
            ErrorKind::FileTooLarge => ReadError::TooLarge { wanted: limit, has: size },
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ReadError::Full,
            _ => ReadError::Damaged(error),
        }),
    }
}

/// The bytes that a file takes on its file system.
pub(crate) fn allocated(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.blocks().saturating_mul(SECTOR))
}
