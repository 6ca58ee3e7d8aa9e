//! The controller of CustomResourceDefinitions: whether their names can be had, and that their objects go with them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::meta::CLEANUP;
use crate::resource::CUSTOM_RESOURCE_DEFINITIONS;
use crate::store::{Changes, DiskError, Object, Store, WatchCursor};
use crate::{controller, meta, objects};

/// How soon what could not be written is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// State that is kept between reconciliations.
#[derive(Debug, Default)]
struct State {
    cursor: WatchCursor,
    /// Names of resources that go as soon as they have no objects.
    deleting: BTreeSet<String>,
}

/// Controls until the store is gone.
pub async fn run(store: Arc<Store>) {
    controller::run(store, "CustomResourceDefinitions", reconcile).await;
}

fn reconcile(store: &Store, state: &mut State) -> Option<Duration> {
    let name = CUSTOM_RESOURCE_DEFINITIONS.name();
    let concerned = match state.cursor.look(store) {
        Changes::Relist => true,
        Changes::Delta(events) => events
            .iter()
            .any(|event| event.key.resource == name || state.deleting.contains(&event.key.resource)),
    };
    if !concerned {
        return None;
    }
    let all = store.list(&name, None).objects;
    state.deleting = all
        .iter()
        .filter(|one| meta::is_being_deleted(&one.value()))
        .map(|one| one.key.name.clone())
        .collect();
    for definition in &all {
        let done = match meta::is_being_deleted(&definition.value()) {
            true => empty(store, definition),
            false => establish(store, definition, &all),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "a CustomResourceDefinition cannot be written; it is tried again");
            state.cursor = WatchCursor::default();
            return Some(RETRY);
        }
    }
    None
}

/// Reports whether the names of a definition are free. The first definition keeps a name.
fn establish(store: &Store, definition: &Object, all: &[Arc<Object>]) -> Result<(), DiskError> {
    let conflict = conflict(definition, all);
    let before = definition.value().pointer("/status/conditions").cloned().unwrap_or_default();
    let condition = |kind: &str, holds: bool, reason: &str, message: &str| {
        let status = if holds { "True" } else { "False" };
        let old = before.as_array().into_iter().flatten().find(|old| old.get("type") == Some(&json!(kind)));
        let since = old.filter(|old| old.get("status") == Some(&json!(status)));
        let since = since.and_then(|old| old.get("lastTransitionTime").cloned());
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since.unwrap_or_else(|| json!(meta::now()))})
    };
    let established = before.as_array().into_iter().flatten().any(|one| {
        one.get("type") == Some(&json!("Established")) && one.get("status") == Some(&json!("True"))
    });
    let conditions = match conflict {
        None => json!([
            condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
            condition("Established", true, "InitialNamesAccepted", "the initial names have been accepted"),
        ]),
        Some(why) => json!([
            condition("NamesAccepted", false, "NameConflict", &why),
            match established {
                true => condition(
                    "Established",
                    true,
                    "InitialNamesAccepted",
                    "the initial names have been accepted"
                ),
                false => condition("Established", false, "NotAccepted", "not all names are accepted"),
            },
        ]),
    };
    objects::change(store, definition, |value| {
        let versions = value.pointer("/spec/versions").and_then(Value::as_array).cloned().unwrap_or_default();
        let stored = versions.iter().find(|version| version.get("storage") == Some(&json!(true)));
        let names = value.pointer("/spec/names").cloned().unwrap_or_default();
        value["status"] = json!({
            "conditions": conditions, "acceptedNames": names,
            "storedVersions": stored.map(|version| vec![version["name"].clone()]),
        });
        true
    })
}

