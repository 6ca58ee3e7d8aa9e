//! Files that are replaced as a whole.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use thiserror::Error;

/// Why a file was not written.
#[derive(Debug, Error)]
#[error("cannot write {path}", path = path.display())]
pub struct FileError {
    /// The file.
    path: PathBuf,
    /// Why.
    source: io::Error,
}

/// Replaces a file, which only its owner may read: readers see the old content or the new one, also after a crash.
///
/// # Errors
/// When it cannot be written; the old content is then still there.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let write = || {
        let mut file = NamedTempFile::new_in(directory)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|source| FileError { path: path.to_owned(), source })
}

/// Locks a directory until the file is dropped, against others that change files in it.
///
/// # Errors
/// When it cannot be opened or locked.
pub fn lock_directory(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    file.lock()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_replaced_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        for content in ["old", "new"] {
            write_atomically(&path, content.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
        let missing = write_atomically(&dir.path().join("absent/key"), b"x").unwrap_err();
        assert!(missing.to_string().ends_with("absent/key"), "{missing}");
    }
}
