//! Objects with one history: every write has a revision, and a write that was acknowledged survives `kill -9`.
//!
//! What is on disk (redb) is the objects and the last revision. Memory has them too, compressed, beside a bounded past of
//! events; reads and watches are served from memory, so that they go on when the disk is full. A past that is gone,
//! also by a restart, is [`Expired`]: readers start over, as with a Kubernetes API server.

mod batch;
mod cursor;
mod disk;
mod key_locks;
mod limits;
mod object;
mod past;
mod reserve;
mod unreadable;
mod write;

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde_json::Value;
use tokio::sync::watch;

use batch::Batches;
pub use cursor::{Cached, Changes, WatchCursor};
pub use disk::DiskError;
use disk::{Disk, Opened};
use key_locks::KeyLocks;
pub use limits::{Excess, Limits};
use object::Shared;
pub use object::{Key, Object};
use past::Past;
pub use past::{Event, Expired};
pub use reserve::Space;
pub use write::{Change, UpdateError, WriteError};

/// Objects of one moment.
#[derive(Debug)]
pub struct Listing {
    /// The moment.
    pub revision: u64,
    /// In order of namespace and name.
    pub objects: Vec<Arc<Object>>,
}

#[derive(Debug)]
struct Present {
    revision: u64,
    objects: BTreeSet<ByKey>,
    past: Past,
}

/// An object in the order of its key.
#[derive(Debug)]
struct ByKey(Arc<Object>);

impl Borrow<Key> for ByKey {
    fn borrow(&self) -> &Key {
        &self.0.key
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

/// Completes what the server itself writes before it is stored.
pub trait Recorder: fmt::Debug + Send + Sync {
    /// Completes the new state of an object, which was another `before`.
    fn record(&self, key: &Key, before: Option<&Value>, after: &mut Value);
}

/// The store.
#[derive(Debug)]
pub struct Store {
    recorder: Option<Arc<dyn Recorder>>,
    present: RwLock<Present>,
    shared: Arc<Shared>,
    unreadable: BTreeSet<Key>,
    key_locks: KeyLocks,
    batches: Batches,
    disk: Mutex<Disk>,
    revisions: watch::Sender<u64>,
}

impl Store {
    /// Opens or makes the store in a file.
    ///
    /// # Errors
    /// When it cannot be read, or another process has it open.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        Ok(Self::over(Disk::open(path)?))
    }

    /// The same store, with a recorder of managed fields for the server's own writes.
    #[must_use]
    pub fn recorded_by(self, recorder: Arc<dyn Recorder>) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// For tests: one that has lost these objects.
    #[cfg(test)]
    pub(crate) fn with_unreadable(path: &Path, keys: &[Key]) -> Self {
        for key in keys {
            unreadable::put(&unreadable::directory(path), key, 1, b"{").unwrap();
        }
        Self::open(path).unwrap()
    }

    #[expect(clippy::mutable_key_type, reason = "the key of an object does not change")]
    fn over(Opened { disk, revision, objects, shared, unreadable }: Opened) -> Self {
        let objects = objects.into_iter().map(|object| ByKey(Arc::new(object))).collect();
        let present = Present { revision, objects, past: Past::since(revision) };
        Self {
            recorder: None,
            present: RwLock::new(present),
            shared,
            unreadable,
            key_locks: KeyLocks::default(),
            batches: Batches::default(),
            disk: Mutex::new(disk),
            revisions: watch::Sender::new(revision),
        }
    }

    fn present(&self) -> std::sync::RwLockReadGuard<'_, Present> {
        self.present.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last write.
    pub fn revision(&self) -> u64 {
        self.present().revision
    }

    /// Watches the last revision.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.revisions.subscribe()
    }

    /// One object.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.present().objects.get(key).map(|object| Arc::clone(&object.0))
    }

    /// Whether an object is unreadable, and therefore quarantined although no client deleted it.
    pub fn is_unreadable(&self, key: &Key) -> bool {
        self.unreadable.contains(key) && self.get(key).is_none()
    }

    /// All such objects.
    pub fn unreadable(&self) -> impl Iterator<Item = &Key> {
        self.unreadable.iter().filter(|key| self.get(key).is_none())
    }

    /// All objects of a resource, in one namespace or in all.
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> Listing {
        let present = self.present();
        let objects = present.of(resource, namespace).cloned().collect();
        Listing { revision: present.revision, objects }
    }

    /// The same as it was after an earlier write.
    ///
    /// # Errors
    /// When that is too long ago, or has not been yet.
    pub fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Listing, Expired> {
        let present = self.present();
        // What was written since, and how it was before: the first event of a key knows.
        let mut since: BTreeMap<&Key, Option<&Arc<Object>>> = BTreeMap::new();
        let events = present.past.after(revision, present.revision)?;
        for event in events.filter(|event| event.key.is_of(resource, namespace)) {
            since.entry(&event.key).or_insert(event.before.as_ref());
        }
        let unchanged = present.of(resource, namespace).filter(|object| !since.contains_key(&object.key));
        let mut objects: Vec<Arc<Object>> = unchanged.cloned().collect();
        if !since.is_empty() {
            objects.extend(since.into_values().flatten().cloned());
            // Two runs that are in order already.
            objects.sort_by(|a, b| a.key.cmp(&b.key));
        }
        Ok(Listing { revision, objects })
    }

    /// What was written to a resource after a revision, oldest first, and how far that reaches.
    ///
    /// # Errors
    /// When that is too long ago, or has not been yet.
    pub fn events(
        &self,
        resource: &str,
        namespace: Option<&str>,
        after: u64,
    ) -> Result<(u64, Vec<Arc<Event>>), Expired> {
        let present = self.present();
        let events = present.past.after(after, present.revision)?;
        let events = events.filter(|event| event.key.is_of(resource, namespace)).cloned().collect();
        Ok((present.revision, events))
    }

    /// The same of all resources.
    ///
    /// # Errors
    /// When that is too long ago, or has not been yet.
    pub fn events_of_all(&self, after: u64) -> Result<(u64, Vec<Arc<Event>>), Expired> {
        let present = self.present();
        let events = present.past.after(after, present.revision)?.cloned().collect();
        Ok((present.revision, events))
    }

    /// How many objects there are of each resource.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for ByKey(object) in &self.present().objects {
            let key = &object.key;
            match counts.get_mut(&key.resource) {
                Some(count) => *count += 1,
                None => {
                    counts.insert(key.resource.clone(), 1);
                }
            }
        }
        counts
    }

    /// Whether a namespace has objects of a resource.
    pub fn has_any(&self, resource: &str, namespace: &str) -> bool {
        self.present().of(resource, Some(namespace)).next().is_some()
    }
}

impl Present {
    fn of<'a>(
        &'a self,
        resource: &'a str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        let first = Key::new(resource, namespace.unwrap_or_default(), "");
        let range = self.objects.range::<Key, _>((Bound::Included(first), Bound::Unbounded));
        range.map(|object| &object.0).take_while(move |object| object.key.is_of(resource, namespace))
    }
}

#[cfg(test)]
mod tests;
