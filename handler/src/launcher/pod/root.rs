//! What a container of a Pod sees of file systems.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

/// The root directory of a container.
pub(super) struct Root(OwnedFd);

impl Root {
    /// That of a process.
    ///
    /// # Errors
    /// When it has ended.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        Self::at(Path::new(&format!("/proc/{pid}/root")))
    }

    pub(super) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// What is at a directory in it, such as a file system that is mounted there.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) fn at_directory(&self, path: &Path) -> io::Result<Self> {
        Ok(Self(self.open(path, OFlags::PATH | OFlags::DIRECTORY, ResolveFlags::empty())?))
    }

    /// Opens what a path leads to, whose links cannot leave the root, nor lead where `rules` forbid it. Never blocks on a fifo.
    ///
    /// # Errors
    /// When it is not there, or not permitted.
    pub(super) fn open(&self, path: &Path, flags: OFlags, rules: ResolveFlags) -> io::Result<OwnedFd> {
        let rules = rules | ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        // Without O_NONBLOCK, opening a fifo would wait for its other end.
        let flags =
            if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NONBLOCK | OFlags::NOCTTY };
        Ok(openat2(&self.0, path, flags | OFlags::CLOEXEC, Mode::empty(), rules)?)
    }
}
