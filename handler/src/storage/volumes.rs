//! A VM's own volumes, which are created once and kept as long as the VM.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{OFlags, StatVfs, statvfs};

use super::allowed::NotAllowed;
use super::claims::Size;
use crate::jobs::{JobContext, child};

const MIB: u64 = 1 << 20;

/// Why a volume could not be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// `qemu-img` could not make the image.
    #[error("qemu-img could not make {path}: {output}")]
    Create {
        /// The image.
        path: PathBuf,
        /// What it printed.
        output: String,
    },
    /// `qemu-img` could not be started.
    #[error("cannot run qemu-img (Debian package qemu-utils)")]
    NoQemuImg(#[source] io::Error),
    /// A file could not be created or opened.
    #[error("cannot open {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A host disk of type Disk that is not there.
    #[error("{0} does not exist: make it, or use type DiskOrCreate with a capacity")]
    Absent(PathBuf),
    /// A host disk that is a directory, a link or a device.
    #[error("{0} is not a regular file")]
    NotRegular(PathBuf),
    /// A host disk where none may be.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// No space for a host disk.
    #[error("{path} needs {wanted} bytes, its file system has {free} free")]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Its capacity.
        wanted: u64,
        /// What there is.
        free: u64,
    },
    /// No space for a claim or an empty disk beside others.
    #[error(
        "{path} needs {wanted}, and {left} are free of {capacity}: {promised} are promised to claims and \
         empty disks (--storage-overcommit {overcommit})"
    )]
    PoolFull {
        /// The file.
        path: PathBuf,
        /// What it needs.
        wanted: Size,
        /// What is not promised.
        left: Size,
        /// What is free, or taken by claims and empty disks.
        capacity: Size,
        /// What was promised.
        promised: Size,
        /// The part of the capacity that may be promised, in percent.
        overcommit: u64,
    },
}

/// A writable overlay over a shared raw image. Reused if it exists.
pub fn overlay(at: &Path, backing_raw: &Path, job: &JobContext) -> Result<(), VolumeError> {
    create(at, job, |command| {
        command.args(["-F", "raw", "-b"]).arg(backing_raw);
        None
    })
}

/// An empty disk of `capacity` bytes, rounded up to whole sectors. Reused if it exists.
pub fn empty_disk(at: &Path, capacity: u64, job: &JobContext) -> Result<(), VolumeError> {
    create(at, job, |_| Some(capacity.next_multiple_of(512)))
}

fn create(
    at: &Path,
    job: &JobContext,
    options: impl FnOnce(&mut Command) -> Option<u64>,
) -> Result<(), VolumeError> {
    if at.exists() {
        return Ok(());
    }
    let partial = at.with_extension("partial");
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2"]);
    let size = options(&mut command);
    command.arg(&partial).args(size.map(|bytes| bytes.to_string()));
    let made = child::run(&mut command, job).map_err(VolumeError::NoQemuImg).and_then(|done| {
        let failed = || VolumeError::Create { path: at.to_owned(), output: done.stderr };
        done.status.success().then_some(()).ok_or_else(failed)
    });
    if made.is_err() {
        // The file may not exist.
        let _ = fs::remove_file(&partial);
    }
    made?;
    fs::rename(&partial, at).map_err(|source| VolumeError::Open { path: at.to_owned(), source })
}

/// A raw disk at any path of this node. With a capacity, a missing disk is created (`DiskOrCreate`).
///
/// The file is not followed through a symbolic link: the node's files are named by the manifest's author.
pub fn host_disk(path: &Path, create_with: Option<u64>) -> Result<(), VolumeError> {
    let open = open_error(path);
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(_) => Err(VolumeError::NotRegular(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(capacity) = create_with else { return Err(VolumeError::Absent(path.to_owned())) };
            let directory = path.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(directory).map_err(&open)?;
            has_space(path, capacity)?;
            let file = new_file(path).map_err(&open)?;
            set_capacity(&file, capacity).map_err(open)
        }
        Err(error) => Err(open(error)),
    }
}

/// Checks that the file system of a file has space for this many bytes. As in KubeVirt, the file system's own overhead
/// may take up to a tenth.
fn has_space(path: &Path, wanted: u64) -> Result<(), VolumeError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let stat = statvfs(directory).map_err(|errno| open_error(path)(errno.into()))?;
    fits(path, &stat, wanted)
}

/// The same for a file system.
pub(super) fn fits(path: &Path, stat: &StatVfs, wanted: u64) -> Result<(), VolumeError> {
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < wanted - wanted / 10 {
        return Err(VolumeError::NoSpace { path: path.to_owned(), wanted, free });
    }
    Ok(())
}

fn new_file(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(flags).open(path)
}

/// Gives a new disk its size, in whole MiB.
pub(super) fn set_capacity(file: &File, capacity: u64) -> io::Result<()> {
    file.set_len(capacity / MIB * MIB)?;
    file.sync_all()
}

pub(super) fn open_error(path: &Path) -> impl Fn(io::Error) -> VolumeError {
    move |source| VolumeError::Open { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_disk_is_made_once_and_never_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/disk.img");
        assert!(matches!(host_disk(&path, None), Err(VolumeError::Absent(_))));
        host_disk(&path, Some(3 * MIB + 5)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 3 * MIB);
        fs::write(&path, "kept").unwrap();
        host_disk(&path, Some(3 * MIB)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"kept");

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(host_disk(&link, Some(MIB)), Err(VolumeError::NotRegular(_))));
        assert!(matches!(host_disk(dir.path(), None), Err(VolumeError::NotRegular(_))));
        let huge = host_disk(&dir.path().join("huge"), Some(1 << 60));
        assert!(matches!(huge, Err(VolumeError::NoSpace { .. })), "{huge:?}");
    }

    #[test]
    fn images_are_made_once_and_keep_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("base.raw");
        File::create(&raw).unwrap().set_len(8 * MIB).unwrap();
        let (at, job) = (dir.path().join("over.qcow2"), JobContext::default());
        overlay(&at, &raw, &job).unwrap();
        let first = fs::read(&at).unwrap();
        assert!(first.starts_with(b"QFI\xfb"));
        fs::write(&at, "kept").unwrap();
        overlay(&at, &raw, &job).unwrap();
        assert_eq!(fs::read(&at).unwrap(), b"kept");

        let empty = dir.path().join("empty.qcow2");
        empty_disk(&empty, 1000, &job).unwrap();
        let header = fs::read(&empty).unwrap();
        assert_eq!(header[24..32], 1024u64.to_be_bytes());
    }

    #[test]
    fn a_failed_image_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("over.qcow2");
        let failed = overlay(&at, &dir.path().join("absent.raw"), &JobContext::default());
        assert!(matches!(failed, Err(VolumeError::Create { .. })));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
