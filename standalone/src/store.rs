//! Objects with one history: every write has a revision, and a write that was acknowledged survives `kill -9`.
//!
//! What is on disk (redb) is the objects and the last revision. Memory has them too, beside a bounded past of
//! events; reads and watches are served from memory, so that they go on when the disk is full. A past that is gone,
//! also by a restart, is [`Expired`]: readers start over, as with a Kubernetes API server.

mod disk;
mod follow;
mod object;
mod past;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;

use crate::fields::by_the_server;
pub use disk::DiskError;
use disk::{Attempt, Disk};
pub use follow::{Follower, Kept, News};
pub use object::{Key, Object};
use past::Past;
pub use past::{Event, Expired};

/// What a writer decides.
#[derive(Debug)]
pub enum Change {
    /// The object becomes this; what is new in it is the server's, in the account of [fields](crate::fields).
    Put(Value),
    /// The object becomes this, and says itself whose its fields are.
    Signed(Value),
    /// The object goes; watchers see this last state of it.
    Remove(Value),
    /// Nothing: it is already so, or it was only asked what would be.
    Nothing,
}

/// Why a write was not done.
#[derive(Debug, Error)]
pub enum WriteError<R> {
    /// The writer found a reason in what is there.
    #[error("refused")]
    Refused(R),
    /// The disk.
    #[error("the store cannot be written")]
    Disk(#[from] DiskError),
}

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
    objects: BTreeMap<Key, Arc<Object>>,
    past: Past,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    present: RwLock<Present>,
    disk: Mutex<Disk>,
    news: watch::Sender<u64>,
}

impl Store {
    /// Opens or makes the store in a file.
    ///
    /// # Errors
    /// When it cannot be read, or another process has it open.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        Ok(Self::over(Disk::open(path)?))
    }

    fn over((disk, revision, objects): (Disk, u64, Vec<Object>)) -> Self {
        let objects = objects.into_iter().map(|object| (object.key.clone(), Arc::new(object))).collect();
        let present = Present { revision, objects, past: Past::since(revision) };
        Self { present: RwLock::new(present), disk: Mutex::new(disk), news: watch::Sender::new(revision) }
    }

    fn present(&self) -> std::sync::RwLockReadGuard<'_, Present> {
        self.present.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last write.
    pub fn revision(&self) -> u64 {
        self.present().revision
    }

    /// Tells the last revision, and wakes with every new one.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// One object.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.present().objects.get(key).cloned()
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
        for key in self.present().objects.keys() {
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

    /// Writes one object: `decide` sees it as it is and says what becomes of it, while nobody else writes. It is on
    /// disk when this returns. Blocks.
    ///
    /// # Errors
    /// What `decide` refuses with; nothing has changed then. Or the disk: then nobody knows until the next write, which
    /// looks first.
    pub fn write<R>(
        &self,
        key: &Key,
        decide: impl FnOnce(Option<&Arc<Object>>, &Self) -> Result<Change, R>,
    ) -> Result<Option<Arc<Object>>, WriteError<R>> {
        let mut disk = self.lock();
        if let Some(landed) = disk.settle()? {
            self.publish(self.get(&landed.object.key), &landed);
        }
        let before = self.get(key);
        let change = decide(before.as_ref(), self).map_err(WriteError::Refused)?;
        let is_same = |value: &Value| before.as_ref().is_some_and(|before| before.is_same(value));
        let (value, stays) = match change {
            Change::Nothing => return Ok(before),
            Change::Put(value) | Change::Signed(value) if is_same(&value) => return Ok(before),
            Change::Put(mut value) => {
                by_the_server(key, before.as_ref().map(|before| &before.value), &mut value);
                (value, true)
            }
            Change::Signed(value) => (value, true),
            Change::Remove(value) => (value, false),
        };
        let object = Arc::new(Object::new(key.clone(), disk.next_revision(), value));
        let attempt = Attempt { object, stays };
        disk.write(&attempt)?;
        self.publish(before, &attempt);
        Ok(Some(attempt.object))
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, before: Option<Arc<Object>>, Attempt { object, stays }: &Attempt) {
        let stays = *stays;
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        present.revision = object.revision;
        if stays {
            present.objects.insert(object.key.clone(), Arc::clone(object));
        } else {
            present.objects.remove(&object.key);
        }
        let event = Event { key: object.key.clone(), before, object: Arc::clone(object), stays };
        present.past.push(Arc::new(event));
        drop(present);
        self.news.send_replace(object.revision);
    }
}

impl Present {
    fn of<'a>(
        &'a self,
        resource: &'a str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        let first = Key::new(resource, namespace.unwrap_or_default(), "");
        let range = self.objects.range((Bound::Included(first), Bound::Unbounded));
        range.map(|(_, object)| object).take_while(move |object| object.key.is_of(resource, namespace))
    }
}

#[cfg(test)]
mod tests;
