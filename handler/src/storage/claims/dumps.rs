//! The memory dumps in a claim.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, open, openat2, unlinkat};
use rustix::io::Errno;

/// How the names of memory dumps end.
pub(super) const DUMP: &str = ".memory.dump";
/// The time of a memory dump in its name.
const TIME: &str = "%Y%m%d-%H%M%S";
const SECOND: SignedDuration = SignedDuration::from_secs(1);
/// How far that time may be ahead. A volume has two dumps at once: the earlier one is removed when the next is begun.
const FARTHEST: SignedDuration = SignedDuration::from_secs(60);

/// The directory of a claim that has memory dumps. What else is there is not trusted: no link in it is followed.
#[derive(Debug)]
pub(crate) struct DumpDirectory {
    path: PathBuf,
    opened: OwnedFd,
}

impl DumpDirectory {
    /// One that was opened to be read. Its path is what files in it are called by, and may be one of another mount namespace.
    pub(crate) fn new(path: PathBuf, opened: OwnedFd) -> Self {
        Self { path, opened }
    }

    /// That at a path of the node, which is trusted. Blocks.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open(&path, flags, Mode::empty())?;
        Ok(Self::new(path, opened))
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file for a memory dump and answers with its name: the prefix, which says whose it is, and the time; where a dump
    /// of the same second is there, the next second that is free. Blocks.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(crate) fn create(&self, prefix: &str, now: Timestamp) -> io::Result<(String, File)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let rules = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let mut time = now;
        loop {
            let name = dump_name(prefix, time);
            match openat2(&self.opened, &name, flags, Mode::RUSR | Mode::WUSR, rules) {
                Ok(file) => return Ok((name, file.into())),
                Err(Errno::EXIST) if time < now + FARTHEST => time += SECOND,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Removes the file of this name. Blocks.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.opened, name, AtFlags::empty())?)
    }

    /// Removes the memory dumps beside the one of this name that have this prefix. Blocks.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub(crate) fn remove_others(&self, kept: &str, prefix: &str) -> io::Result<()> {
        for entry in Dir::read_from(&self.opened)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != kept && is_dump(&name, prefix) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }
}

/// The name of a memory dump.
fn dump_name(prefix: &str, time: Timestamp) -> String {
    format!("{prefix}{}{DUMP}", time.to_zoned(TimeZone::UTC).strftime(TIME))
}

/// Whether this is the name of a memory dump with this prefix: only its time is between the prefix and the end. Another prefix may
/// begin with this one. The names are KubeVirt's, in which VMI `a` with volume `b-c` and VMI `a-b` with volume `c` have the same
/// prefix; such two that dump to one claim replace each other's dump.
fn is_dump(name: &str, prefix: &str) -> bool {
    let time = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(DUMP));
    time.is_some_and(|time| DateTime::strptime(TIME, time).is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    #[test]
    fn a_memory_dump_replaces_an_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let dumps = DumpDirectory::open(dir.path().to_owned()).unwrap();
        let create = |prefix: &str| dumps.create(prefix, NOW.parse().unwrap());
        let (first, _) = create("web-dumps-").unwrap();
        assert_eq!(first, "web-dumps-20260101-000000.memory.dump");
        // Of the VMI `web-dumps` and the volume `x`, and of one that is called as a time.
        let others = ["web-dumps-x-", "web-dumps-20260101-"].map(|prefix| create(prefix).unwrap().0);
        let (kept, _) = create("web-dumps-").unwrap();
        assert_eq!(kept, "web-dumps-20260101-000001.memory.dump", "the earlier one is still there");
        let has = |name: &str| dir.path().join(name).exists();
        dumps.remove_others(&kept, "api-dumps-").unwrap();
        assert!(has(&first));
        dumps.remove_others(&kept, "web-dumps-").unwrap();
        assert_eq!([&kept, &first, &others[0], &others[1]].map(|name| has(name)), [true, false, true, true]);
        dumps.remove(&kept).unwrap();
        assert!(!has(&kept));

        // All names of the next minute are taken.
        (0..61).for_each(|_| drop(create("web-dumps-").unwrap()));
        assert_eq!(create("web-dumps-").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_link_in_a_claim_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let claim = dir.path().join("claim");
        fs::create_dir(&claim).unwrap();
        let dumps = DumpDirectory::open(claim.clone()).unwrap();
        let first = "web-dumps-20260101-000000.memory.dump";
        symlink("../elsewhere", claim.join(first)).unwrap();
        let (name, _) = dumps.create("web-dumps-", NOW.parse().unwrap()).unwrap();
        assert_ne!(name, first);
        assert!(!dir.path().join("elsewhere").exists());
        fs::write(dir.path().join("elsewhere"), "kept").unwrap();
        dumps.remove_others(&name, "web-dumps-").unwrap();
        assert!(!claim.join(first).exists() && dir.path().join("elsewhere").exists());
    }
}
