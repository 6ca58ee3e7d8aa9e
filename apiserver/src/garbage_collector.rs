//! Removing what was left behind: dependents of owners that are gone, what is in namespaces that go, old events.
//!
//! It follows the store: for a write it looks at the object, its dependents and its owners. Only at
//! the start, and when it has fallen behind what the store remembers, it looks at everything.

mod family;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::meta::{FOREGROUND, ORPHAN};
use crate::resource::{EVENTS, NAMESPACES, Registry};
use crate::served_resources::{ServedResources, ServedResourcesCache};
use crate::store::{Changes, DiskError, Event, Key, Object, Store, WatchCursor};
use crate::{controller, meta, objects};
use family::{Dependents, Owner, owners};

/// How long events are kept; as a Kubernetes API server does.
const EVENTS_KEPT: i64 = 3600;
/// How often old events are looked for, and what could not be written is tried again.
const RESYNC: Duration = Duration::from_secs(60);

/// What is done with an object.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    /// It is deleted.
    Remove,
    /// A finalizer is removed.
    Release(&'static str),
    /// The owner reference with this UID is removed.
    Disown(String),
    /// The finalizers of an empty namespace are removed.
    Close,
}

/// Collects garbage until the store is gone.
pub async fn run(store: Arc<Store>, registry: Arc<Registry>) {
    controller::run_with(store, "garbage collector", || Collector::new(Arc::clone(&registry)), collect_due)
        .await;
}

fn collect_due(store: &Store, collector: &mut Collector) -> Option<Duration> {
    let due = collector.old.is_none_or(|old| old.elapsed() >= RESYNC);
    if due {
        collector.old = Some(Instant::now());
    }
    let time = due.then(|| Timestamp::now().as_second());
    if let Err(error) = collector.collect(store, time) {
        tracing::warn!(%error, "cannot collect garbage: retrying");
    }
    Some(RESYNC.saturating_sub(collector.old.map_or(RESYNC, |old| old.elapsed())))
}

/// The garbage collector and its index of dependents.
#[derive(Debug, Default)]
pub struct Collector {
    cache: ServedResourcesCache,
    /// The resources that are served.
    served: Arc<ServedResources>,
    cursor: WatchCursor,
    dependents: Dependents,
    /// Objects to look at.
    open: BTreeSet<Key>,
    /// When events were checked for their age.
    old: Option<Instant>,
}

impl Collector {
    /// For a server that always serves this.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { cache: ServedResourcesCache::new(registry), ..Self::default() }
    }

    /// Deletes what is due after the changes since the last call; with a time, also old events. Blocks.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn collect(&mut self, store: &Store, time: Option<i64>) -> Result<(), DiskError> {
        let before = std::mem::replace(&mut self.served, self.cache.now(store));
        let more = !Arc::ptr_eq(&before, &self.served);
        let served = Arc::clone(&self.served);
        match self.cursor.look(store) {
            Changes::Relist => {
                self.dependents = Dependents::default();
                for object in served.all().flat_map(|row| store.list(&row.name(), None).objects) {
                    self.dependents.add(&served, &object);
                    self.open.insert(object.key.clone());
                }
            }
            Changes::Delta(events) => events.iter().for_each(|event| self.apply_event(store, event)),
        }
        if more {
            self.add_new_kinds(store, &before);
        }
        if let Some(now) = time {
            let events = store.list(&EVENTS.name(), None).objects;
            self.open
                .extend(events.iter().filter(|event| is_stale(event, now)).map(|event| event.key.clone()));
        }
        while let Some(key) = self.open.first().cloned() {
            if let Some(object) = store.get(&key) {
                for task in self.tasks(store, &object, time) {
                    carry_out(store, &self.served, &object, &task)?;
                }
            }
            self.open.remove(&key);
        }
        Ok(())
    }

    /// Adds the owners of kinds that are served since the last call.
    fn add_new_kinds(&mut self, store: &Store, before: &ServedResources) {
        let served = Arc::clone(&self.served);
        let fresh = served.all().filter(|row| before.of_kind(&row.api_version(), &row.kind).is_none());
        let fresh: BTreeSet<String> = fresh.map(|row| row.name()).collect();
        if fresh.is_empty() {
            return;
        }
        // What names such an owner could not be followed before.
        for object in served.all().flat_map(|row| store.list(&row.name(), None).objects) {
            self.dependents.add(&served, &object);
            if fresh.contains(&object.key.resource) {
                self.open.insert(object.key.clone());
            }
        }
    }

    /// Updates the index, and queues what a write may have made due.
    fn apply_event(&mut self, store: &Store, event: &Event) {
        let object = &event.object;
        if let Some(before) = &event.before {
            self.dependents.remove(before);
            let had = before.value();
            let owners = owners(&had).filter_map(|owner| owner.key(&self.served, &before.key.namespace));
            self.open.extend(owners);
        }
        if event.stays {
            self.dependents.add(&self.served, object);
            self.open.insert(event.key.clone());
        }
        if event.stays && !meta::is_being_deleted(&object.value()) {
            return;
        }
        self.open.extend(self.dependents.of(meta::text(&object.value(), "uid")).cloned());
        if event.key.resource == NAMESPACES.name() {
            let inside =
                self.served.all().flat_map(|row| store.list(&row.name(), Some(&event.key.name)).objects);
            self.open.extend(
                inside.filter(|object| !object.key.namespace.is_empty()).map(|object| object.key.clone()),
            );
        }
        if !event.key.namespace.is_empty() {
            self.open.insert(NAMESPACES.key("", &event.key.namespace));
        }
    }

    /// What there is to do about an object.
    fn tasks(&self, store: &Store, object: &Object, time: Option<i64>) -> Vec<Task> {
        let value = &*object.value();
        let effects: Vec<(Owner, Effect)> =
            owners(value).map(|owner| (owner, self.effect(store, &owner, &object.key.namespace))).collect();
        if let Some((owner, _)) = effects.iter().find(|(_, effect)| *effect == Effect::Release) {
            return vec![Task::Disown(owner.uid.to_owned())];
        }
        if !meta::is_being_deleted(value) {
            let orphaned = !effects.is_empty() && effects.iter().all(|(_, effect)| *effect == Effect::Delete);
            let stale = time.is_some_and(|now| is_stale(object, now));
            let due = orphaned || stale || is_closing(store, &object.key.namespace);
            return due.then_some(Task::Remove).into_iter().collect();
        }
        let finalizers = meta::finalizers(value);
        let childless = self.dependents.of(meta::text(value, "uid")).next().is_none();
        let held = [FOREGROUND, ORPHAN].into_iter().filter(|one| finalizers.iter().any(|has| has == one));
        let mut tasks: Vec<Task> = held.filter(|_| childless).map(Task::Release).collect();
        let name = &object.key.name;
        let empty = || !self.served.all().any(|row| row.namespaced && store.has_any(&row.name(), name));
        if object.key.resource == NAMESPACES.name() && empty() {
            tasks.push(Task::Close);
        }
        tasks
    }
}

