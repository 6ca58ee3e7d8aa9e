//! The files of an OCI image layout, read from a directory or from inside a tar archive of one.
//!
//! A manifest may name any file of the node as an image. Errors therefore name the invalid part of the image and the
//! problem, and never quote its content: no name, no digest, no parser message.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::node_file::{self, OpenError};
use crate::tar_headers::HeaderLimit;

/// The size limit of indexes, manifests and configurations.
const DOCUMENT_LIMIT: u64 = 4 << 20;
/// An image has a few blobs.
const MEMBER_LIMIT: usize = 10_000;

/// A part of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// `index.json`.
    Index,
    /// The index of one tag's images.
    NestedIndex,
    /// The manifest.
    Manifest,
    /// A layer, counted from 1.
    Layer(usize),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index => f.write_str("index.json"),
            Self::NestedIndex => f.write_str("the image index"),
            Self::Manifest => f.write_str("the image manifest"),
            Self::Layer(number) => write!(f, "layer {number}"),
        }
    }
}

/// Where an image layout is.
#[derive(Debug)]
pub(crate) enum Location {
    Directory(OwnedFd),
    Archive(File),
}

/// The files of a layout.
pub(crate) struct Blobs {
    files: Files,
}

enum Files {
    Directory(OwnedFd),
    /// Offset and length of each regular file inside the archive.
    Archive {
        archive: Arc<File>,
        members: HashMap<PathBuf, (u64, u64)>,
    },
}

/// Why a file of a layout could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlobError {
    /// A file of a layout directory.
    #[error("cannot open {part} of the image")]
    Open {
        /// Which.
        part: Part,
        /// Why.
        source: OpenError,
    },
    /// A file of the layout.
    #[error("cannot read {part} of the image")]
    Read {
        /// Which.
        part: Part,
        /// Why.
        source: io::Error,
    },
    /// The file is something else than an archive.
    #[error("the file is not an uncompressed tar archive")]
    NotAnArchive,
    /// The archive as a file.
    #[error("cannot read the archive")]
    ReadArchive(#[source] io::Error),
    /// A name or extensions of a file that no archive needs.
    #[error("the archive has a file whose headers have more than 1 MiB")]
    HeaderTooLarge,
    /// The archive holds too much.
    #[error("the archive holds more than {MEMBER_LIMIT} files")]
    TooManyMembers,
    /// The content does not match its digest.
    #[error("{0} of the image is damaged: its content does not have its digest")]
    Digest(Part),
    /// An invalid digest, or one of another algorithm.
    #[error("{0} of the image has no valid sha256 digest")]
    NoDigest(Part),
}

/// An I/O error without a library's message, which may quote what was read.
pub(crate) fn without_content(error: &io::Error) -> io::Error {
    os_code(error).map_or_else(|| io::Error::from(error.kind()), io::Error::from_raw_os_error)
}

fn os_code(error: &(dyn Error + 'static)) -> Option<i32> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => error.raw_os_error().or_else(|| os_code(error.get_ref()?)),
        None => os_code(error.source()?),
    }
}

/// Whether an error is about the content, and not about the file system or a limit.
pub(crate) fn is_about_content(error: &io::Error) -> bool {
    let limits = [io::ErrorKind::FileTooLarge, io::ErrorKind::StorageFull];
    os_code(error).is_none() && !limits.contains(&error.kind())
}

impl Blobs {
    /// A layout. Of an archive all headers are read.
    pub(crate) fn open(location: Location) -> Result<Self, BlobError> {
        let files = match location {
            Location::Directory(directory) => Files::Directory(directory),
            Location::Archive(archive) => {
                let members = members(&archive)?;
                Files::Archive { archive: Arc::new(archive), members }
            }
        };
        Ok(Self { files })
    }

    fn section(&self, part: Part, name: &str) -> Result<Section, BlobError> {
        let (file, offset, length) = match &self.files {
            Files::Directory(directory) => {
                let file = node_file::regular_beneath(directory, Path::new(name));
                (Arc::new(file.map_err(|source| BlobError::Open { part, source })?), 0, u64::MAX)
            }
            Files::Archive { archive, members } => {
                let absent = || BlobError::Read { part, source: io::Error::from(io::ErrorKind::NotFound) };
                let (offset, length) = members.get(Path::new(name)).ok_or_else(absent)?;
                (Arc::clone(archive), *offset, *length)
            }
        };
        Ok(Section { file, offset, left: length })
    }

    /// `index.json`, unverified.
    pub(crate) fn index(&self) -> Result<Vec<u8>, BlobError> {
        self.document(Part::Index, "index.json")
    }

    fn document(&self, part: Part, name: &str) -> Result<Vec<u8>, BlobError> {
        let read = |source| BlobError::Read { part, source };
        let mut bytes = Vec::new();
        let section = self.section(part, name)?;
        section.take(DOCUMENT_LIMIT + 1).read_to_end(&mut bytes).map_err(read)?;
        if bytes.len() as u64 > DOCUMENT_LIMIT {
            return Err(read(io::Error::from(io::ErrorKind::FileTooLarge)));
        }
        Ok(bytes)
    }

