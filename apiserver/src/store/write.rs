//! Writes: one at a time, each decided on what is there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use thiserror::Error;

use super::batch::{Entry, Outcome, Pending, Slot};
use super::disk::{Attempt, Disk, DiskError, Failure};
use super::object::Shared;
use super::reserve::Space;
use super::{ByKey, Event, Key, Limits, Object, Store};

/// How often an update is decided anew when controllers write to the same object in between.
pub(super) const MOST_TRIES: usize = 16;

/// What a writer decides.
#[derive(Debug)]
pub enum Change {
    /// The object becomes this; what is new in it is recorded by the store's [`Recorder`](super::Recorder).
    Put(Value),
    /// The object becomes this value, which has the managed fields already.
    Recorded(Value),
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
    /// Writes one object: `decide` gets it as it is and returns the change, under the write lock. It is on disk when this
    /// returns. On a full disk it takes the space that is reserved for deletions and for the server itself. Blocks.
    ///
    /// # Errors
    /// What `decide` refuses with; nothing has changed then. Or the disk: whether it was written is then unknown until the
    /// next write, which looks first.
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
            Some(draft) => Ok(Some(self.commit(&mut disk, draft, Space::Reserved)?)),
            None => Ok(before),
        }
    }

    /// The same for what clients write and what takes long to decide: others write meanwhile, and if one of them writes to
    /// this object, it is decided anew. Those that wait for the disk are committed together. A full disk refuses it unless
    /// it may use the reserve. Updates of one object wait for each other. `confirm` looks at other objects, under the
    /// write lock. Blocks.
    ///
    /// # Errors
    /// As [`write`](Self::write), and when controllers write to the object again and again.
    pub fn update<R: Send + 'static>(
        &self,
        key: &Key,
        space: Space,
        mut decide: impl FnMut(Option<&Arc<Object>>) -> Result<Change, R>,
        confirm: impl Fn(&Self) -> Result<(), R> + Send + Sync + 'static,
    ) -> Result<Option<Arc<Object>>, UpdateError<R>> {
        let refused = |why| UpdateError::Write(WriteError::Refused(why));
        let _guard = self.key_locks.lock(key);
        let confirm = Arc::new(confirm);
        let rejection = Arc::new(Mutex::new(None));
        for _ in 0..MOST_TRIES {
            let before = self.get(key);
            let change = decide(before.as_ref()).map_err(refused)?;
            let Some(draft) = self.draft(key, before.as_ref(), change)? else { return Ok(before) };
            let before = before.map(|before| before.revision);
            let (confirm, why) = (Arc::clone(&confirm), Arc::clone(&rejection));
            let confirm = Box::new(move |store: &Self| {
                let confirmed = confirm(store);
                let is_confirmed = confirmed.is_ok();
                *why.lock().unwrap_or_else(PoisonError::into_inner) = confirmed.err();
                is_confirmed
            });
            match self.write_together(Pending { draft, before, space, confirm }) {
                Outcome::Stored(object) => return Ok(Some(object)),
                Outcome::Failed(error) => return Err(error.into()),
                Outcome::Stale => {}
                Outcome::Refused => {
                    let why = rejection.lock().unwrap_or_else(PoisonError::into_inner).take();
                    return Err(why.map_or(UpdateError::Contended, refused));
                }
            }
        }
        Err(UpdateError::Contended)
    }

    /// Writes what waits, in as few commits as can be.
    pub(super) fn write_batch(&self, batch: Vec<Entry>) {
        let mut disk = self.lock();
        let mut batch = VecDeque::from(batch);
        while let Some(Entry { pending: Pending { space, .. }, outcome }) = batch.front() {
            let space = *space;
            if let Err(error) = self.settle(&mut disk, space) {
                outcome.set(Outcome::Failed(error));
                batch.pop_front();
                continue;
            }
            let (attempts, outcomes) = self.take_commit(&disk, &mut batch, space);
            match disk.write(&attempts, space) {
                Ok(()) => self.acknowledge(&attempts, &outcomes),
                Err(error) => self.write_each(&mut disk, (attempts, outcomes), space, error),
            }
        }
    }

    /// Takes what is committed next: writes of one kind of space, up to one that removes an object, which another may
    /// need.
    fn take_commit(
        &self,
        disk: &Disk,
        batch: &mut VecDeque<Entry>,
        space: Space,
    ) -> (Vec<Attempt>, Vec<Slot>) {
        let (mut attempts, mut outcomes): (Vec<Attempt>, Vec<Slot>) = Default::default();
        let mut revision = disk.next_revision();
        let removes = |attempts: &[Attempt]| attempts.last().is_some_and(|attempt| !attempt.stays);
        let is_next =
            |batch: &VecDeque<Entry>| batch.front().is_some_and(|entry| entry.pending.space == space);
        while !removes(&attempts)
            && is_next(batch)
            && let Some(Entry { pending, outcome }) = batch.pop_front()
        {
            let Pending { draft, before, confirm, .. } = pending;
            let is_there = attempts.iter().any(|attempt| attempt.object.key == draft.key);
            if is_there || self.get(&draft.key).map(|now| now.revision) != before {
                outcome.set(Outcome::Stale);
            } else if confirm(self) {
                attempts.push(draft.attempt(revision, &self.shared));
                outcomes.push(outcome);
                revision += 1;
            } else {
                outcome.set(Outcome::Refused);
            }
        }
        (attempts, outcomes)
    }

    /// After a commit that failed: each by itself, with its own outcome.
    fn write_each(
        &self,
        disk: &mut Disk,
        (attempts, outcomes): (Vec<Attempt>, Vec<Slot>),
        space: Space,
        error: DiskError,
    ) {
        if let [outcome] = outcomes.as_slice() {
            return outcome.set(Outcome::Failed(error));
        }
        for (failed, outcome) in attempts.iter().zip(&outcomes) {
            let written = self.settle(disk, space).and_then(|()| {
                // The failed commit may be on disk all the same.
                if let Some(landed) = self.get(&failed.object.key)
                    && landed.revision == failed.object.revision
                {
                    return Ok(landed);
                }
                let attempt = Draft::again(failed).attempt(disk.next_revision(), &self.shared);
                disk.write(std::slice::from_ref(&attempt), space)?;
                self.publish(std::slice::from_ref(&attempt));
                Ok(attempt.object)
            });
            outcome.set(written.map_or_else(Outcome::Failed, Outcome::Stored));
        }
    }

    fn acknowledge(&self, attempts: &[Attempt], outcomes: &[Slot]) {
        self.publish(attempts);
        for (attempt, outcome) in attempts.iter().zip(outcomes) {
            outcome.set(Outcome::Stored(Arc::clone(&attempt.object)));
        }
    }

    /// Whether it can be written to. After a write that failed, that is tried, though not at every call. Blocks.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), Arc<DiskError>> {
        let mut disk = self.lock();
        let checked = match disk.failure() {
            None => return Ok(()),
            Some(Failure::Known(error)) => return Err(error),
            Some(Failure::Ask) => self.settle(&mut disk, Space::Free).and_then(|()| disk.probe()),
        };
        checked.map_err(|error| disk.remember(error))
    }

    /// Makes sure that what is on disk and what is in memory are the same, after a write that failed.
    fn settle(&self, disk: &mut Disk, space: Space) -> Result<(), DiskError> {
        let landed = disk.settle(space)?;
        self.publish(&landed);
        Ok(())
    }

    fn commit(&self, disk: &mut Disk, draft: Draft, space: Space) -> Result<Arc<Object>, DiskError> {
        let attempt = draft.attempt(disk.next_revision(), &self.shared);
        let attempts = std::slice::from_ref(&attempt);
        disk.write(attempts, space)?;
        self.publish(attempts);
        Ok(attempt.object)
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows writes of one commit, all at once.
    fn publish(&self, attempts: &[Attempt]) {
        let Some(last) = attempts.last() else { return };
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        present.revision = last.object.revision;
        for Attempt { object, stays } in attempts {
            let before = match stays {
                true => present.objects.replace(ByKey(Arc::clone(object))),
                false => present.objects.take(&object.key),
            };
            let before = before.map(|before| before.0);
            let event = Event { key: object.key.clone(), before, object: Arc::clone(object), stays: *stays };
            present.past.push(Arc::new(event));
        }
        drop(present);
        self.revisions.send_replace(last.object.revision);
    }
}

/// A write that is ready but for its revision.
#[derive(Debug)]
pub(super) struct Draft {
    key: Key,
    value: Value,
    bytes: usize,
    stays: bool,
}

impl Draft {
    fn attempt(self, revision: u64, shared: &Arc<Shared>) -> Attempt {
        let Self { key, value, bytes, stays } = self;
        Attempt { object: Arc::new(Object::sized(key, revision, value, bytes, shared)), stays }
    }

    /// What an attempt that failed was made of.
    fn again(Attempt { object, stays }: &Attempt) -> Self {
        let value = object.to_value();
        Self { key: object.key.clone(), value, bytes: object.size, stays: *stays }
    }
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
            Change::Put(value) | Change::Recorded(value) if is_same(&value) => return Ok(None),
            Change::Put(mut value) => {
                check_limits(key, &value)?;
                if let Some(recorder) = &self.recorder {
                    recorder.record(key, before.map(|before| before.value()).as_deref(), &mut value);
                }
                (value, true)
            }
            Change::Recorded(value) => (value, true),
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
