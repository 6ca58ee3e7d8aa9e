//! The files of an OCI image layout, read from a directory or from inside a tar archive of one.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

/// Indexes, manifests and configurations are small; more than this is no manifest.
const DOCUMENT_LIMIT: u64 = 4 << 20;

/// Where the files of a layout are.
pub(super) enum Blobs {
    Directory(PathBuf),
    /// Offset and length of each regular file inside the archive.
    Archive {
        path: PathBuf,
        files: HashMap<PathBuf, (u64, u64)>,
    },
}

/// Why a file of a layout could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The layout itself.
    #[error("cannot open the image {path}")]
    Open {
        /// Directory or archive.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the layout.
    #[error("cannot read {name} of the image {path}")]
    Read {
        /// Directory or archive.
        path: PathBuf,
        /// The file in it.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// What was read is not what its name promises.
    #[error("{name} of the image {path} is damaged: its content has the digest sha256:{found}")]
    Digest {
        /// Directory or archive.
        path: PathBuf,
        /// The file in it.
        name: String,
        /// The digest of what is there.
        found: String,
    },
    /// A digest that is none, or of another algorithm.
    #[error("{0:?} is no sha256 digest")]
    NoDigest(String),
}

impl Blobs {
    /// A layout in a directory.
    pub(super) fn directory(path: &Path) -> Result<Self, BlobError> {
        let open = |source| BlobError::Open { path: path.to_owned(), source };
        if !path.metadata().map_err(open)?.is_dir() {
            return Err(open(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        Ok(Self::Directory(path.to_owned()))
    }

    /// A layout in an uncompressed tar archive. Reads the headers once.
    pub(super) fn archive(path: &Path) -> Result<Self, BlobError> {
        let open = |source| BlobError::Open { path: path.to_owned(), source };
        let mut archive = tar::Archive::new(File::open(path).map_err(open)?);
        let mut files = HashMap::new();
        for entry in archive.entries_with_seek().map_err(open)? {
            let entry = entry.map_err(open)?;
            if entry.header().entry_type().is_file() {
                let name = plain(&entry.path().map_err(open)?);
                files.insert(name, (entry.raw_file_position(), entry.size()));
            }
        }
        Ok(Self::Archive { path: path.to_owned(), files })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::Archive { path, .. } => path,
        }
    }

    fn read_error(&self, name: &str, source: io::Error) -> BlobError {
        BlobError::Read { path: self.path().to_owned(), name: name.to_owned(), source }
    }

    fn open(&self, name: &str) -> Result<io::Take<File>, BlobError> {
        let (path, offset, length) = match self {
            Self::Directory(path) => (path.join(name), 0, u64::MAX),
            Self::Archive { path, files } => {
                let absent = || self.read_error(name, io::Error::from(io::ErrorKind::NotFound));
                let (offset, length) = files.get(Path::new(name)).ok_or_else(absent)?;
                (path.clone(), *offset, *length)
            }
        };
        let mut file = File::open(path).map_err(|source| self.read_error(name, source))?;
        file.seek(SeekFrom::Start(offset)).map_err(|source| self.read_error(name, source))?;
        Ok(file.take(length))
    }

    /// A small file by name, unverified: `index.json`.
    pub(super) fn document(&self, name: &str) -> Result<Vec<u8>, BlobError> {
        let mut bytes = Vec::new();
        let mut file = self.open(name)?.take(DOCUMENT_LIMIT + 1);
        file.read_to_end(&mut bytes).map_err(|source| self.read_error(name, source))?;
        if bytes.len() as u64 > DOCUMENT_LIMIT {
            return Err(self.read_error(name, io::Error::from(io::ErrorKind::FileTooLarge)));
        }
        Ok(bytes)
    }

    /// A small blob by digest, verified.
    pub(super) fn verified(&self, digest: &str) -> Result<Vec<u8>, BlobError> {
        let (name, hex) = blob_name(digest)?;
        let bytes = self.document(&name)?;
        let found = hex_of(&Sha256::digest(&bytes));
        if found != hex {
            return Err(BlobError::Digest { path: self.path().to_owned(), name, found });
        }
        Ok(bytes)
    }

    /// A blob to stream. What was read may be believed only after [`Verifying::finish`].
    pub(super) fn stream(&self, digest: &str) -> Result<Verifying, BlobError> {
        let (name, expected) = blob_name(digest)?;
        let file = self.open(&name)?;
        Ok(Verifying { file, hash: Sha256::new(), expected, name, path: self.path().to_owned() })
    }
}

/// A blob that is hashed while it is read.
pub(super) struct Verifying {
    file: io::Take<File>,
    hash: Sha256,
    expected: String,
    name: String,
    path: PathBuf,
}

impl Read for Verifying {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(into)?;
        self.hash.update(into.get(..read).unwrap_or_default());
        Ok(read)
    }
}

impl Verifying {
    /// Reads what is left and compares.
    pub(super) fn finish(mut self) -> Result<(), BlobError> {
        if let Err(source) = io::copy(&mut self, &mut io::sink()) {
            return Err(BlobError::Read { path: self.path, name: self.name, source });
        }
        let found = hex_of(&self.hash.finalize());
        if found != self.expected {
            return Err(BlobError::Digest { path: self.path, name: self.name, found });
        }
        Ok(())
    }
}

fn blob_name(digest: &str) -> Result<(String, String), BlobError> {
    let hex = digest
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
        .ok_or_else(|| BlobError::NoDigest(digest.to_owned()))?;
    Ok((format!("blobs/sha256/{hex}"), hex.to_owned()))
}

/// Lower-case hexadecimal.
pub(super) fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tar member's name without leading `/`, `./` or `..`.
pub(super) fn plain(name: &Path) -> PathBuf {
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
        assert!(blob_name(&format!("sha256:{}", "a".repeat(64))).is_ok());
        for digest in [
            "",
            "sha256:",
            "sha512:00",
            "sha256:../../../../etc/passwd",
            &format!("sha256:{}", "A".repeat(64)),
        ] {
            assert!(blob_name(digest).is_err(), "{digest}");
        }
    }

    #[test]
    fn a_damaged_blob_is_told_by_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        let hex = hex_of(&Sha256::digest(b"right"));
        std::fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        std::fs::write(dir.path().join("blobs/sha256").join(&hex), "wrong").unwrap();
        let blobs = Blobs::directory(dir.path()).unwrap();
        let digest = format!("sha256:{hex}");
        assert!(matches!(blobs.verified(&digest), Err(BlobError::Digest { .. })));
        assert!(matches!(blobs.stream(&digest).unwrap().finish(), Err(BlobError::Digest { .. })));
    }
}
