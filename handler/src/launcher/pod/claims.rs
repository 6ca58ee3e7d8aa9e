//! The disks of claims in a launcher Pod: files and block devices below directories of its container, which only the
//! kubelet makes. The content of a mounted claim is not trusted: no link in it is followed.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstatvfs, openat2};
use rustix::io::Errno;
use serde_json::Value;

use super::root::Root;

/// Disks are whole pages.
const PAGE: u64 = 4096;

/// How much of the file system of a claim its disk takes when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClaimSpace {
    /// Percent of the size of the claim that may be missing.
    pub(crate) tolerated: u64,
    /// Bytes that stay free.
    pub(crate) reserved: u64,
}

impl Default for ClaimSpace {
    /// KubeVirt's.
    fn default() -> Self {
        Self { tolerated: 10, reserved: 128 << 10 }
    }
}

impl ClaimSpace {
    /// Reads the settings in `developerConfiguration`. What is not valid is as if it were not set.
    pub(crate) fn read(developer: &Value) -> Self {
        let Self { tolerated, reserved } = Self::default();
        let percent = developer["pvcTolerateLessSpaceUpToPercent"].as_u64();
        Self {
            tolerated: percent.filter(|percent| *percent <= 100).unwrap_or(tolerated),
            reserved: developer["minimumReservePVCBytes"].as_u64().unwrap_or(reserved),
        }
    }
}

/// A disk that is made in a claim's file system when a guest that may write to it starts first.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewDisk {
    /// The capacity of the claim.
    pub(super) bytes: u64,
    pub(super) space: ClaimSpace,
}