/// Why the names of a definition cannot be had: an older one of its group has one of them.
fn conflict(definition: &Object, all: &[Arc<Object>]) -> Option<String> {
    let text =
        |value: &Value, field: &str| value.pointer(&format!("/spec/{field}")).cloned().unwrap_or_default();
    let names = |value: &Value| {
        let mut names: BTreeSet<String> = BTreeSet::new();
        let given = text(value, "names");
        for field in ["singular", "kind", "listKind"] {
            names.extend(given.get(field).and_then(Value::as_str).map(str::to_owned));
        }
        let short = given.get("shortNames").and_then(Value::as_array).cloned().unwrap_or_default();
        names.extend(short.iter().filter_map(Value::as_str).map(str::to_owned));
        names
    };
    let age = |object: &Object| {
        (meta::text(&object.value(), "creationTimestamp").to_owned(), object.key.name.clone())
    };
    let mine = names(&definition.value());
    let rivals = all.iter().filter(|one| {
        text(&one.value(), "group") == text(&definition.value(), "group") && age(one) < age(definition)
    });
    let mut taken = rivals.flat_map(|one| names(&one.value()));
    taken.find(|name| mine.contains(name)).map(|name| format!("{name:?} is already in use"))
}

/// Removes the objects of a definition, and lets it go when there are none.
fn empty(store: &Store, definition: &Object) -> Result<(), DiskError> {
    if !meta::finalizers(&definition.value()).iter().any(|one| one == CLEANUP) {
        return Ok(());
    }
    let objects = store.list(&definition.key.name, None).objects;
    for object in objects.iter().filter(|object| !meta::is_being_deleted(&object.value())) {
        objects::remove(store, object)?;
    }
    if !store.list(&definition.key.name, None).objects.is_empty() {
        return Ok(());
    }
    objects::change(store, definition, |value| {
        meta::remove_finalizer(value, CLEANUP);
        objects::is_held(value)
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::served_resources::ServedResourcesCache;
    use crate::store::{Change, Key};

    fn put(store: &Store, key: &Key, mut value: Value) {
        meta::create(&mut value, &key.namespace, &key.name);
        store.write(key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
    }

    fn define(store: &Store, plural: &str, kind: &str) -> Key {
        let key = CUSTOM_RESOURCE_DEFINITIONS.key("", &format!("{plural}.example.com"));
        let mut value = json!({"metadata": {"name": key.name}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        assert_eq!((CUSTOM_RESOURCE_DEFINITIONS.admit)(&mut value, None), []);
        put(store, &key, value);
        key
    }

    fn settle(store: &Store, state: &mut State) {
        for _ in 0..10 {
            let before = store.revision();
            reconcile(store, state);
            if store.revision() == before {
                return;
            }
        }
        panic!("it never settles");
    }

    #[test]
    fn a_definition_is_served_until_its_last_object_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        objects::prepare(&store).unwrap();
        let (mut state, served) = (State::default(), ServedResourcesCache::default());
        let key = define(&store, "boxes", "Box");
        assert!(served.now(&store).at("example.com", "v1", "boxes").is_none());
        settle(&store, &mut state);
        assert!(served.now(&store).at("example.com", "v1", "boxes").is_some());
        let rival = define(&store, "crates", "Box");
        settle(&store, &mut state);
        let status = store.get(&rival).unwrap().value()["status"]["conditions"].clone();
        assert_eq!((&status[0]["status"], &status[1]["status"]), (&json!("False"), &json!("False")));
        assert!(served.now(&store).at("example.com", "v1", "crates").is_none());

        let object = Key::new("boxes.example.com", "default", "a");
        put(&store, &object, json!({"metadata": {"finalizers": ["x/y"]}}));
        objects::remove(&store, &store.get(&key).unwrap()).unwrap();
        settle(&store, &mut state);
        assert!(meta::is_being_deleted(&store.get(&object).unwrap().value()), "it goes, and is held");
        assert!(store.get(&key).is_some() && served.now(&store).at("example.com", "v1", "boxes").is_some());
        objects::change(&store, &store.get(&object).unwrap(), |_| false).unwrap();
        settle(&store, &mut state);
        assert!(store.get(&key).is_none() && served.now(&store).at("example.com", "v1", "boxes").is_none());
        let status = store.get(&rival).unwrap().value()["status"]["conditions"].clone();
        assert_eq!(status[1]["status"], "True", "the names are free now");
    }
}
