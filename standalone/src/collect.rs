//! Removing what was left behind: dependents of owners that are gone, what is in namespaces that go, old events.
//!
//! Level-triggered: after every write that may matter, the whole store is looked at again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::store::{DiskError, Object, Store};
use crate::{meta, place};

/// Put on by a deletion that waits for dependents.
const FOREGROUND: &str = "foregroundDeletion";
/// Put on by a deletion that leaves dependents alone.
const ORPHAN: &str = "orphan";
/// How long events are kept; as a Kubernetes API server does.
const EVENTS_KEPT: i64 = 3600;
/// How often old events are looked for, and what could not be written is tried again.
const ROUND: Duration = Duration::from_secs(60);

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    /// Delete it.
    Remove,
    /// Let go of it.
    Release(&'static str),
    /// Take it from its owner.
    Disown(String),
    /// A namespace is empty.
    Close,
}

/// Collects until the store is gone.
pub async fn run(store: Arc<Store>) {
    let mut news = store.news();
    loop {
        news.borrow_and_update();
        let there = Arc::clone(&store);
        let collected =
            tokio::task::spawn_blocking(move || collect(&there, Timestamp::now().as_second())).await;
        match collected {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "what was left behind cannot be removed; it is tried again")
            }
            Err(error) => tracing::error!(%error, "collecting broke off; it is tried again"),
        }
        let deadline = Instant::now() + ROUND;
        tokio::select! {
            changed = news.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(deadline) => {}
        }
    }
}

/// Does everything there is to do now. Blocks.
fn collect(store: &Store, now: i64) -> Result<(), DiskError> {
    let objects: Vec<Arc<Object>> =
        crate::resource::ALL.iter().flat_map(|row| store.list(&row.name(), None).objects).collect();
    for (object, task) in decide(&objects, now) {
        place::change(store, object, |value| {
            match task {
                Task::Remove => return place::leave(value) == place::Leaving::Held,
                Task::Release(finalizer) => meta::remove_finalizer(value, finalizer),
                Task::Disown(ref owner) => {
                    let references =
                        value.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut);
                    if let Some(references) = references {
                        references.retain(|reference| reference.get("uid").is_none_or(|uid| uid != owner));
                    }
                }
                Task::Close => value["spec"] = json!({}),
            }
            !meta::is_leaving(value) || place::is_held(value)
        })?;
    }
    Ok(())
}

fn owners(object: &Object) -> impl Iterator<Item = &str> {
    let references = object.value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    references.into_iter().flatten().filter_map(|reference| reference.get("uid").and_then(Value::as_str))
}

/// What there is to do about a moment of the store.
fn decide(objects: &[Arc<Object>], now: i64) -> Vec<(&Arc<Object>, Task)> {
    let alive: BTreeSet<&str> = objects.iter().map(|object| meta::text(&object.value, "uid")).collect();
    let mut tasks = Vec::new();
    let leaving_by = |finalizer: &str| -> BTreeSet<&str> {
        let held = |object: &&Arc<Object>| {
            meta::is_leaving(&object.value)
                && meta::finalizers(&object.value).iter().any(|one| one == finalizer)
        };
        objects.iter().filter(held).map(|object| meta::text(&object.value, "uid")).collect()
    };
    let (foreground, orphaning) = (leaving_by(FOREGROUND), leaving_by(ORPHAN));
    let owned: BTreeSet<&str> = objects.iter().flat_map(|object| owners(object)).collect();
    let closing: BTreeSet<&str> = objects
        .iter()
        .filter(|object| object.key.resource == "namespaces" && meta::is_leaving(&object.value))
        .map(|object| object.key.name.as_str())
        .collect();
    let mut filled: BTreeSet<&str> = BTreeSet::new();
    for object in objects {
        filled.insert(&object.key.namespace);
        if let Some(owner) = owners(object).find(|owner| orphaning.contains(owner)) {
            tasks.push((object, Task::Disown(owner.to_owned())));
            continue;
        }
        let mut of = owners(object).peekable();
        let owned_by_none =
            of.peek().is_some() && of.all(|owner| !alive.contains(owner) || foreground.contains(owner));
        let in_closing = closing.contains(object.key.namespace.as_str());
        if (owned_by_none || in_closing || is_stale(object, now)) && !meta::is_leaving(&object.value) {
            tasks.push((object, Task::Remove));
        }
        let uid = meta::text(&object.value, "uid");
        for (held, finalizer) in [(&foreground, FOREGROUND), (&orphaning, ORPHAN)] {
            if held.contains(uid) && !owned.contains(uid) {
                tasks.push((object, Task::Release(finalizer)));
            }
        }
    }
    for object in objects.iter().filter(|object| object.key.resource == "namespaces") {
        let name = object.key.name.as_str();
        if closing.contains(name) && !filled.contains(name) {
            tasks.push((object, Task::Close));
        }
    }
    tasks
}

