//! Watches the manifests directory.
//!
//! Level-triggered: every event leads to a scan of the whole directory, and only files whose identity changed are read.
//! Two changes take effect with a delay: a file that is being written keeps its last content until it is closed, and a
//! file that vanished is kept for a moment, since an editor that saves by rename removes it briefly.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{ReadFlags, WatchFlags};
use tokio::time::Instant;

use super::Problem;
use super::desired::FileRead;
use super::document;
use crate::inotify::{Event, Inotify};

/// How long a file has to be gone before it counts as removed.
const SETTLE: Duration = Duration::from_secs(1);
/// The largest manifest. (etcd rejects objects of 1.5 MiB.)
const LARGEST: u64 = 4 << 20;

/// Watches one directory.
#[derive(Debug)]
pub struct Watcher {
    directory: PathBuf,
    inotify: Inotify,
    /// Files that were written to and not closed yet.
    open: BTreeSet<String>,
    known: BTreeMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    identity: Identity,
    read: FileRead,
    missing_since: Option<Instant>,
}

/// The metadata of a file, which changes whenever its content may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Watcher {
    /// Starts watching.
    ///
    /// # Errors
    /// When the directory does not exist or cannot be watched.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let inotify = Inotify::new()?;
        inotify.watch(
            directory,
            WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::ATTRIB
                | WatchFlags::CLOSE_WRITE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::DELETE
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF,
        )?;
        Ok(Self { directory: directory.to_owned(), inotify, open: BTreeSet::new(), known: BTreeMap::new() })
    }

    /// Scans the directory and returns the content of its files.
    ///
    /// # Errors
    /// When the directory cannot be listed; what was known is kept.
    pub fn scan(&mut self) -> io::Result<BTreeMap<String, FileRead>> {
        let mut present = BTreeSet::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if is_manifest(&name) {
                self.look_at(&name);
                present.insert(name);
            }
        }
        let now = Instant::now();
        self.known.retain(|name, known| {
            if present.contains(name) {
                known.missing_since = None;
            } else {
                let since = *known.missing_since.get_or_insert(now);
                return now < since + SETTLE;
            }
            true
        });
        self.open.retain(|name| present.contains(name));
        Ok(self.known.iter().map(|(name, known)| (name.clone(), known.read.clone())).collect())
    }

    fn look_at(&mut self, name: &str) {
        let path = self.directory.join(name);
        let metadata = match fs::metadata(&path) {
            // Removed after the listing: the next event reports it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            other => other,
        };
        let identity = metadata.as_ref().ok().map(Identity::of);
        let known = self.known.get(name);
        if self.open.contains(name) || (identity.is_some() && known.map(|known| known.identity) == identity) {
            return;
        }
        let read = match metadata.and_then(|metadata| read(&path, &metadata)) {
            Ok(text) => FileRead::Documents(document::read(&text)),
            Err(error) => FileRead::Unreadable(Problem::whole(format!("cannot be read: {error}"))),
        };
        let identity =
            identity.unwrap_or(Identity { device: 0, inode: 0, size: 0, modified: (0, 0), changed: (0, 0) });
        self.known.insert(name.to_owned(), Known { identity, read, missing_since: None });
    }

    /// Waits until [`scan`](Self::scan) may find a change.
    ///
    /// # Errors
    /// When the directory is gone or can no longer be watched. The manifests do not count as removed then.
    pub async fn changed(&mut self) -> io::Result<()> {
        let settled =
            self.known.values().filter_map(|known| known.missing_since).min().map(|since| since + SETTLE);
        loop {
            let events = match settled {
                None => self.inotify.events().await?,
                Some(settled) => match tokio::time::timeout_at(settled, self.inotify.events()).await {
                    Ok(events) => events?,
                    Err(_) => return Ok(()),
                },
            };
            let mut look = false;
            for event in events {
                look |= self.note(&event)?;
            }
            if look {
                return Ok(());
            }
        }
    }

    /// Records an event. Returns whether the directory has to be scanned.
    fn note(&mut self, event: &Event) -> io::Result<bool> {
        let flags = event.flags;
        if flags.intersects(
            ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT | ReadFlags::IGNORED,
        ) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the directory was removed, renamed or unmounted",
            ));
        }
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            // Closings may have been among the events that were lost.
            self.open.clear();
            return Ok(true);
        }
        if flags.contains(ReadFlags::MODIFY) {
            self.open.insert(event.name.clone());
            return Ok(false);
        }
        if flags.contains(ReadFlags::CREATE) && is_empty_file(&self.directory.join(&event.name)) {
            self.open.insert(event.name.clone());
            return Ok(false);
        }
        if flags.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MOVED_TO) {
            self.open.remove(&event.name);
        }
        Ok(true)
    }
}

fn is_empty_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

fn read(path: &Path, metadata: &fs::Metadata) -> io::Result<String> {
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > LARGEST {
        return Err(io::Error::other(format!("it is larger than {} MiB", LARGEST >> 20)));
    }
    fs::read_to_string(path)
}

/// Whether a file of this name is meant as a manifest. Editors' own files begin with a dot or `#`, or end in `~`.
fn is_manifest(name: &str) -> bool {
    let visible = !name.starts_with(['.', '#']);
    visible && [".yaml", ".yml", ".json"].iter().any(|extension| name.ends_with(extension))
}

#[cfg(test)]
mod tests;
