//! The image layout that a download fills (OCI image specification 1.1, image layout).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest as _, Sha256};

/// A directory with an image layout.
#[derive(Debug)]
pub(crate) struct Layout {
    blobs: PathBuf,
    directory: PathBuf,
}

/// A blob that is being written: `<digest>.partial`, which becomes the blob once it is whole.
#[derive(Debug)]
pub(crate) struct PartialBlob {
    file: File,
    path: PathBuf,
    hash: Sha256,
    written: u64,
}

/// The hexadecimal part of a digest, if it is one of SHA-256.
pub(crate) fn hex_of(digest: &str) -> Option<&str> {
    let is_hex = |hex: &&str| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    digest.strip_prefix("sha256:").filter(is_hex)
}

/// The digest of bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    digest(Sha256::new_with_prefix(bytes))
}

fn digest(hash: Sha256) -> String {
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

impl Layout {
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let blobs = directory.join("blobs/sha256");
        fs::create_dir_all(&blobs)?;
        Ok(Self { blobs, directory: directory.to_owned() })
    }

    /// Whether a blob of this length is there: it was verified when it was written.
    pub(crate) fn has(&self, hex: &str, length: u64) -> bool {
        fs::metadata(self.blobs.join(hex)).is_ok_and(|file| file.len() == length)
    }

    /// Continues a blob of which an earlier process may have written a part.
    pub(crate) fn partial(&self, hex: &str, length: u64) -> io::Result<PartialBlob> {
        let path = self.blobs.join(format!("{hex}.partial"));
        let mut open = OpenOptions::new();
        let mut file = open.read(true).append(true).create(true).mode(0o600).open(&path)?;
        let (mut hash, mut written) = (Sha256::new(), 0_u64);
        if file.metadata()?.len() > length {
            file.set_len(0)?;
        }
        let mut chunk = vec![0; 1 << 16];
        loop {
            let read = file.read(&mut chunk)?;
            let Some(read) = chunk.get(..read).filter(|read| !read.is_empty()) else { break };
            hash.update(read);
            written += read.len() as u64;
        }
        Ok(PartialBlob { file, path, hash, written })
    }

    /// Writes a manifest and the index that names it.
    pub(crate) fn finish(&self, manifest: &[u8], media_type: &str) -> io::Result<()> {
        let digest = digest_of(manifest);
        let hex = hex_of(&digest).unwrap_or_default();
        fs::write(self.blobs.join(hex), manifest)?;
        let descriptor = json!({"mediaType": media_type, "digest": digest, "size": manifest.len()});
        let index = json!({"schemaVersion": 2, "manifests": [descriptor]});
        fs::write(self.directory.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#)?;
        fs::write(self.directory.join("index.json"), index.to_string())
    }
}

impl PartialBlob {
    /// How many bytes it has.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what it has.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        (self.hash, self.written) = (Sha256::new(), 0);
        Ok(())
    }

    /// Makes it the blob, if it has that digest. Else it is removed.
    pub(crate) fn finish(self, hex: &str) -> io::Result<bool> {
        if hex_of(&digest(self.hash)) != Some(hex) {
            fs::remove_file(&self.path)?;
            return Ok(false);
        }
        fs::rename(&self.path, self.path.with_extension(""))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_continued_and_is_there_only_with_its_digest() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::open(directory.path()).unwrap();
        let digest = digest_of(b"layer");
        let hex = hex_of(&digest).unwrap();
        layout.partial(hex, 5).unwrap().append(b"lay").unwrap();
        let mut blob = layout.partial(hex, 5).unwrap();
        assert_eq!(blob.written(), 3);
        blob.append(b"er").unwrap();
        assert!(!layout.has(hex, 5));
        assert!(blob.finish(hex).unwrap() && layout.has(hex, 5) && !layout.has(hex, 6));

        let mut damaged = layout.partial(hex, 5).unwrap();
        assert_eq!(damaged.written(), 0);
        damaged.append(b"later, and longer").unwrap();
        drop(damaged);
        let mut damaged = layout.partial(hex, 5).unwrap();
        assert_eq!(damaged.written(), 0, "it was longer than the blob");
        damaged.append(b"other").unwrap();
        assert!(!damaged.finish(hex).unwrap());
        assert_eq!(layout.partial(hex, 5).unwrap().written(), 0, "what is damaged is not continued");
    }

    #[test]
    fn only_sha256_is_a_digest() {
        assert!(hex_of(&digest_of(b"")).is_some());
        for digest in ["", "sha256:", "sha512:00", "sha256:../../x", &format!("sha256:{}", "A".repeat(64))] {
            assert_eq!(hex_of(digest), None, "{digest}");
        }
    }
}
