//! Writes that are committed together: the first writer that finds no commit under way commits for all that wait.

use std::fmt;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::disk::DiskError;
use super::write::Draft;
use super::{Object, Space, Store};

/// What became of a write.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is on disk.
    Stored(Arc<Object>),
    /// Another client wrote to the object in between.
    Stale,
    /// It was not confirmed.
    Refused,
    /// The disk failed.
    Failed(DiskError),
}

/// A write that is decided and waits for the disk.
pub(super) struct Pending {
    pub(super) draft: Draft,
    /// The revision of the object that it was decided on.
    pub(super) before: Option<u64>,
    pub(super) space: Space,
    /// Whether it may still be done; asked under the write lock.
    pub(super) confirm: Box<dyn FnOnce(&Store) -> bool + Send>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.debug_struct("Pending").field("draft", &self.draft).finish_non_exhaustive()
    }
}

/// A pending write, and where its outcome goes.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) pending: Pending,
    pub(super) outcome: Slot,
}

/// The outcome of a write, once there is one.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot(Arc<Mutex<Option<Outcome>>>);

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<Outcome>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, outcome: Outcome) {
        *self.lock() = Some(outcome);
    }
}

/// The writes that wait.
#[derive(Debug, Default)]
pub(super) struct Batches {
    queue: Mutex<Queue>,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Entry>,
    is_writing: bool,
}

impl Batches {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Batches {
    /// How many writes wait for another one.
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }
}

/// A batch that is being written, until this is dropped.
struct Writing<'b> {
    batches: &'b Batches,
    outcomes: Vec<Slot>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // After a panic they are decided anew.
        for outcome in &self.outcomes {
            outcome.lock().get_or_insert(Outcome::Stale);
        }
        self.batches.lock().is_writing = false;
        self.batches.written.notify_all();
    }
}

impl Store {
    /// Has a write done with those that wait at the same time. Blocks.
    pub(super) fn write_together(&self, pending: Pending) -> Outcome {
        let outcome = Slot::default();
        let mut queue = self.batches.lock();
        queue.waiting.push(Entry { pending, outcome: outcome.clone() });
        loop {
            if let Some(outcome) = outcome.lock().take() {
                return outcome;
            }
            if queue.is_writing {
                queue = self.batches.written.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            queue.is_writing = true;
            let batch = mem::take(&mut queue.waiting);
            drop(queue);
            let outcomes = batch.iter().map(|entry| entry.outcome.clone()).collect();
            let writing = Writing { batches: &self.batches, outcomes };
            self.write_batch(batch);
            drop(writing);
            queue = self.batches.lock();
        }
    }
}
