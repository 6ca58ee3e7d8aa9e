use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use redb::StorageBackend;
use redb::backends::FileBackend;
use serde_json::json;

use super::*;

mod unreadable;
mod update;

fn put(store: &Store, name: &str, text: &str) -> u64 {
    let value = json!({"metadata": {"name": name}, "text": text});
    store.write(&Key::new("r", "n", name), |_, _| Ok::<_, ()>(Change::Put(value))).unwrap().unwrap().revision
}

fn remove(store: &Store, name: &str) {
    let key = Key::new("r", "n", name);
    let gone = |now: Option<&Arc<Object>>, _: &Store| {
        Ok::<_, ()>(now.map_or(Change::Nothing, |now| Change::Remove(now.to_value())))
    };
    store.write(&key, gone).unwrap();
}

fn texts(listing: &Listing) -> BTreeMap<String, String> {
    let text = |object: &Arc<Object>| object.value()["text"].as_str().unwrap().to_owned();
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
    assert_eq!(store.get(&Key::new("r", "n", "b")).unwrap().value()["metadata"]["resourceVersion"], "2");
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

/// A file whose next synchronization is done, or not even its writes, and fails either way.
#[derive(Debug)]
struct Shaky {
    file: FileBackend,
    control: Arc<Control>,
}

/// What goes wrong with a file, and how often it was synchronized.
#[derive(Debug)]
struct Control {
    failure: Mutex<Failure>,
    syncs: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    None,
    AfterSync,
    BeforeWrite,
}

impl Control {
    fn set(&self, failure: Failure) {
        *self.failure.lock().unwrap() = failure;
    }

    fn syncs(&self) -> usize {
        self.syncs.load(Ordering::Relaxed)
    }
}

impl Shaky {
    fn now(&self, failure: Failure) -> std::io::Result<()> {
        if *self.control.failure.lock().unwrap() == failure {
            Err(std::io::Error::other("shaky"))
        } else {
            Ok(())
        }
    }
}

impl StorageBackend for Shaky {
    fn len(&self) -> std::io::Result<u64> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.file.set_len(len)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.control.syncs.fetch_add(1, Ordering::Relaxed);
        self.file.sync_data()?;
        self.now(Failure::AfterSync)
    }
    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.now(Failure::BeforeWrite)?;
        self.file.write(offset, data)
    }
    fn close(&self) -> std::io::Result<()> {
        self.file.close()
    }
}

fn shaky(path: &Path) -> (Store, Arc<Control>) {
    drop(Store::open(path).unwrap());
    let control = Arc::new(Control { failure: Mutex::new(Failure::None), syncs: AtomicUsize::new(0) });
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let backend = Shaky { file: FileBackend::new(file).unwrap(), control: Arc::clone(&control) };
    let database = redb::Database::builder().create_with_backend(backend).unwrap();
    (Store::over(Disk::over(path, database).unwrap()), control)
}

#[test]
fn a_revision_that_was_tried_is_never_used_again() {
    for (failure, landed) in [(Failure::AfterSync, true), (Failure::BeforeWrite, false)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (store, file) = shaky(&path);
        assert_eq!(put(&store, "a", "1"), 1);
        file.set(failure);
        let key = Key::new("r", "n", "b");
        let lost = |_: Option<&Arc<Object>>, _: &Store| {
            Ok::<_, ()>(Change::Put(json!({"metadata": {}, "text": "?"})))
        };
        assert!(matches!(store.write(&key, lost), Err(WriteError::Disk(_))), "{failure:?}");
        assert_eq!((store.revision(), store.get(&key).is_some()), (1, false), "nothing was acknowledged");
        file.set(Failure::None);
        assert_eq!(put(&store, "c", "1"), 3, "{failure:?}: 2 was tried");
        assert_eq!(store.get(&key).map(|object| object.revision), landed.then_some(2), "{failure:?}");
        let events: Vec<_> =
            store.events("r", None, 1).unwrap().1.iter().map(|event| event.object.revision).collect();
        assert_eq!(events, if landed { vec![2, 3] } else { vec![3] }, "{failure:?}");
        let names = texts(&store.list("r", None));
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(
            (store.revision(), texts(&store.list("r", None))),
            (3, names),
            "{failure:?}: memory matches the disk"
        );
    }
}

#[test]
fn the_check_fails_from_a_failed_write_to_the_next_that_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (dir.path().join("store"), dir.path().join("elsewhere"));
    let (store, file) = shaky(&path);
    put(&store, "a", "1");
    assert!(store.check().is_ok());
    file.set(Failure::BeforeWrite);
    let lost = |_: Option<&Arc<Object>>, _: &Store| Ok::<_, ()>(Change::Put(json!({"metadata": {}})));
    assert!(store.write(&Key::new("r", "n", "b"), lost).is_err());
    std::fs::rename(&path, &elsewhere).unwrap();
    for attempt in ["tried", "remembered"] {
        let error = store.check().expect_err(attempt);
        assert!(matches!(*error, DiskError::File { .. }), "{attempt}: {error:?}");
    }
    std::fs::rename(&elsewhere, &path).unwrap();
    put(&store, "c", "1");
    assert!(store.check().is_ok());
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
