//! Opens files of this node that manifests name, without following links, side effects or waiting.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;

/// How often a lookup is retried when the path changes meanwhile.
const ATTEMPTS: usize = 16;

/// Why a file or directory is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A directory, FIFO, socket or device.
    #[error("it is not a regular file")]
    NotRegular,
    /// A symbolic link, or one on the way there; where it leads is not looked at.
    #[error("a symbolic link is on its path, which is not followed")]
    Link,
    /// Anything else.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for OpenError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::LOOP => Self::Link,
            error => Self::Io(error.into()),
        }
    }
}

/// Opens a directory and follows symbolic links: for a path that the administrator set.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub fn directory(path: &Path) -> Result<OwnedFd, OpenError> {
    Ok(openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a regular file in the same way.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub fn regular(path: &Path) -> Result<File, OpenError> {
    reopen(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?, OFlags::RDONLY)
}

/// Opens a directory below another one, or that directory itself; no symbolic link is followed.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub fn directory_beneath(parent: impl AsFd, path: &Path) -> Result<OwnedFd, OpenError> {
    Ok(beneath(parent, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?)
}

/// The names of what is in a directory, in order.
///
/// # Errors
/// When it cannot be read.
pub fn names_in(directory: impl AsFd) -> Result<Vec<OsString>, OpenError> {
    let opened = beneath(directory, Path::new(""), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::new(opened)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Opens a regular file below a directory; no symbolic link is followed.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub fn regular_beneath(parent: impl AsFd, path: &Path) -> Result<File, OpenError> {
    regular_beneath_for(parent, path, OFlags::RDONLY)
}

/// The same for this access.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub fn regular_beneath_for(parent: impl AsFd, path: &Path, access: OFlags) -> Result<File, OpenError> {
    reopen(beneath(parent, path, OFlags::PATH, Mode::empty())?, access)
}

/// Makes a file below a directory, and the directories on its path; no symbolic link is followed. An existing file is an
/// error.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub fn create_beneath(parent: impl AsFd, path: &Path) -> Result<File, OpenError> {
    let mut directory = beneath(parent, Path::new(""), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    for name in path.parent().into_iter().flat_map(Path::iter) {
        match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
            Err(error) if error != Errno::EXIST => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        directory = beneath(&directory, Path::new(name), flags, Mode::empty())?;
    }
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    Ok(beneath(&directory, Path::new(name), flags, Mode::RUSR | Mode::WUSR)?.into())
}

fn beneath(parent: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let path = if path == Path::new("") { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let open = || openat2(&parent, path, flags | OFlags::CLOEXEC, mode, resolve);
    let mut opened = open();
    for _ in 1..ATTEMPTS {
        if !matches!(opened, Err(Errno::AGAIN)) {
            break;
        }
        opened = open();
    }
    opened
}

/// Reopens an `O_PATH` descriptor. Opening a FIFO would wait for its writer, and opening a device may have
/// side effects, so the type is checked first; the descriptor refers to the checked file even if the path changes.
fn reopen(place: OwnedFd, access: OFlags) -> Result<File, OpenError> {
    if FileType::from_raw_mode(fstat(&place)?.st_mode) != FileType::RegularFile {
        return Err(OpenError::NotRegular);
    }
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(CWD, format!("/proc/self/fd/{}", place.as_raw_fd()), flags, Mode::empty())?;
    Ok(File::from(file))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::mknodat;

    use super::*;

    #[test]
    fn regular_files_beneath_a_directory_are_opened_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        std::fs::create_dir_all(at("images/inner")).unwrap();
        std::fs::write(at("secret"), "secret").unwrap();
        std::fs::write(at("images/inner/file"), "content").unwrap();
        symlink(at("secret"), at("images/link")).unwrap();
        symlink(at("absent"), at("images/lost")).unwrap();
        symlink("inner", at("images/alias")).unwrap();
        symlink(at("images"), at("administrators-link")).unwrap();
        mknodat(CWD, at("images/fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = UnixListener::bind(at("images/socket")).unwrap();
        let images = directory(&at("administrators-link")).unwrap();
        let open = |path: &str| regular_beneath(&images, Path::new(path));

        let mut content = String::new();
        open("inner/file").unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
        for path in ["link", "lost", "alias/file"] {
            assert!(matches!(open(path), Err(OpenError::Link)), "{path}");
        }
        for path in ["fifo", "socket", "inner", "."] {
            assert!(matches!(open(path), Err(OpenError::NotRegular)), "{path}");
        }
        for path in ["../secret", "/etc/passwd", "inner/../../secret"] {
            assert!(matches!(open(path), Err(OpenError::Io(_))), "{path}");
        }
        assert!(directory_beneath(&images, Path::new("inner")).is_ok());
        assert!(directory_beneath(&images, Path::new("")).is_ok());
        assert!(matches!(directory_beneath(&images, Path::new("alias")), Err(OpenError::Link)));
        assert!(directory_beneath(&images, Path::new("inner/file")).is_err());
        assert_eq!(names_in(&images).unwrap(), ["alias", "fifo", "inner", "link", "lost", "socket"]);

        assert!(regular(&at("administrators-link/link")).is_ok(), "who names it anywhere is trusted");
        assert!(matches!(regular(&at("images/fifo")), Err(OpenError::NotRegular)));
        assert!(matches!(regular(Path::new("/dev/zero")), Err(OpenError::NotRegular)));
    }
}