fn is_stale(object: &Object, now: i64) -> bool {
    if object.key.resource != "events" {
        return false;
    }
    let last = ["lastTimestamp", "eventTime"].iter().find_map(|field| object.value.get(field)?.as_str());
    let last = last.unwrap_or_else(|| meta::text(&object.value, "creationTimestamp"));
    last.parse::<Timestamp>().is_ok_and(|last| now - last.as_second() > EVENTS_KEPT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Change, Key};

    struct World {
        _dir: tempfile::TempDir,
        store: Store,
    }

    impl World {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(&dir.path().join("store")).unwrap();
            place::prepare(&store, "node1").unwrap();
            Self { _dir: dir, store }
        }

        fn put(&self, namespace: &str, name: &str, more: Value) {
            let mut value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "uid": name, "namespace": namespace}});
            json_patch::merge(&mut value, &more);
            let resource = if namespace.is_empty() { "namespaces" } else { "configmaps" };
            self.store
                .write(&Key::new(resource, namespace, name), |_, _| Ok::<_, ()>(Change::Put(value)))
                .unwrap();
        }

        /// Names of what is left, leaving ones with a dash.
        fn left(&self) -> Vec<String> {
            for _ in 0..4 {
                collect(&self.store, 1_000_000_000).unwrap();
            }
            let mut left: Vec<String> = self
                .store
                .list("configmaps", None)
                .objects
                .iter()
                .map(|object| {
                    let dash = if meta::is_leaving(&object.value) { "-" } else { "" };
                    format!("{dash}{}", object.key.name)
                })
                .collect();
            left.sort();
            left
        }
    }

    fn owned_by(owners: &[&str]) -> Value {
        let references: Vec<Value> = owners.iter().map(|owner| json!({"uid": owner})).collect();
        json!({"metadata": {"ownerReferences": references}})
    }

    fn leaving(finalizer: &str) -> Value {
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer]}})
    }

    #[test]
    fn dependents_go_when_all_their_owners_are_gone() {
        let world = World::new();
        world.put("default", "owner", json!({}));
        world.put("default", "a", owned_by(&["owner", "gone"]));
        world.put("default", "b", owned_by(&["gone"]));
        world.put("default", "c", owned_by(&["b"]));
        let mut held = owned_by(&["gone"]);
        held["metadata"]["finalizers"] = json!(["x"]);
        world.put("default", "d", held);
        assert_eq!(world.left(), ["-d", "a", "owner"]);
    }

    #[test]
    fn a_foreground_deletion_waits_for_dependents_and_an_orphaning_one_frees_them() {
        let world = World::new();
        world.put("default", "fore", leaving(FOREGROUND));
        world.put("default", "a", owned_by(&["fore"]));
        let mut slow = owned_by(&["fore"]);
        slow["metadata"]["finalizers"] = json!(["x"]);
        world.put("default", "slow", slow);
        world.put("default", "orphaning", leaving(ORPHAN));
        world.put("default", "b", owned_by(&["orphaning"]));
        assert_eq!(world.left(), ["-fore", "-slow", "b"]);
        let slow = world.store.get(&Key::new("configmaps", "default", "slow")).unwrap();
        place::change(&world.store, &slow, |_| false).unwrap();
        assert_eq!(world.left(), ["b"]);
    }

    #[test]
    fn a_namespace_goes_when_it_is_empty() {
        let world = World::new();
        world.put("", "room", json!({"kind": "Namespace", "spec": {"finalizers": ["kubernetes"]}, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        world.put("room", "a", json!({}));
        world.put("room", "held", json!({"metadata": {"finalizers": ["x"]}}));
        assert_eq!(world.left(), ["-held"]);
        assert!(place::namespace(&world.store, "room").is_some());
        let held = world.store.get(&Key::new("configmaps", "room", "held")).unwrap();
        place::change(&world.store, &held, |_| false).unwrap();
        assert!(world.left().is_empty());
        assert!(place::namespace(&world.store, "room").is_none());
        assert!(place::namespace(&world.store, "default").is_some());
    }

    #[test]
    fn events_grow_old() {
        let event = |time: &str| {
            Object::new(Key::new("events", "default", "e"), 1, json!({"metadata": {}, "lastTimestamp": time}))
        };
        assert!(is_stale(&event("2001-09-09T00:00:00Z"), 1_000_000_000));
        assert!(!is_stale(&event("2001-09-09T01:40:00Z"), 1_000_000_000));
        assert!(!is_stale(&event("nonsense"), 1_000_000_000));
    }
}
