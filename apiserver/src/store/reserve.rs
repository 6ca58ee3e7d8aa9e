//! Space that is kept for the writes that a full disk must not stop: deletions, which free space, and what the server
//! itself writes, such as a status that reports a full disk.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use tracing::{debug, warn};

/// Enough for many small writes, and for one of the largest object.
const SIZE: u64 = 4 << 20;
/// How soon an incomplete reserve is filled up again.
const RETRY: Duration = Duration::from_secs(10);

/// What a write may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// What is free.
    Free,
    /// The reserve too.
    Reserved,
}

/// A file beside the store whose blocks are given back to the file system for such a write, and taken again afterwards.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    /// Bytes.
    held: u64,
    tried: Instant,
}

impl Reserve {
    /// The reserve of a store; as much of it as there is space for.
    pub(super) fn of(store: &Path) -> Self {
        let mut reserve = Self { path: store.with_extension("reserve"), held: 0, tried: Instant::now() };
        reserve.take();
        reserve
    }

    /// Gives the space back to the file system. Whether there was any.
    pub(super) fn release(&mut self) -> bool {
        if self.held == 0 {
            return false;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            warn!(path = %self.path.display(), %error, "the reserve for a full disk cannot be used");
            return false;
        }
        self.held = 0;
        true
    }

    /// Takes as much of the space as there is.
    pub(super) fn take(&mut self) {
        self.tried = Instant::now();
        for size in [SIZE, SIZE / 4, SIZE / 16] {
            if size <= self.held {
                return;
            }
            match allocate(&self.path, size) {
                Ok(()) => {
                    self.held = size;
                    return;
                }
                Err(error) => debug!(path = %self.path.display(), size, %error, "no reserve for a full disk"),
            }
        }
    }

    /// Completes it, if it is time to try.
    pub(super) fn refill(&mut self) {
        if self.held < SIZE && self.tried.elapsed() >= RETRY {
            self.take();
        }
    }
}

fn allocate(path: &Path, size: u64) -> io::Result<()> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, size)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_space_is_given_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut reserve = Reserve::of(&dir.path().join("store.redb"));
        let size = || fs::metadata(dir.path().join("store.reserve")).map(|file| file.len()).ok();
        assert_eq!((reserve.held, size()), (SIZE, Some(SIZE)));
        assert!(reserve.release());
        assert_eq!(size(), None);
        assert!(!reserve.release(), "there is none");
        reserve.refill();
        assert_eq!(size(), None, "not at every write");
        reserve.take();
        assert_eq!(size(), Some(SIZE));
    }

    #[test]
    fn without_space_there_is_no_reserve() {
        let mut reserve = Reserve::of(Path::new("/proc/store.redb"));
        assert!(!reserve.release());
    }
}