impl NewDisk {
    /// How large it is made where its file system has so much space.
    fn size(self, space: u64) -> io::Result<u64> {
        let Self { bytes, space: ClaimSpace { tolerated, reserved } } = self;
        let space = space.saturating_sub(reserved);
        let least = u128::from(bytes) * u128::from(100 - tolerated.min(100)) / 100;
        if u128::from(space) < least {
            let text = format!("there is space for {space} of its {bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        match bytes.min(space) / PAGE * PAGE {
            0 => Err(io::Error::other("the claim has no size")),
            size => Ok(size),
        }
    }
}

/// Opens a disk in a container: a file, which may have to be made, where `new` says how, else a block device. Blocks.
///
/// # Errors
/// When it is not there and cannot be made, or is not a disk.
pub(super) fn open_disk(root: &Root, path: &str, new: Option<NewDisk>, write: bool) -> io::Result<OwnedFd> {
    let (directory, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
    // The container's own directories may have links, as /var/run is one.
    let directory =
        root.open(Path::new(directory), OFlags::PATH | OFlags::DIRECTORY, ResolveFlags::empty())?;
    match new {
        Some(new) => file(&directory, name, new, write),
        None => device(&directory, name, write),
    }
}

/// Opens a file of a VM's state in a container, which is made where it is absent. Blocks.
///
/// # Errors
/// When it cannot be made, or is not a file.
pub(super) fn open_state(root: &Root, path: &str) -> io::Result<OwnedFd> {
    let (directory, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
    let directory =
        root.open(Path::new(directory), OFlags::PATH | OFlags::DIRECTORY, ResolveFlags::empty())?;
    let file = open_at(&directory, name, OFlags::RDWR | OFlags::CREATE)?;
    match file.metadata()?.is_file() {
        true => Ok(file.into()),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn open_at(directory: &OwnedFd, name: &str, flags: OFlags) -> io::Result<File> {
    let plain = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    // Without O_NONBLOCK, opening a fifo would wait for its other end.
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
    let opened = openat2(directory, name, flags, mode, plain).map_err(|errno| match errno {
        Errno::LOOP => io::Error::other("it is a symbolic link"),
        other => other.into(),
    });
    Ok(opened?.into())
}

fn access(write: bool) -> OFlags {
    if write { OFlags::RDWR } else { OFlags::RDONLY }
}

/// The disk in a claim's file system.
fn file(directory: &OwnedFd, name: &str, new: NewDisk, write: bool) -> io::Result<OwnedFd> {
    let file = match open_at(directory, name, access(write)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && write => {
            open_at(directory, name, access(write) | OFlags::CREATE)?
        }
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    // An attempt to make it may have been interrupted.
    if metadata.len() == 0 && write {
        let space = fstatvfs(&file)?;
        file.set_len(new.size(space.f_bavail.saturating_mul(space.f_frsize))?)?;
        file.sync_all()?;
    }
    Ok(file.into())
}

fn device(directory: &OwnedFd, name: &str, write: bool) -> io::Result<OwnedFd> {
    let device = open_at(directory, name, access(write))?;
    match device.metadata()?.file_type().is_block_device() {
        true => Ok(device.into()),
        false => Err(io::Error::other("it is not a block device")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const DISK: &str = "/disks/data/disk.img";

    fn new(bytes: u64) -> Option<NewDisk> {
        Some(NewDisk { bytes, space: ClaimSpace::default() })
    }

    #[test]
    fn a_disk_is_made_once_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("run/disks/data")).unwrap();
        // As in a container, where /var/run leads to /run.
        symlink("/run/disks", directory.path().join("disks")).unwrap();
        let root = Root::at(directory.path()).unwrap();
        let at = directory.path().join("run/disks/data/disk.img");
        assert!(open_disk(&root, DISK, new(8192), false).is_err(), "it is not writable");
        assert!(!at.exists());
        open_disk(&root, DISK, new(8192 + 100), true).unwrap();
        assert_eq!(fs::metadata(&at).unwrap().len(), 8192);
        open_disk(&root, DISK, new(1 << 20), true).unwrap();
        assert_eq!(fs::metadata(&at).unwrap().len(), 8192, "it has what a guest wrote");
        open_disk(&root, DISK, new(1 << 20), false).unwrap();
    }

    #[test]
    fn state_is_made_empty_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        fs::create_dir(&state).unwrap();
        let root = Root::at(directory.path()).unwrap();
        open_state(&root, "/state/efi").unwrap();
        assert_eq!(fs::read(state.join("efi")).unwrap(), b"");
        fs::write(state.join("efi"), "kept").unwrap();
        open_state(&root, "/state/efi").unwrap();
        assert_eq!(fs::read(state.join("efi")).unwrap(), b"kept");
        symlink("efi", state.join("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, state.join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        for bad in ["/state/link", "/state/fifo", "/absent/efi"] {
            assert!(open_state(&root, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_disk_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let claim = directory.path().join("disks/data");
        fs::create_dir_all(&claim).unwrap();
        let secret = directory.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        let root = Root::at(directory.path()).unwrap();
        let refused = |new| open_disk(&root, DISK, new, true).unwrap_err().to_string();
        for target in ["/secret", "../../secret", "nothing"] {
            symlink(target, claim.join("disk.img")).unwrap();
            assert_eq!(refused(new(4096)), "it is a symbolic link", "{target}");
            fs::remove_file(claim.join("disk.img")).unwrap();
        }
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        fs::create_dir(claim.join("disk.img")).unwrap();
        assert!(open_disk(&root, DISK, new(4096), true).is_err());
        fs::remove_dir(claim.join("disk.img")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, claim.join("disk.img"), Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(refused(new(4096)), "it is not a regular file");
        assert_eq!(refused(None), "it is not a block device");
        assert!(open_disk(&root, "/absent/data/disk.img", new(4096), true).is_err());
    }

    #[test]
    fn a_disk_may_lack_a_little_of_its_claim() {
        const MI: u64 = 1 << 20;
        let size = |bytes, space, tolerated, reserved| {
            NewDisk { bytes, space: ClaimSpace { tolerated, reserved } }.size(space)
        };
        assert_eq!(size(100 * MI, 500 * MI, 10, MI).unwrap(), 100 * MI);
        assert_eq!(size(100 * MI, 95 * MI + 1, 10, 0).unwrap(), 95 * MI);
        assert_eq!(size(100 * MI, 95 * MI + 1, 10, 4 * MI).unwrap(), 91 * MI, "some stays free");
        assert_eq!(size(100 * MI, 95 * MI, 0, 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(size(100 * MI, 94 * MI, 10, 5 * MI).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(size(100 * MI, MI, 100, 0).unwrap(), MI);
        assert!(size(0, MI, 10, 0).is_err());
        assert!(size(MI, MI, 100, MI).is_err(), "there is no space");
    }
}