    /// A small blob by digest, verified.
    pub(crate) fn verified(&self, part: Part, digest: &str) -> Result<Vec<u8>, BlobError> {
        let (name, expected) = blob_name(part, digest)?;
        let bytes = self.document(part, &name)?;
        if hex_of(&Sha256::digest(&bytes)) != expected {
            return Err(BlobError::Digest(part));
        }
        Ok(bytes)
    }

    /// A blob to stream. What was read may be believed only after [`Verifying::finish`].
    pub(crate) fn stream(&self, part: Part, digest: &str) -> Result<Verifying, BlobError> {
        let (name, expected) = blob_name(part, digest)?;
        let section = self.section(part, &name)?;
        Ok(Verifying { section, hash: Sha256::new(), expected, part })
    }
}

/// Where the regular files of an archive are.
fn members(archive: &File) -> Result<HashMap<PathBuf, (u64, u64)>, BlobError> {
    let fail = |error: io::Error| match is_about_content(&error) {
        true => BlobError::NotAnArchive,
        false => BlobError::ReadArchive(without_content(&error)),
    };
    let mut members = HashMap::new();
    // Its position is shared with what read it before.
    let mut archive = archive;
    archive.rewind().map_err(fail)?;
    let (archive, limit) = HeaderLimit::new(archive);
    for entry in tar::Archive::new(archive).entries_with_seek().map_err(fail)? {
        let entry = entry.map_err(|error| match limit.is_exceeded() {
            true => BlobError::HeaderTooLarge,
            false => fail(error),
        })?;
        // Its content is not read.
        limit.next_file(0);
        if entry.header().entry_type().is_file() {
            let name = plain(&entry.path().map_err(fail)?);
            members.insert(name, (entry.raw_file_position(), entry.size()));
        }
        if members.len() > MEMBER_LIMIT {
            return Err(BlobError::TooManyMembers);
        }
    }
    Ok(members)
}

/// A part of a file.
struct Section {
    file: Arc<File>,
    offset: u64,
    left: u64,
}

impl Read for Section {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let read = self.file.read_at(into.get_mut(..most).unwrap_or_default(), self.offset)?;
        self.offset += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// A blob that is hashed while it is read.
pub(crate) struct Verifying {
    section: Section,
    hash: Sha256,
    expected: String,
    part: Part,
}

impl Read for Verifying {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.section.read(into)?;
        self.hash.update(into.get(..read).unwrap_or_default());
        Ok(read)
    }
}

impl Verifying {
    /// Reads what is left and compares.
    pub(crate) fn finish(mut self) -> Result<(), BlobError> {
        let part = self.part;
        io::copy(&mut self, &mut io::sink()).map_err(|source| BlobError::Read { part, source })?;
        if hex_of(&self.hash.finalize()) != self.expected {
            return Err(BlobError::Digest(part));
        }
        Ok(())
    }
}

fn blob_name(part: Part, digest: &str) -> Result<(String, String), BlobError> {
    let hex = digest
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
        .ok_or(BlobError::NoDigest(part))?;
    Ok((format!("blobs/sha256/{hex}"), hex.to_owned()))
}

/// Lower-case hexadecimal.
pub(crate) fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tar member's name without leading `/`, `./` or `..`.
pub(crate) fn plain(name: &Path) -> PathBuf {
    name.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_members_stay_inside() {
        assert_eq!(plain(Path::new("./disk/a")), Path::new("disk/a"));
        assert_eq!(plain(Path::new("/../disk//./a")), Path::new("disk/a"));
    }

    #[test]
    fn only_sha256_names_a_blob() {
        assert!(blob_name(Part::Manifest, &format!("sha256:{}", "a".repeat(64))).is_ok());
        for digest in [
            "",
            "sha256:",
            "sha512:00",
            "sha256:../../../../etc/passwd",
            &format!("sha256:{}", "A".repeat(64)),
        ] {
            assert!(blob_name(Part::Manifest, digest).is_err(), "{digest}");
        }
    }

    #[test]
    fn a_damaged_blob_is_detected_by_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        let hex = hex_of(&Sha256::digest(b"right"));
        std::fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        std::fs::write(dir.path().join("blobs/sha256").join(&hex), "wrong").unwrap();
        let location = Location::Directory(node_file::directory(dir.path()).unwrap());
        let blobs = Blobs::open(location).unwrap();
        let (part, digest) = (Part::Layer(1), format!("sha256:{hex}"));
        assert!(matches!(blobs.verified(part, &digest), Err(BlobError::Digest(_))));
        assert!(matches!(blobs.stream(part, &digest).unwrap().finish(), Err(BlobError::Digest(_))));
    }

    #[test]
    fn errors_hold_the_cause_and_no_content() {
        let quoting = io::Error::other("numeric field was not a number: root:x:0:0");
        assert_eq!(without_content(&quoting).to_string(), "other error");
        let wrapped = io::Error::new(io::ErrorKind::NotFound, io::Error::from_raw_os_error(5));
        assert_eq!(without_content(&wrapped).raw_os_error(), Some(5));
        assert!(is_about_content(&quoting) && !is_about_content(&wrapped));
        let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "after root:x:0:0");
        assert_eq!(without_content(&ended).to_string(), "unexpected end of file");
    }
}
