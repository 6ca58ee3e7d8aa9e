use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn put(store: &Store, name: &str, text: &str) -> u64 {
    let value = json!({"metadata": {"name": name}, "text": text});
    store.write(&Key::new("r", "n", name), |_, _| Ok::<_, ()>(Change::Put(value))).unwrap().unwrap().revision
}

fn remove(store: &Store, name: &str) {
    let key = Key::new("r", "n", name);
    let gone = |now: Option<&Arc<Object>>, _: &Store| {
        Ok::<_, ()>(now.map_or(Change::Nothing, |now| Change::Remove(now.value.clone())))
    };
    store.write(&key, gone).unwrap();
}

fn texts(listing: &Listing) -> BTreeMap<String, String> {
    let text = |object: &Arc<Object>| object.value["text"].as_str().unwrap().to_owned();
    listing.objects.iter().map(|object| (object.key.name.clone(), text(object))).collect()
}

#[test]
fn what_was_acknowledged_is_there_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open(&path).unwrap();
    put(&store, "a", "1");
    put(&store, "b", "1");
    remove(&store, "a");
    let last = store.revision();
    assert_eq!(last, 3);
    assert!(Store::open(&path).is_err(), "one process at a time");
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.revision(), last, "a revision is never used twice, also not that of a removal");
    assert_eq!(texts(&store.list("r", None)).into_iter().collect::<Vec<_>>(), [("b".into(), "1".into())]);
    assert_eq!(store.get(&Key::new("r", "n", "b")).unwrap().value["metadata"]["resourceVersion"], "2");
    assert!(store.events("r", None, 2).is_err(), "the past ended with the process");
    assert_eq!(store.events("r", None, 3).unwrap().1.len(), 0);
}

#[test]
fn a_write_that_changes_nothing_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    assert_eq!((put(&store, "a", "1"), put(&store, "a", "1"), put(&store, "a", "2")), (1, 1, 2));
    assert_eq!(store.events("r", None, 0).unwrap().1.len(), 2);
}

#[test]
fn namespaces_and_resources_are_kept_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    for (resource, namespace) in [("r", "a"), ("r", "ab"), ("ra", "a"), ("r", "b")] {
        let value = json!({"metadata": {}});
        let key = Key::new(resource, namespace, "x");
        store.write(&key, |_, _| Ok::<_, ()>(Change::Put(value))).unwrap();
    }
    assert_eq!(store.list("r", None).objects.len(), 3);
    assert_eq!(store.list("r", Some("a")).objects.len(), 1);
    assert_eq!(store.list("ra", None).objects.len(), 1);
    assert_eq!(store.list("r", Some("c")).objects.len(), 0);
    assert_eq!(store.events("r", Some("a"), 0).unwrap().1.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Undoing events from the present and replaying them from the start give the same for every revision.
    #[test]
    fn every_remembered_moment_is_as_it_was(steps in prop::collection::vec((0..4u8, 0..5u8), 1..30)) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let mut moments = vec![BTreeMap::new()];
        for (number, (name, text)) in steps.into_iter().enumerate() {
            let name = name.to_string();
            let before = store.revision();
            if text == 0 { remove(&store, &name) } else { put(&store, &name, &format!("{number}")); }
            if store.revision() > before {
                moments.push(texts(&store.list("r", None)));
            }
        }
        for (revision, moment) in moments.iter().enumerate() {
            let listing = store.list_at("r", Some("n"), revision as u64).unwrap();
            prop_assert_eq!(&texts(&listing), moment);
        }
    }
}
