//! Writes: one at a time, each decided on what is there.

use std::sync::{Arc, MutexGuard, PoisonError};

use serde_json::Value;
use thiserror::Error;

use super::disk::{Attempt, Disk, DiskError, Trouble};
use super::reserve::Space;
use super::{Event, Key, Limits, Object, Store};

/// How often an update is decided anew when controllers write to the same object in between.
pub(super) const MOST_TRIES: usize = 16;

/// What a writer decides.
#[derive(Debug)]
pub enum Change {
    /// The object becomes this; what is new in it is recorded by the store's [`Recorder`](super::Recorder).
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

/// Why an update was not done.
#[derive(Debug, Error)]
pub enum UpdateError<R> {
    /// As any write.
    #[error(transparent)]
    Write(#[from] WriteError<R>),
    /// Controllers wrote to the object again and again.
    #[error("the object has been modified")]
    Contended,
}

impl<R> From<DiskError> for UpdateError<R> {
    fn from(error: DiskError) -> Self {
        Self::Write(error.into())
    }
}

impl Store {
    /// Writes one object: `decide` sees it as it is and says what becomes of it, while nobody else writes. It is on
    /// disk when this returns. On a full disk it takes the space that is reserved for deletions and for the server itself.
    /// Blocks.
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
        self.settle(&mut disk, Space::Reserved)?;
        let before = self.get(key);
        let change = decide(before.as_ref(), self).map_err(WriteError::Refused)?;
        match self.draft(key, before.as_ref(), change)? {
            Some(draft) => Ok(Some(self.commit(&mut disk, before, draft, Space::Reserved)?)),
            None => Ok(before),
        }
    }

    /// The same for what clients write and what takes long to decide: others write meanwhile, and if one of them writes to
    /// this object, it is decided anew. A full disk refuses it unless it may use the reserve. Updates of one object wait for each other. `confirm` looks at other objects, while nobody writes.
    /// Blocks.
    ///
    /// # Errors
    /// As [`write`](Self::write), and when controllers write to the object again and again.
    pub fn update<R>(
        &self,
        key: &Key,
        space: Space,
        mut decide: impl FnMut(Option<&Arc<Object>>) -> Result<Change, R>,
        confirm: impl Fn(&Self) -> Result<(), R>,
    ) -> Result<Option<Arc<Object>>, UpdateError<R>> {
        let refused = |why| UpdateError::Write(WriteError::Refused(why));
        let _guard = self.key_locks.lock(key);
        for _ in 0..MOST_TRIES {
            let before = self.get(key);
            let change = decide(before.as_ref()).map_err(refused)?;
            let Some(draft) = self.draft(key, before.as_ref(), change)? else { return Ok(before) };
            let mut disk = self.lock();
            self.settle(&mut disk, space)?;
            let now = self.get(key);
            if now.as_ref().map(|now| now.revision) == before.as_ref().map(|before| before.revision) {
                confirm(self).map_err(refused)?;
                return Ok(Some(self.commit(&mut disk, before, draft, space)?));
            }
        }
        Err(UpdateError::Contended)
    }

    /// Whether it can be written to. After a write that failed, that is tried, though not at every call. Blocks.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), Arc<DiskError>> {
        let mut disk = self.lock();
        let checked = match disk.trouble() {
            None => return Ok(()),
            Some(Trouble::Known(error)) => return Err(error),
            Some(Trouble::Ask) => self.settle(&mut disk, Space::Free).and_then(|()| disk.probe()),
        };
        checked.map_err(|error| disk.remember(error))
    }

    /// Makes sure that what is on disk and what is in memory are the same, after a write that failed.
    fn settle(&self, disk: &mut Disk, space: Space) -> Result<(), DiskError> {
        if let Some(landed) = disk.settle(space)? {
            self.publish(self.get(&landed.object.key), &landed);
        }
        Ok(())
    }

    fn commit(
        &self,
        disk: &mut Disk,
        before: Option<Arc<Object>>,
        Draft { key, value, bytes, stays }: Draft,
        space: Space,
    ) -> Result<Arc<Object>, DiskError> {
        let object = Arc::new(Object::sized(key, disk.next_revision(), value, bytes));
        let attempt = Attempt { object, stays };
        disk.write(&attempt, space)?;
        self.publish(before, &attempt);
        Ok(attempt.object)
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
        self.revisions.send_replace(object.revision);
    }
}

/// A write that is ready but for its revision.
#[derive(Debug)]
struct Draft {
    key: Key,
    value: Value,
    bytes: usize,
    stays: bool,
}

impl Store {
    /// What a decision makes of an object; None where that is nothing new.
    fn draft(
        &self,
        key: &Key,
        before: Option<&Arc<Object>>,
        change: Change,
    ) -> Result<Option<Draft>, DiskError> {
        let is_same = |value: &Value| before.is_some_and(|before| before.is_same(value));
        let (value, stays) = match change {
            Change::Nothing => return Ok(None),
            Change::Put(value) | Change::Signed(value) if is_same(&value) => return Ok(None),
            Change::Put(mut value) => {
                check_limits(key, &value)?;
                if let Some(recorder) = &self.recorder {
                    recorder.record(key, before.map(|before| &before.value), &mut value);
                }
                (value, true)
            }
            Change::Signed(value) => (value, true),
            // It goes, however large it is.
            Change::Remove(value) => {
                let bytes = before.map_or(0, |before| before.size);
                return Ok(Some(Draft { key: key.clone(), value, bytes, stays: false }));
            }
        };
        let bytes = check_limits(key, &value)?;
        Ok(Some(Draft { key: key.clone(), value, bytes, stays }))
    }
}

fn check_limits(key: &Key, value: &Value) -> Result<usize, DiskError> {
    Limits::STORED.check(value).map_err(|excess| DiskError::Excess { key: key.clone(), excess })
}
