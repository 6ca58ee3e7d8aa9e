//! The desired state of a node, updated by the changes of its VMIs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;
use vireo_client::informer::Cached;

use super::instance::Instance;
use crate::manifests::Key;
use crate::manifests::desired::{DesiredVmis, Entry, Update};
use crate::reconcile::grace;

/// How much was received and validated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes of VMIs that the API server sent.
    pub changes: u64,
    /// VMIs that were parsed and validated.
    pub validations: u64,
}

/// The VMIs that are bound to a node.
#[derive(Debug)]
pub(super) struct Bound {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Names whose guests keep running without an entry: VMIs that the API server has and cannot serve, until it serves
    /// one of the name, and those that are on the node and not selected, until it is known that they are gone.
    held: BTreeSet<Key>,
    /// Validated once for each generation.
    entries: BTreeMap<Key, Validated>,
    /// VMIs that stay and whose guests are to be shut down: UID and grace period in seconds.
    stopped: BTreeMap<Key, (String, u64)>,
    /// VMIs that are being deleted.
    deleting: BTreeMap<Key, Deletion>,
    /// Names that changed since the last update.
    changed: BTreeSet<Key>,
    counts: Counts,
}

#[derive(Debug)]
struct Validated {
    uid: Uuid,
    generation: Option<i64>,
    entry: Entry,
}

#[derive(Debug, PartialEq, Eq)]
struct Deletion {
    uid: String,
    /// Seconds.
    grace: Option<u64>,
}

impl Validated {
    /// The desired state, with the shutdown of the guest if there is one.
    fn wanted(&self, stopped: Option<&(String, u64)>) -> Entry {
        let mut entry = self.entry.clone();
        if let Entry::Present { manifest, stop, .. } = &mut entry
            && let Some((_, seconds)) = stopped.filter(|(uid, _)| *uid == self.uid.to_string())
        {
            *stop = Some(grace(&manifest.vmi).min(*seconds));
        }
        entry
    }
}

impl Bound {
    pub(super) fn new(unreadable: Vec<Key>) -> Self {
        let held = unreadable.into_iter().collect();
        Self { state: Mutex::new(State { held, ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Applies a new or changed VMI. Returns whether the desired state changed.
    pub(super) fn apply(&self, vmi: &Cached<Instance>) -> bool {
        let mut state = self.state();
        state.counts.changes += 1;
        state.held.remove(&vmi.key);
        let differs = if vmi.is_deleting() { state.delete(vmi) } else { state.put(vmi) };
        if differs {
            state.changed.insert(vmi.key.clone());
        }
        differs
    }

    /// Keeps a guest as it is until its VMI is removed or appears.
    pub(super) fn hold(&self, key: &Key) {
        let mut state = self.state();
        if !state.entries.contains_key(key) && !state.deleting.contains_key(key) {
            state.held.insert(key.clone());
        }
    }

    /// Shuts the guest of a VMI down within this time, and at most its own grace period. Returns whether that is new.
    pub(super) fn stop(&self, key: &Key, uid: &str, seconds: u64) -> bool {
        let mut state = self.state();
        let stop = (uid.to_owned(), seconds);
        let is_new = state.stopped.get(key).is_none_or(|known| known.0 != uid || known.1 > seconds);
        if is_new {
            state.stopped.insert(key.clone(), stop);
            // A VMI that was not received yet is stopped when it is received.
            if state.entries.get(key).is_some_and(|entry| entry.uid.to_string() == uid) {
                state.changed.insert(key.clone());
            }
        }
        is_new
    }

    /// Removes a VMI that is gone, but not a later one of its name. Returns whether it existed.
    pub(super) fn remove(&self, key: &Key, uid: &str) -> bool {
        let mut state = self.state();
        let removed = state.remove(key, uid);
        if removed {
            state.changed.insert(key.clone());
        }
        removed
    }

    /// The complete desired state.
    pub(super) fn all(&self) -> Update {
        let mut state = self.state();
        state.changed.clear();
        let keys: BTreeSet<&Key> =
            state.entries.keys().chain(state.deleting.keys()).chain(&state.held).collect();
        Update { desired: state.desired(keys), only: None }
    }

    /// The changes since the last update.
    pub(super) fn changes(&self) -> Update {
        let mut state = self.state();
        let changed = std::mem::take(&mut state.changed);
        Update { desired: state.desired(&changed), only: Some(changed) }
    }

    /// The VMIs that are being deleted, with their UIDs.
    pub(super) fn deleting(&self) -> Vec<(Key, String)> {
        self.state().deleting.iter().map(|(key, deleting)| (key.clone(), deleting.uid.clone())).collect()
    }
}

impl State {
    fn desired<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) -> DesiredVmis {
        let mut desired = DesiredVmis::default();
        for key in keys {
            if let Some(validated) = self.entries.get(key) {
                desired.entries.insert(key.clone(), validated.wanted(self.stopped.get(key)));
            } else if let Some(deleting) = self.deleting.get(key) {
                desired.graces.extend(deleting.grace.map(|seconds| (key.clone(), seconds)));
            } else if self.held.contains(key) {
                // It is unknown whether it is desired: a running guest keeps running.
                desired.entries.insert(key.clone(), Entry::Held);
            }
        }
        desired
    }

    fn remove(&mut self, key: &Key, uid: &str) -> bool {
        let entry = self.entries.get(key).is_some_and(|entry| entry.uid.to_string() == uid);
        let deleting = self.deleting.get(key).is_some_and(|deleting| deleting.uid == uid);
        let held = self.held.remove(key);
        if self.stopped.get(key).is_some_and(|(of, _)| of == uid) {
            self.stopped.remove(key);
        }
        if entry {
            self.entries.remove(key);
        }
        if deleting {
            self.deleting.remove(key);
        }
        entry || deleting || held
    }

    fn delete(&mut self, vmi: &Cached<Instance>) -> bool {
        let deleting = Deletion { uid: vmi.uid.clone(), grace: vmi.grace() };
        if self.deleting.get(&vmi.key) == Some(&deleting) {
            return false;
        }
        self.entries.remove(&vmi.key);
        self.deleting.insert(vmi.key.clone(), deleting);
        true
    }

    fn put(&mut self, vmi: &Cached<Instance>) -> bool {
        let Ok(uid) = vmi.uid.parse::<Uuid>() else { return false };
        let generation = vmi.metadata.generation;
        let known = self.entries.get(&vmi.key);
        if known.is_some_and(|known| known.uid == uid && known.generation == generation) {
            return false;
        }
        self.counts.validations += 1;
        let entry = vmi.validate(uid);
        self.deleting.remove(&vmi.key);
        self.entries.insert(vmi.key.clone(), Validated { uid, generation, entry });
        true
    }
}
