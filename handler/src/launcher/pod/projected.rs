//! The files of volumes in a launcher Pod that the kubelet projects from objects.
//!
//! The kubelet replaces them all at once: the entries of such a volume are links into `..data`, which is a link to a
//! directory with one version of the files. They are read from that directory, in which no link is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::root::Root;
use crate::storage::iso;
use crate::storage::projected::{Collected, ProjectedError};

/// The link to the current version of the files.
const DATA: &str = "..data";
/// The most directories below each other.
const DEEPEST: usize = 16;

/// The files of a volume at a directory in the Pod of the launcher with this process ID. Blocks.
///
/// # Errors
/// When they cannot be read, or are more than a volume may have.
pub(crate) fn read(pid: i32, directory: &str) -> Result<Vec<iso::File>, ProjectedError> {
    let failed = |source| ProjectedError::Read { directory: directory.to_owned(), source };
    read_in(&Root::of(pid).map_err(failed)?, directory)
}

fn read_in(root: &Root, directory: &str) -> Result<Vec<iso::File>, ProjectedError> {
    let failed = |source| ProjectedError::Read { directory: directory.to_owned(), source };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The container's own directories may have links, as /var/run is one.
    let volume = root.open(Path::new(directory), flags, ResolveFlags::empty()).map_err(failed)?;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let data = match openat2(&volume, DATA, flags, Mode::empty(), beneath) {
        // An object that may be missing is.
        Err(Errno::NOENT) => return Ok(Vec::new()),
        data => data.map_err(|errno| failed(errno.into()))?,
    };
    let mut files = Collected::default();
    collect(&data, "", 0, &mut files).map_err(|error| match error {
        Failed::Read(source) => failed(source),
        Failed::Refused(error) => error,
    })?;
    Ok(files.into_files())
}

enum Failed {
    Read(io::Error),
    Refused(ProjectedError),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Read(errno.into())
    }
}

/// Adds the files at and below a directory, whose path from the first one ends with a slash where there is one.
fn collect(directory: &OwnedFd, path: &str, depth: usize, files: &mut Collected) -> Result<(), Failed> {
    if depth > DEEPEST {
        return Err(Failed::Refused(ProjectedError::TooLarge));
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let text = OsStr::from_bytes(name.to_bytes()).to_str();
        let lossy = || ProjectedError::Name(name.to_string_lossy().into_owned());
        let path = format!("{path}{}", text.ok_or_else(|| Failed::Refused(lossy()))?);
        let plain = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        // Without O_NONBLOCK, opening a fifo would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = openat2(directory, name, flags, Mode::empty(), plain)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
            FileType::Directory => collect(&opened, &format!("{path}/"), depth + 1, files)?,
            FileType::RegularFile => {
                // One byte more shows that there are too many.
                let most = u64::try_from(files.left()).unwrap_or(u64::MAX).saturating_add(1);
                let mut content = Vec::new();
                File::from(opened).take(most).read_to_end(&mut content).map_err(Failed::Read)?;
                files.add(&path, content).map_err(Failed::Refused)?;
            }
            _ => return Err(Failed::Refused(ProjectedError::Name(path))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const VOLUME: &str = "/var/run/files/a";

    /// A volume as the kubelet makes it, in a container whose /var/run is a link.
    fn volume(container: &Path) -> std::path::PathBuf {
        let volume = container.join("run/files/a");
        let data = volume.join("..2026_11_25_10_00_00.1");
        fs::create_dir_all(data.join("deep")).unwrap();
        fs::create_dir(container.join("var")).unwrap();
        symlink("../run", container.join("var/run")).unwrap();
        symlink("..2026_11_25_10_00_00.1", volume.join(DATA)).unwrap();
        for name in ["key", "deep"] {
            symlink(format!("..data/{name}"), volume.join(name)).unwrap();
        }
        fs::write(data.join("key"), "value").unwrap();
        fs::write(data.join("deep/one"), [0, 255]).unwrap();
        data
    }

    #[test]
    fn files_are_those_of_the_current_version() {
        let dir = tempfile::tempdir().unwrap();
        volume(dir.path());
        let root = Root::at(dir.path()).unwrap();
        let files = read_in(&root, VOLUME).unwrap();
        assert_eq!(files, [iso::File::new("deep/one", [0, 255]), iso::File::new("key", "value")]);
        let absent = read_in(&root, "/var/run/files/b").unwrap_err();
        assert!(matches!(absent, ProjectedError::Read { .. }), "{absent}");
        fs::create_dir(dir.path().join("run/files/b")).unwrap();
        assert_eq!(read_in(&root, "/var/run/files/b").unwrap(), [], "an object that may be missing");
    }

    #[test]
    fn no_link_leads_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let data = volume(dir.path());
        let root = Root::at(dir.path()).unwrap();
        fs::write(dir.path().join("other"), "other").unwrap();
        for target in ["/other", "../../../../other", "key"] {
            symlink(target, data.join("link")).unwrap();
            assert!(read_in(&root, VOLUME).is_err(), "{target}");
            fs::remove_file(data.join("link")).unwrap();
        }
        rustix::fs::mkfifoat(rustix::fs::CWD, data.join("fifo"), Mode::RUSR).unwrap();
        assert!(matches!(read_in(&root, VOLUME), Err(ProjectedError::Name(name)) if name == "fifo"));
        fs::remove_file(data.join("fifo")).unwrap();
        assert_eq!(read_in(&root, VOLUME).unwrap().len(), 2);
        let volume = data.parent().unwrap();
        fs::remove_file(volume.join(DATA)).unwrap();
        symlink("../..", volume.join(DATA)).unwrap();
        assert!(read_in(&root, VOLUME).is_err(), "out of the volume");
    }

    #[test]
    fn files_have_limits() {
        let dir = tempfile::tempdir().unwrap();
        let data = volume(dir.path());
        let root = Root::at(dir.path()).unwrap();
        fs::File::create(data.join("large")).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(read_in(&root, VOLUME), Err(ProjectedError::TooLarge)));
        fs::remove_file(data.join("large")).unwrap();
        fs::create_dir_all(data.join("d/".repeat(DEEPEST + 1))).unwrap();
        assert!(matches!(read_in(&root, VOLUME), Err(ProjectedError::TooLarge)));
    }
}
