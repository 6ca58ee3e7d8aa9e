//! What the API server wants of a node, kept by the changes of its VMIs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;
use vireo_client::informer::Cached;

use super::instance::Instance;
use crate::manifests::Key;
use crate::manifests::catalog::{Catalog, Entry, Update};
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
    /// Names whose guests go on without an entry: VMIs that the API server has and cannot serve, until it serves one of the
    /// name, and those that are on the node and not selected, until it is known that they are gone.
    held: BTreeSet<Key>,
    /// Validated once for each generation.
    entries: BTreeMap<Key, Validated>,
    /// Those whose guests are to end while they stay: UID, and seconds to shut down.
    stopped: BTreeMap<Key, (String, u64)>,
    /// Those that are being deleted.
    leaving: BTreeMap<Key, Leaving>,
    /// Names about which something else is known since the last update.
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
struct Leaving {
    uid: String,
    /// Seconds.
    grace: Option<u64>,
}

impl Validated {
    /// What is wanted of it, if its guest is to end, too.
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

    /// Applies a new or changed VMI; whether that concerns what is to run.
    pub(super) fn apply(&self, vmi: &Cached<Instance>) -> bool {
        let mut state = self.state();
        state.counts.changes += 1;
        state.held.remove(&vmi.key);
        let differs = if vmi.is_leaving() { state.leave(vmi) } else { state.put(vmi) };
        if differs {
            state.changed.insert(vmi.key.clone());
        }
        differs
    }

    /// Keeps a guest as it is until its VMI is removed or appears.
    pub(super) fn hold(&self, key: &Key) {
        let mut state = self.state();
        if !state.entries.contains_key(key) && !state.leaving.contains_key(key) {
            state.held.insert(key.clone());
        }
    }

    /// Has the guest of a VMI shut down within so many seconds, and at most its own grace period; whether that is new.
    pub(super) fn stop(&self, key: &Key, uid: &str, seconds: u64) -> bool {
        let mut state = self.state();
        let stop = (uid.to_owned(), seconds);
        let is_new = state.stopped.get(key).is_none_or(|known| known.0 != uid || known.1 > seconds);
        if is_new {
            state.stopped.insert(key.clone(), stop);
            // Of one that was not received yet, it is known when it is.
            if state.entries.get(key).is_some_and(|entry| entry.uid.to_string() == uid) {
                state.changed.insert(key.clone());
            }
        }
        is_new
    }

    /// Removes a VMI that is gone, but no later one of its name; whether it was there.
    pub(super) fn remove(&self, key: &Key, uid: &str) -> bool {
        let mut state = self.state();
        let removed = state.remove(key, uid);
        if removed {
            state.changed.insert(key.clone());
        }
        removed
    }

    /// Everything that is wanted.
    pub(super) fn all(&self) -> Update {
        let mut state = self.state();
        state.changed.clear();
        let keys: BTreeSet<&Key> =
            state.entries.keys().chain(state.leaving.keys()).chain(&state.held).collect();
        Update { catalog: state.catalog(keys), only: None }
    }

    /// What changed since the last update.
    pub(super) fn changes(&self) -> Update {
        let mut state = self.state();
        let changed = std::mem::take(&mut state.changed);
        Update { catalog: state.catalog(&changed), only: Some(changed) }
    }

    /// Those that are being deleted, with their UIDs.
    pub(super) fn leaving(&self) -> Vec<(Key, String)> {
        self.state().leaving.iter().map(|(key, leaving)| (key.clone(), leaving.uid.clone())).collect()
    }
}

impl State {
    fn catalog<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) -> Catalog {
        let mut catalog = Catalog::default();
        for key in keys {
            if let Some(validated) = self.entries.get(key) {
                catalog.entries.insert(key.clone(), validated.wanted(self.stopped.get(key)));
            } else if let Some(leaving) = self.leaving.get(key) {
                catalog.graces.extend(leaving.grace.map(|seconds| (key.clone(), seconds)));
            } else if self.held.contains(key) {
                // It is unknown whether it is to run: what runs goes on.
                catalog.entries.insert(key.clone(), Entry::Held);
            }
        }
        catalog
    }

    fn remove(&mut self, key: &Key, uid: &str) -> bool {
        let entry = self.entries.get(key).is_some_and(|entry| entry.uid.to_string() == uid);
        let leaving = self.leaving.get(key).is_some_and(|leaving| leaving.uid == uid);
        let held = self.held.remove(key);
        if self.stopped.get(key).is_some_and(|(of, _)| of == uid) {
            self.stopped.remove(key);
        }
        if entry {
            self.entries.remove(key);
        }
        if leaving {
            self.leaving.remove(key);
        }
        entry || leaving || held
    }

    fn leave(&mut self, vmi: &Cached<Instance>) -> bool {
        let leaving = Leaving { uid: vmi.uid.clone(), grace: vmi.grace() };
        if self.leaving.get(&vmi.key) == Some(&leaving) {
            return false;
        }
        self.entries.remove(&vmi.key);
        self.leaving.insert(vmi.key.clone(), leaving);
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
        self.leaving.remove(&vmi.key);
        self.entries.insert(vmi.key.clone(), Validated { uid, generation, entry });
        true
    }
}
