use std::sync::Mutex;

use super::*;
use crate::store::{Change, Key};

struct World {
    _dir: tempfile::TempDir,
    store: Store,
    collector: Mutex<Collector>,
}

impl World {
    fn new() -> Self {
        Self::with_unreadable(&[])
    }

    fn with_unreadable(keys: &[Key]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::with_unreadable(&dir.path().join("store"), keys);
        objects::prepare(&store).unwrap();
        Self { _dir: dir, store, collector: Mutex::default() }
    }

    fn put(&self, namespace: &str, name: &str, more: Value) {
        let mut value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "uid": name, "namespace": namespace}});
        json_patch::merge(&mut value, &more);
        let resource = if namespace.is_empty() { "namespaces" } else { "configmaps" };
        self.store
            .write(&Key::new(resource, namespace, name), |_, _| Ok::<_, ()>(Change::Put(value)))
            .unwrap();
    }

    /// Names of what is left, those being deleted with a dash.
    fn left(&self) -> Vec<String> {
        for _ in 0..4 {
            self.collector.lock().unwrap().collect(&self.store, Some(1_000_000_000)).unwrap();
        }
        let mut left: Vec<String> = self
            .store
            .list("configmaps", None)
            .objects
            .iter()
            .map(|object| {
                let dash = if meta::is_being_deleted(&object.value()) { "-" } else { "" };
                format!("{dash}{}", object.key.name)
            })
            .collect();
        left.sort();
        left
    }
}

fn owned_by(owners: &[&str]) -> Value {
    let reference =
        |owner: &&str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": owner});
    let references: Vec<Value> = owners.iter().map(reference).collect();
    json!({"metadata": {"ownerReferences": references}})
}

fn deleting(finalizer: &str) -> Value {
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
    world.put("default", "fore", deleting(FOREGROUND));
    world.put("default", "a", owned_by(&["fore"]));
    let mut slow = owned_by(&["fore"]);
    slow["metadata"]["finalizers"] = json!(["x"]);
    world.put("default", "slow", slow);
    world.put("default", "orphaning", deleting(ORPHAN));
    world.put("default", "b", owned_by(&["orphaning"]));
    assert_eq!(world.left(), ["-fore", "-slow", "b"]);
    let slow = world.store.get(&Key::new("configmaps", "default", "slow")).unwrap();
    objects::change(&world.store, &slow, |_| false).unwrap();
    assert_eq!(world.left(), ["b"]);
}

#[test]
fn a_pod_on_a_node_has_its_grace_period_also_when_its_owner_is_gone() {
    let world = World::new();
    let mut pod = owned_by(&["gone"]);
    json_patch::merge(
        &mut pod,
        &json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "default"},
        "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}}),
    );
    let key = Key::new("pods", "default", "a");
    world.store.write(&key, |_, _| Ok::<_, ()>(Change::Put(pod))).unwrap();
    assert!(world.left().is_empty());
    let pod = world.store.get(&key).unwrap();
    assert_eq!(pod.value()["metadata"]["deletionGracePeriodSeconds"], 30);
    let mut unbound = pod.to_value();
    json_patch::merge(
        &mut unbound,
        &json!({"spec": {"nodeName": null}, "metadata": {"deletionTimestamp": null,
        "deletionGracePeriodSeconds": null}}),
    );
    world.store.write(&key, |_, _| Ok::<_, ()>(Change::Put(unbound))).unwrap();
    world.left();
    assert!(world.store.get(&key).is_none());
}

#[test]
fn a_namespace_goes_when_it_is_empty() {
    let world = World::new();
    world.put("", "closing", json!({"kind": "Namespace", "spec": {"finalizers": ["kubernetes"]}, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    world.put("closing", "a", json!({}));
    world.put("closing", "held", json!({"metadata": {"finalizers": ["x"]}}));
    assert_eq!(world.left(), ["-held"]);
    assert!(objects::namespace(&world.store, "closing").is_some());
    let held = world.store.get(&Key::new("configmaps", "closing", "held")).unwrap();
    objects::change(&world.store, &held, |_| false).unwrap();
    assert!(world.left().is_empty());
    assert!(objects::namespace(&world.store, "closing").is_none());
    assert!(objects::namespace(&world.store, "default").is_some());
}

#[test]
fn an_owner_of_a_kind_that_is_not_served_is_not_taken_for_gone() {
    let world = World::new();
    let reference = json!([{"apiVersion": "v1", "kind": "PodTemplate", "name": "p", "uid": "p"}]);
    world.put("default", "a", json!({"metadata": {"ownerReferences": reference}}));
    assert_eq!(world.left(), ["a"]);
}

#[test]
fn an_owner_that_cannot_be_read_is_not_taken_for_gone() {
    let world = World::with_unreadable(&[Key::new("configmaps", "default", "owner")]);
    world.put("default", "a", owned_by(&["owner"]));
    world.put("default", "b", owned_by(&["gone"]));
    assert_eq!(world.left(), ["a"]);
}

#[test]
fn what_follows_the_store_does_what_a_look_at_everything_would() {
    let world = World::new();
    world.put("default", "owner", json!({}));
    world.put("default", "other", json!({}));
    world.put("default", "a", owned_by(&["owner"]));
    world.put("default", "b", owned_by(&["owner", "other"]));
    world.put("default", "c", owned_by(&["a"]));
    assert_eq!(world.left(), ["a", "b", "c", "other", "owner"]);
    let gone = |name: &str| {
        let object = world.store.get(&Key::new("configmaps", "default", name)).unwrap();
        objects::remove(&world.store, &object).unwrap();
    };
    gone("owner");
    assert_eq!(world.left(), ["b", "other"]);
    world.put("default", "late", owned_by(&["owner"]));
    world.put("default", "owner", json!({"metadata": {"uid": "another"}}));
    assert_eq!(world.left(), ["b", "other", "owner"], "a name alone does not own");
    gone("other");
    assert_eq!(world.left(), ["owner"]);
    let mut afresh = Collector::default();
    let revision = world.store.revision();
    afresh.collect(&world.store, Some(1_000_000_000)).unwrap();
    assert_eq!(world.store.revision(), revision, "nothing was left to do");
}

#[test]
fn a_write_makes_it_look_at_what_it_touches_only() {
    let world = World::new();
    for number in 0..100 {
        world.put("default", &format!("other-{number}"), json!({}));
    }
    world.put("default", "owner", json!({}));
    world.put("default", "a", owned_by(&["owner"]));
    world.left();
    let collector = &mut *world.collector.lock().unwrap();
    world.put("default", "a", json!({"metadata": {"labels": {"x": "y"}}}));
    let Changes::Delta(events) = collector.cursor.look(&world.store) else { panic!("it has fallen behind") };
    events.iter().for_each(|event| collector.apply_event(&world.store, event));
    let names: Vec<&str> = collector.open.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["a", "owner"]);
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
