//! Files of this node that are a `hostDisk`: found, made and opened below the directories where they may be.
//!
//! Others may write to those directories, so a path that was checked may lead elsewhere a moment later. A file is made
//! and opened relative to an open directory, without following links.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fstatvfs};
use rustix::io::Errno;
use vireo_api::spec::{Vm, VolumeSource};
use vireo_vmconfig::DiskSource;

use super::allowed::{AllowedDirectories, AllowedPaths, NotAllowed, list};
use super::node_file::{self, OpenError};
use super::volumes::{self, VolumeError, open_error};

/// The disks of a VM that are a `hostDisk`.
#[derive(Debug)]
pub(crate) struct HostDisks {
    paths: BTreeSet<PathBuf>,
    allowed: AllowedDirectories,
}

impl Default for HostDisks {
    fn default() -> Self {
        Self { paths: BTreeSet::new(), allowed: AllowedDirectories::Below(Vec::new()) }
    }
}

impl HostDisks {
    /// Those of a VM whose disks were prepared.
    pub(crate) fn of(vm: &Vm, prepared: &[DiskSource], allowed: &AllowedPaths) -> Self {
        let paths =
            vm.fixed_disks().zip(prepared).filter_map(|(disk, source)| match (disk.source(), source) {
                (VolumeSource::HostDisk { .. }, DiskSource::Raw(path)) => Some(path.clone()),
                _ => None,
            });
        Self { paths: paths.collect(), allowed: allowed.host_disks.clone() }
    }

    /// Opens the file of such a disk by the path that [`prepare`] returned. `None` for another disk.
    ///
    /// # Errors
    /// When it is not a regular file, or a link leads to it.
    pub(crate) fn open(&self, path: &Path, write: bool) -> Option<io::Result<File>> {
        self.paths.contains(path).then(|| open(&self.allowed, path, write))
    }
}

fn open(allowed: &AllowedDirectories, path: &Path, write: bool) -> io::Result<File> {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let (directory, rest) = match allowed {
        // Its author is the administrator, whose directories may be links.
        AllowedDirectories::Any => split(path)?,
        AllowedDirectories::Below(directories) => {
            base(directories, path).ok_or_else(|| io::Error::other("it is not below an allowed directory"))?
        }
    };
    let opened = node_file::directory(&directory)
        .and_then(|directory| node_file::regular_beneath_for(directory, &rest, access));
    opened.map_err(into_io)
}

fn split(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let (parent, name) = path.parent().zip(path.file_name()).ok_or(Errno::INVAL)?;
    Ok((parent.to_owned(), name.into()))
}

