use vireo_apiserver::store::Key as StoreKey;

use super::*;

const UID: &str = "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1";

fn world(more: Value) -> (tempfile::TempDir, Arc<Store>, StoreKey) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&dir.path().join("store")).unwrap());
    place::prepare(&store, "node1").unwrap();
    let mut value = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "x", "namespace": "default", "uid": UID, "finalizers": [VMI_FINALIZER],
            "labels": {NODE_LABEL: "node1"}},
        "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}, "status": {"phase": "Pending"}});
    json_patch::merge(&mut value, &more);
    let key = place::vmis().key("default", "x");
    store.write(&key, |_, _| Ok::<_, ()>(Change::Put(value))).unwrap();
    (dir, store, key)
}

fn wanted(store: &Arc<Store>) -> Option<&'static str> {
    let catalog = Vmis::of(Arc::clone(store), "node1").catalog(&BTreeMap::new());
    let name = Key { namespace: "default".to_owned(), name: "x".to_owned() };
    catalog.entries.get(&name).map(|entry| match entry {
        Entry::Present { origin: Origin::Object(uid), .. } if uid.to_string() == UID => "present",
        Entry::Present { .. } => "another",
        Entry::Held => "held",
    })
}

#[test]
fn objects_are_wanted_until_they_leave_and_the_ended_never_start() {
    let (_dir, store, _) = world(json!({}));
    assert_eq!(wanted(&store), Some("present"));
    let (_dir, store, _) = world(json!({"status": {"phase": "Succeeded"}}));
    assert_eq!(wanted(&store), Some("held"));
    let (_dir, store, _) = world(json!({"spec": {"domain": {"memory": null}}}));
    assert_eq!(wanted(&store), Some("held"), "an older release may have accepted it");
    for labels in [json!(null), json!({NODE_LABEL: "node2"})] {
        let (_dir, store, _) = world(json!({"metadata": {"labels": labels}}));
        assert_eq!(wanted(&store), Some("held"), "it is not bound to this node");
    }
    let (_dir, store, _) = world(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(wanted(&store), None);
}

#[test]
fn the_machine_of_an_object_that_cannot_be_read_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let key = place::vmis().key("default", "x");
    let store = crate::tests::with_unreadable(dir.path(), std::slice::from_ref(&key));
    place::prepare(&store, "node1").unwrap();
    let store = Arc::new(store);
    assert_eq!(wanted(&store), Some("held"));
    let fresh =
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {}, "spec": {}});
    let refused = place::create(&store, place::vmis(), &key, fresh, |_| {}).unwrap();
    assert!(refused.is_some_and(|why| why.ends_with("is there and cannot be read")));
}

#[tokio::test]
async fn an_object_is_let_go_of_when_its_machine_is_gone() {
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let (_dir, store, key) = world(leaving);
    let mut vmis = Vmis::of(Arc::clone(&store), "node1");
    vmis.catalog(&BTreeMap::new());
    let revision = store.revision();
    vmis.settle(&|_| true);
    vmis.settle(&|_| false);
    let mut news = store.subscribe();
    while store.get(&key).is_some() {
        news.changed().await.unwrap();
    }
    assert_eq!(store.revision(), revision + 1);
}

#[test]
fn a_status_is_written_to_its_own_object_only() {
    let (_dir, store, key) = world(json!({}));
    let mut vmi: VirtualMachineInstance =
        serde_json::from_value(store.get(&key).unwrap().value.clone()).unwrap();
    vmi.status.phase = "Running".to_owned();
    vmi.status.node_name = "node1".to_owned();
    let mut other = vmi.clone();
    other.metadata.uid = Uuid::nil().to_string();
    write(&store, None, &other).unwrap();
    assert_eq!(store.get(&key).unwrap().value["status"]["phase"], "Pending");
    write(&store, None, &vmi).unwrap();
    let object = store.get(&key).unwrap();
    assert_eq!(object.value["status"]["phase"], "Running");
    let events = store.list("events", Some("default")).objects;
    assert_eq!(events[0].value["reason"], "Started");
    assert_eq!(events[0].value["involvedObject"]["uid"], UID);
}

#[tokio::test]
async fn whoever_waits_for_an_end_sees_one() {
    let both = json!([VMI_FINALIZER, "other"]);
    for (phase, expected, finalizers) in [
        ("Pending", "Failed", &both),
        ("Running", "Succeeded", &both),
        ("Failed", "Failed", &both),
        ("Pending", "Failed", &json!(["other"])),
    ] {
        let more = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers},
            "status": {"phase": phase}});
        let (_dir, store, key) = world(more);
        let mut vmis = Vmis::of(Arc::clone(&store), "node1");
        vmis.catalog(&BTreeMap::new());
        let mut news = store.subscribe();
        news.borrow_and_update();
        vmis.settle(&|_| false);
        news.changed().await.unwrap();
        let value = &store.get(&key).unwrap().value;
        assert_eq!(
            (&value["status"]["phase"], &value["metadata"]["finalizers"]),
            (&json!(expected), &json!(["other"]))
        );
    }
}
