//! A lock for each object, for writers that take long.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Key;

/// The keys that are locked now.
#[derive(Debug, Default)]
pub(super) struct KeyLocks {
    locked: Mutex<BTreeSet<Key>>,
    released: Condvar,
}

/// The lock of one key, until this is dropped.
#[derive(Debug)]
pub(super) struct KeyGuard<'l> {
    locks: &'l KeyLocks,
    key: &'l Key,
}

impl KeyLocks {
    fn locked(&self) -> MutexGuard<'_, BTreeSet<Key>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a key, as soon as it is free. Blocks.
    pub(super) fn lock<'l>(&'l self, key: &'l Key) -> KeyGuard<'l> {
        let locked = self.released.wait_while(self.locked(), |locked| locked.contains(key));
        locked.unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        KeyGuard { locks: self, key }
    }
}

impl Drop for KeyGuard<'_> {
    fn drop(&mut self) {
        self.locks.locked().remove(self.key);
        self.locks.released.notify_all();
    }
}