fn into_io(error: OpenError) -> io::Error {
    match error {
        OpenError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// Finds the file of a `hostDisk`, or makes it with this capacity. Returns its path without symbolic links.
///
/// # Errors
/// When it may not be there, is not there, or is not a regular file.
pub(super) fn prepare(
    allowed: &AllowedPaths,
    path: &Path,
    create_with: Option<u64>,
) -> Result<PathBuf, VolumeError> {
    let AllowedDirectories::Below(directories) = &allowed.host_disks else {
        volumes::host_disk(path, create_with)?;
        return Ok(path.to_owned());
    };
    let real = find(allowed, path)?;
    let (directory, rest) = base(directories, &real).ok_or_else(|| leads_elsewhere(path, directories))?;
    match (open(&allowed.host_disks, &real, false), create_with) {
        (Ok(_), _) => Ok(real),
        (Err(error), Some(capacity)) if error.kind() == io::ErrorKind::NotFound => {
            create(&real, (&directory, &rest), capacity).map(|()| real)
        }
        (Err(error), None) if error.kind() == io::ErrorKind::NotFound => Err(VolumeError::Absent(real)),
        (Err(error), _) if error.raw_os_error().is_none() => Err(VolumeError::NotRegular(real)),
        (Err(error), _) => Err(open_error(&real)(error)),
    }
}

fn create(path: &Path, (directory, rest): (&Path, &Path), capacity: u64) -> Result<(), VolumeError> {
    let failed = open_error(path);
    std::fs::create_dir_all(directory).map_err(&failed)?;
    let directory = node_file::directory(directory).map_err(into_io).map_err(&failed)?;
    let stat = fstatvfs(&directory).map_err(|errno| failed(errno.into()))?;
    volumes::fits(path, &stat, capacity)?;
    let file = node_file::create_beneath(&directory, rest).map_err(into_io).map_err(&failed)?;
    volumes::set_capacity(&file, capacity).map_err(failed)
}

/// The allowed directory, without symbolic links, that a path without such links is below, and the rest of the path.
fn base(directories: &[PathBuf], path: &Path) -> Option<(PathBuf, PathBuf)> {
    // A missing directory is created with the file.
    let led_to = |directory: &PathBuf| directory.canonicalize().or_else(|_| real(directory)).ok();
    directories.iter().filter_map(led_to).find_map(|directory| {
        let rest = path.strip_prefix(&directory).ok().filter(|rest| *rest != Path::new(""))?.to_owned();
        Some((directory, rest))
    })
}

fn leads_elsewhere(path: &Path, directories: &[PathBuf]) -> NotAllowed {
    NotAllowed::LeadsElsewhere { path: path.display().to_string(), directories: list(directories) }
}

/// The path of an existing or new file without symbolic links.
///
/// # Errors
/// When the path or its target is not allowed. The error does not reveal which, nor what exists there.
fn find(allowed: &AllowedPaths, path: &Path) -> Result<PathBuf, NotAllowed> {
    let AllowedDirectories::Below(directories) = &allowed.host_disks else { return Ok(path.to_owned()) };
    allowed.check_host_disk(path)?;
    let found = real(path).ok().filter(|real| base(directories, real).is_some());
    found.ok_or_else(|| leads_elsewhere(path, directories))
}

/// Resolves the existing part of the path, and appends the part that is to be created.
fn real(path: &Path) -> std::io::Result<PathBuf> {
    let mut rest: Vec<OsString> = path.file_name().map(OsString::from).into_iter().collect();
    let mut there = path.parent().unwrap_or(Path::new("/"));
    // A dangling link exists, too: it is an error, not a directory to be created.
    while there.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        rest.extend(there.file_name().map(OsString::from));
        there = there.parent().unwrap_or(Path::new("/"));
    }
    Ok(rest.iter().rev().fold(there.canonicalize()?, |path, name| path.join(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path);
        std::fs::create_dir_all(at("disks/own")).unwrap();
        std::fs::create_dir_all(at("secret")).unwrap();
        for (link, target) in
            [("disks/out", at("secret")), ("disks/in", at("disks/own")), ("disks/lost", at("absent"))]
        {
            symlink(target, at(link)).unwrap();
        }
        symlink(at("disks"), at("alias")).unwrap();
        let directories = vec![at("disks"), at("alias"), at("later/on"), at("disks/lost")];
        let allowed =
            AllowedPaths { host_disks: AllowedDirectories::Below(directories), ..AllowedPaths::any() };
        for (path, leads) in [
            ("disks/a", Some("disks/a")),
            ("disks/new/deep/a", Some("disks/new/deep/a")),
            ("disks/in/a", Some("disks/own/a")),
            ("alias/a", Some("disks/a")),
            ("later/on/a", Some("later/on/a")),
            ("later/a", None),
            ("disks/out/a", None),
            ("disks/out/new/a", None),
            ("disks/lost/a", None),
            ("disks/lost/new/a", None),
            ("secret/a", None),
        ] {
            let found = find(&allowed, &at(path));
            assert_eq!(found.as_ref().ok(), leads.map(at).as_ref(), "{path}: {found:?}");
        }
        let message = find(&allowed, &at("disks/out/a")).unwrap_err().to_string();
        assert!(
            message.contains("disks/out/a does not lead to a file below") && !message.contains("secret"),
            "{message}"
        );
        assert_eq!(find(&AllowedPaths::any(), &at("disks/out/a")).unwrap(), at("disks/out/a"));
    }
    fn below(directory: PathBuf) -> AllowedPaths {
        AllowedPaths { host_disks: AllowedDirectories::Below(vec![directory]), ..AllowedPaths::any() }
    }

    fn of(path: &Path, allowed: &AllowedPaths) -> HostDisks {
        HostDisks { paths: BTreeSet::from([path.to_owned()]), allowed: allowed.host_disks.clone() }
    }

    #[test]
    fn a_link_that_appears_after_the_check_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path);
        std::fs::create_dir_all(at("disks/own")).unwrap();
        std::fs::create_dir_all(at("secret")).unwrap();
        for file in ["disks/own/a", "disks/b", "secret/a"] {
            std::fs::write(at(file), file).unwrap();
        }
        let allowed = below(at("disks"));
        let path = prepare(&allowed, &at("disks/own/a"), None).unwrap();
        let disks = of(&path, &allowed);
        assert!(disks.open(&path, true).unwrap().is_ok());
        assert!(disks.open(&at("disks/b"), true).is_none(), "it is not a hostDisk of the VM");
        let refused = |path: &Path, why: &str| {
            let error = of(path, &allowed).open(path, true).unwrap().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        // The file itself is swapped.
        std::fs::remove_file(&path).unwrap();
        symlink(at("secret/a"), &path).unwrap();
        refused(&path, "symbolic link");
        // A directory on its path is swapped.
        std::fs::remove_dir_all(at("disks/own")).unwrap();
        symlink(at("secret"), at("disks/own")).unwrap();
        refused(&path, "symbolic link");
        assert_eq!(std::fs::read(at("secret/a")).unwrap(), b"secret/a");
        refused(&at("secret/a"), "not below");
    }

    #[test]
    fn a_fifo_or_device_is_refused_at_once() {
        use rustix::fs::{CWD, Mode, mkfifoat};
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let path = root.join("disk.img");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        for allowed in [below(root.clone()), AllowedPaths::any()] {
            for write in [false, true] {
                let error = of(&path, &allowed).open(&path, write).unwrap().unwrap_err();
                assert_eq!(error.to_string(), "it is not a regular file");
            }
            assert!(matches!(prepare(&allowed, &path, Some(1 << 20)), Err(VolumeError::NotRegular(_))));
        }
        let (null, dev) = (Path::new("/dev/null"), below("/dev".into()));
        assert!(of(null, &dev).open(null, true).unwrap().is_err());
    }

    #[test]
    fn a_file_is_made_below_the_directory_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path);
        std::fs::create_dir_all(at("secret")).unwrap();
        let allowed = below(at("disks"));
        let made = prepare(&allowed, &at("disks/new/deep/a"), Some(3 << 20)).unwrap();
        assert_eq!(std::fs::metadata(&made).unwrap().len(), 3 << 20);
        assert!(of(&made, &allowed).open(&made, true).unwrap().is_ok());
        assert!(matches!(prepare(&allowed, &at("disks/b"), None), Err(VolumeError::Absent(_))));
        // As if it had come after the check.
        symlink(at("secret"), at("disks/out")).unwrap();
        let late = create(&at("disks/out/a"), (&at("disks"), Path::new("out/a")), 1 << 20);
        assert!(matches!(late, Err(VolumeError::Open { .. })), "{late:?}");
        assert_eq!(std::fs::read_dir(at("secret")).unwrap().count(), 0);
    }
}
