use super::*;

const OBJECTS: redb::TableDefinition<'_, &str, (u64, &[u8])> = redb::TableDefinition::new("objects");

/// Puts rows into the file of a store, as an earlier release might have.
fn put_rows(path: &Path, rows: &[(&str, u64, &str)]) {
    let database = redb::Database::open(path).unwrap();
    let writing = database.begin_write().unwrap();
    for (name, revision, json) in rows {
        let mut objects = writing.open_table(OBJECTS).unwrap();
        objects.insert(*name, (*revision, json.as_bytes())).unwrap();
    }
    writing.commit().unwrap();
}

#[test]
fn what_cannot_be_read_is_put_aside_and_the_rest_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let store = Store::open(&path).unwrap();
    put(&store, "a", "1");
    put(&store, "b", "2");
    drop(store);
    let deep = format!("{}{}", "{\"series\":".repeat(270), "1".to_owned() + &"}".repeat(270));
    let hardly = format!("{}{}", "[".repeat(125), "]".repeat(125));
    let hardly = format!("{{\"a\":{hardly}}}");
    put_rows(&path, &[("r\0n\0b", 2, &deep), ("s\0\0c", 3, "{\"metadata\":"), ("s\0\0d", 4, &hardly)]);
    for _ in 0..2 {
        let store = Store::open(&path).unwrap();
        assert_eq!(texts(&store.list("r", None)), BTreeMap::from([("a".to_owned(), "1".to_owned())]));
        let lost: Vec<Key> = store.unreadable().cloned().collect();
        assert_eq!(lost, [Key::new("r", "n", "b"), Key::new("s", "", "c"), Key::new("s", "", "d")]);
        assert!(store.is_unreadable(&lost[0]) && !store.is_unreadable(&Key::new("r", "n", "a")));
    }
    let put_aside = dir.path().join("unreadable/r/n/b/2.json");
    assert_eq!(std::fs::read_to_string(&put_aside).unwrap(), deep, "nothing is lost");
    let store = Store::open(&path).unwrap();
    put(&store, "b", "3");
    assert!(!store.is_unreadable(&Key::new("r", "n", "b")), "it was created again");
}

#[test]
fn what_cannot_be_put_aside_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let store = Store::open(&path).unwrap();
    put(&store, "a", "1");
    drop(store);
    put_rows(&path, &[("r\0n\0b", 2, "{")]);
    std::fs::write(dir.path().join("unreadable"), "a file in the way").unwrap();
    let store = Store::open(&path).unwrap();
    assert_eq!(store.list("r", None).objects.len(), 1);
    assert!(store.is_unreadable(&Key::new("r", "n", "b")));
    drop(store);
    std::fs::remove_file(dir.path().join("unreadable")).unwrap();
    drop(Store::open(&path).unwrap());
    assert_eq!(std::fs::read(dir.path().join("unreadable/r/n/b/2.json")).unwrap(), b"{");
}