impl Collector {
    fn effect(&self, store: &Store, owner: &Owner<'_>, namespace: &str) -> Effect {
        // Whether an object of a resource that is not served still exists is unknown.
        let Some(key) = owner.key(&self.served, namespace) else { return Effect::Keep };
        if store.is_unreadable(&key) {
            return Effect::Keep;
        }
        let there = store.get(&key).map(|there| there.value());
        let Some(there) = there.filter(|there| meta::text(there, "uid") == owner.uid) else {
            return Effect::Delete;
        };
        if !meta::is_being_deleted(&there) {
            return Effect::Keep;
        }
        let finalizers = meta::finalizers(&there);
        let has = |finalizer: &str| finalizers.iter().any(|one| one == finalizer);
        match (has(ORPHAN), has(FOREGROUND)) {
            (true, _) => Effect::Release,
            (false, true) => Effect::Delete,
            (false, false) => Effect::Keep,
        }
    }
}

/// What becomes of dependents because of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// They stay.
    Keep,
    /// They go.
    Delete,
    /// They are orphaned.
    Release,
}

fn is_closing(store: &Store, namespace: &str) -> bool {
    !namespace.is_empty()
        && objects::namespace(store, namespace)
            .is_some_and(|namespace| meta::is_being_deleted(&namespace.value()))
}

fn carry_out(store: &Store, served: &ServedResources, object: &Object, task: &Task) -> Result<(), DiskError> {
    let grace = served.named(&object.key.resource).and_then(|resource| resource.grace);
    objects::change(store, object, |value| {
        match task {
            Task::Remove => return objects::mark_for_deletion(value, grace, None) == objects::Deletion::Held,
            Task::Release(finalizer) => meta::remove_finalizer(value, finalizer),
            Task::Disown(owner) => {
                let references = value.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut);
                if let Some(references) = references {
                    references.retain(|reference| reference.get("uid").is_none_or(|uid| uid != owner));
                }
            }
            Task::Close => value["spec"] = json!({}),
        }
        !meta::is_being_deleted(value) || objects::is_held(value)
    })
}

fn is_stale(object: &Object, now: i64) -> bool {
    if object.key.resource != "events" {
        return false;
    }
    let event = object.value_once();
    let last = ["lastTimestamp", "eventTime"].iter().find_map(|field| event.get(field)?.as_str());
    let last = last.unwrap_or_else(|| meta::text(&event, "creationTimestamp"));
    last.parse::<Timestamp>().is_ok_and(|last| now - last.as_second() > EVENTS_KEPT)
}

#[cfg(test)]
mod tests;
