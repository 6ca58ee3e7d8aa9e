use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Barrier;

use serde_json::Value;

use super::super::write::MOST_TRIES;
use super::*;

fn numbered(store: &Store, key: &Key, number: u64) {
    let value = json!({"metadata": {}, "number": number});
    store.write(key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
}

fn plus_one(before: Option<&Arc<Object>>) -> Result<Change, Infallible> {
    let mut value = before.unwrap().to_value();
    value["number"] = json!(value["number"].as_u64().unwrap() + 1);
    Ok(Change::Put(value))
}

fn store() -> (tempfile::TempDir, Store, Key) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    (dir, store, Key::new("r", "n", "a"))
}

#[test]
fn others_write_while_an_update_is_decided() {
    let (_dir, store, key) = store();
    numbered(&store, &key, 1);
    let (begun, written) = (Barrier::new(2), Barrier::new(2));
    let tries = Cell::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            // Another object, and the very one.
            numbered(&store, &Key::new("r", "n", "b"), 1);
            numbered(&store, &key, 10);
            written.wait();
        });
        let decide = |before: Option<&Arc<Object>>| {
            tries.set(tries.get() + 1);
            if tries.get() == 1 {
                begun.wait();
                written.wait();
            }
            plus_one(before)
        };
        let stored = store.update(&key, Space::Free, decide, |_| Ok(())).unwrap().unwrap();
        assert_eq!((&stored.value()["number"], tries.get()), (&json!(11), 2), "nothing is lost");
    });
}

#[test]
fn an_update_that_never_comes_in_time_is_given_up() {
    let (_dir, store, key) = store();
    numbered(&store, &key, 1);
    let tries = Cell::new(0);
    let decide = |before: Option<&Arc<Object>>| {
        tries.set(tries.get() + 1);
        numbered(&store, &key, 100 + tries.get());
        plus_one(before)
    };
    let given_up = store.update(&key, Space::Free, decide, |_| Ok(()));
    assert!(matches!(given_up, Err(UpdateError::Contended)));
    assert_eq!(tries.get(), MOST_TRIES as u64);
}

#[test]
fn updates_of_one_object_wait_for_each_other() {
    const WRITERS: usize = 8;
    const UPDATES: usize = 20;
    let (_dir, store, key) = store();
    numbered(&store, &key, 0);
    let tries = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                for _ in 0..UPDATES {
                    let decide = |before: Option<&Arc<Object>>| {
                        tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        plus_one(before)
                    };
                    store.update(&key, Space::Free, decide, |_| Ok(())).unwrap();
                }
            });
        }
    });
    assert_eq!(store.get(&key).unwrap().value()["number"], json!(WRITERS * UPDATES));
    assert_eq!(tries.into_inner(), WRITERS * UPDATES, "none was decided twice");
}

/// Updates of as many objects, each of which waits for the disk before the first of them is written.
fn update_together(store: &Store, names: &[&str]) -> Vec<bool> {
    let disk = store.disk.lock().unwrap();
    std::thread::scope(|scope| {
        let put = |name: &str| {
            let key = Key::new("r", "n", name);
            scope.spawn(move || {
                let decide =
                    |_: Option<&Arc<Object>>| Ok::<_, ()>(Change::Put(json!({"metadata": {}, "text": "x"})));
                store.update(&key, Space::Free, decide, |_| Ok(())).is_ok()
            })
        };
        let threads: Vec<_> = names.iter().map(|name| put(name)).collect();
        // The first of them waits for the disk, and the others for it.
        while store.batches.waiting() < names.len() - 1 {
            std::thread::yield_now();
        }
        drop(disk);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn updates_that_wait_for_the_disk_are_committed_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (store, file) = shaky(&path);
    let before = file.syncs();
    assert_eq!(update_together(&store, &["a", "b", "c", "d", "e"]), [true; 5]);
    let together = file.syncs() - before;
    put(&store, "f", "1");
    let alone = file.syncs() - before - together;
    assert_eq!(together, 2 * alone, "the first one, and the other four");
    let revisions: Vec<u64> =
        store.events("r", None, 0).unwrap().1.iter().map(|event| event.object.revision).collect();
    assert_eq!(revisions, [1, 2, 3, 4, 5, 6]);
    drop(store);
    assert_eq!(Store::open(&path).unwrap().list("r", None).objects.len(), 6);
}

#[test]
fn each_of_a_commit_that_failed_has_its_own_outcome() {
    for (failure, landed) in [(Failure::AfterSync, true), (Failure::BeforeWrite, false)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (store, file) = shaky(&path);
        assert_eq!(put(&store, "z", "1"), 1);
        file.set(failure);
        // The first is alone and fails; the file is opened again for the others, without failure.
        let mut outcomes = update_together(&store, &["a", "b", "c"]);
        outcomes.sort_unstable();
        assert_eq!(outcomes, [false, true, true], "{failure:?}");
        let there = store.list("r", None).objects.len();
        assert_eq!(there, if landed { 4 } else { 3 }, "{failure:?}");
        let (revision, names) = (store.revision(), texts(&store.list("r", None)));
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!((store.revision(), texts(&store.list("r", None))), (revision, names), "{failure:?}");
    }
}

#[test]
fn what_is_confirmed_still_holds_when_it_is_written() {
    let (_dir, store, key) = store();
    let parent = Key::new("parents", "", "n");
    let decide = |_: Option<&Arc<Object>>| {
        // As if another client wrote meanwhile.
        numbered(&store, &parent, 1);
        Ok(Change::Put(json!({"metadata": {}})))
    };
    let closed = parent.clone();
    let confirm = move |store: &Store| store.get(&closed).map_or(Ok(()), |_| Err("closed"));
    let refused = store.update(&key, Space::Free, decide, confirm);
    assert!(matches!(refused, Err(UpdateError::Write(WriteError::Refused("closed")))));
    assert!(store.get(&key).is_none());
}

#[test]
fn unreadable_values_are_not_stored() {
    let (_dir, store, key) = store();
    let nested = |depth: usize| (1..depth).fold(json!({}), |inner, _| json!({"a": inner}));
    let put = |value: Value| store.write(&key, |_, _| Ok::<_, Infallible>(Change::Recorded(value)));
    let revision = put(nested(Limits::STORED.depth)).unwrap().unwrap().revision;
    for excessive in [nested(Limits::STORED.depth + 1), json!({"a": "x".repeat(Limits::STORED.bytes)})] {
        assert!(matches!(put(excessive), Err(WriteError::Disk(DiskError::Excess { .. }))));
    }
    assert_eq!(store.get(&key).unwrap().revision, revision);
    numbered(&store, &key, 1);
}
