//! What this program is in the containers of images in a launcher Pod: it names files of the image to the node agent, which
//! opens them, so that the kubelet pulls images of disks and kernels as any others. It ends when the node agent has them.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;
use vireo_proto::files::{self, DISKS, Wanted, disk_name, file_name};

/// Why files cannot be offered.
#[derive(Debug, Error)]
pub enum ImageError {
    /// A file cannot be opened.
    #[error("cannot open {path} in the image", path = path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A container disk must hold one disk.
    #[error(
        "the image must hold exactly one file below /disk, or containerDisk.path must name one; it holds {0}"
    )]
    NotOneDisk(usize),
    /// The socket.
    #[error("cannot offer the files of the image")]
    Offer(#[source] io::Error),
    /// This program cannot be copied.
    #[error("cannot install this program in {directory}", directory = directory.display())]
    Install {
        /// Where.
        directory: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Copies this program to a directory.
///
/// # Errors
/// When it cannot be read or written.
pub fn install(directory: &Path) -> Result<(), ImageError> {
    let copy = || {
        let to = directory.join("virt-launcher");
        fs::copy("/proc/self/exe", &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o555))
    };
    copy().map_err(|source| ImageError::Install { directory: directory.to_owned(), source })
}

/// Offers the disk of this image, at a path or the only one below `/disk`, until it is not needed any more.
///
/// # Errors
/// When it is not there, or cannot be offered.
pub fn offer_disk(socket: &Path, path: Option<&Path>) -> Result<(), ImageError> {
    match path {
        Some(path) => check(path)?,
        None => check(&only_disk(Path::new(DISKS))?)?,
    }
    offer(socket, &[disk_name(path)])
}

/// Offers files of this image under their paths, until they are not needed any more.
///
/// # Errors
/// When one is not there, or cannot be offered.
pub fn offer_files(socket: &Path, paths: &[PathBuf]) -> Result<(), ImageError> {
    let named = |path: &PathBuf| check(path).map(|()| file_name(path));
    offer(socket, &paths.iter().map(named).collect::<Result<Vec<_>, _>>()?)
}

/// What ends this program is its container's termination message, which the user sees.
fn check(path: &Path) -> Result<(), ImageError> {
    let opened = File::open(path).map(drop);
    opened.map_err(|source| ImageError::Open { path: path.to_owned(), source })
}

fn only_disk(directory: &Path) -> Result<PathBuf, ImageError> {
    let failed = |source| ImageError::Open { path: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ImageError::NotOneDisk(0)),
        entries => entries.map_err(failed)?,
    };
    let files = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let files: Vec<PathBuf> = files.map_err(failed)?.into_iter().filter(|path| path.is_file()).collect();
    match files.as_slice() {
        [only] => Ok(only.clone()),
        files => Err(ImageError::NotOneDisk(files.len())),
    }
}

fn offer(socket: &Path, names: &[String]) -> Result<(), ImageError> {
    let listener = files::listener(socket).map_err(ImageError::Offer)?;
    // A peer that breaks off may come again.
    while !matches!(files::offer(listener.as_fd(), names), Ok(Wanted::Nothing)) {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(only_disk(&dir.path().join("absent")), Err(ImageError::NotOneDisk(0))));
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        fs::write(dir.path().join("a.qcow2"), "").unwrap();
        assert_eq!(only_disk(dir.path()).unwrap(), dir.path().join("a.qcow2"));
        fs::write(dir.path().join("b.img"), "").unwrap();
        assert!(matches!(only_disk(dir.path()), Err(ImageError::NotOneDisk(2))));
    }
}
