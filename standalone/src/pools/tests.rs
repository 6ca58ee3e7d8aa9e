use std::convert::Infallible;

use serde_json::json;
use vireo_apiserver::controller::Rounds;
use vireo_apiserver::store::Change;

use super::*;
use crate::tests::Settle as _;

struct World {
    _dir: tempfile::TempDir,
    store: Store,
    rounds: Rounds<Pools>,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        place::prepare(&store, "node1").unwrap();
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"runStrategy": "Halted",
            "template": {"spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}}}});
        let mut value = json!({"apiVersion": "pool.kubevirt.io/v1beta1", "kind": POOL_KIND, "metadata": {},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "virtualMachineTemplate": template}});
        meta::create(&mut value, "default", "web");
        assert_eq!((place::pools().admit)(&mut value, None), []);
        store.write(&key(), |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
        Self { _dir: dir, store, rounds: Rounds::of(Pools::default()) }
    }

    fn settle(&mut self) {
        self.rounds.settle(&self.store);
    }

    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Value)) {
        place::change(&self.store, &self.store.get(key).unwrap(), |value| {
            let before = value.clone();
            change(value);
            meta::count_generation(value, &before);
            true
        })
        .unwrap();
        self.settle();
    }

    fn names(&self, resource: &str) -> Vec<String> {
        self.store.list(resource, Some("default")).objects.iter().map(|one| one.key.name.clone()).collect()
    }

    fn machines(&self) -> Vec<String> {
        self.names("virtualmachines.kubevirt.io")
    }

    fn reasons(&self) -> BTreeSet<String> {
        let events = self.store.list("events", None).objects;
        events.iter().filter_map(|event| event.value["reason"].as_str().map(str::to_owned)).collect()
    }
}

fn key() -> Key {
    place::pools().key("default", "web")
}

#[test]
fn a_pool_keeps_its_machines_and_their_template() {
    let mut world = World::new();
    world.settle();
    assert_eq!(world.machines(), ["web-0", "web-1"]);
    assert_eq!(world.names("controllerrevisions.apps"), ["web-1"]);
    let first = place::vms().key("default", "web-0");
    let uid = meta::text(&world.store.get(&first).unwrap().value, "uid").to_owned();

    world.change(&key(), |pool| {
        pool["spec"]["virtualMachineTemplate"]["spec"]["template"]["spec"]["domain"]["memory"]["guest"] =
            json!("128Mi");
    });
    let machine = world.store.get(&first).unwrap().value.clone();
    assert_eq!(machine["spec"]["template"]["spec"]["domain"]["memory"]["guest"], "128Mi");
    assert_eq!((meta::text(&machine, "uid"), &machine["metadata"]["generation"]), (uid.as_str(), &json!(2)));
    assert_eq!(machine["metadata"]["labels"][pool::REVISION_LABEL], "web-2");
    assert_eq!(world.names("controllerrevisions.apps"), ["web-2"], "nothing is left of the first");

    // A machine that is taken from the pool is its own, and another takes its place.
    world.change(&first, |machine| {
        meta::of(machine).remove("ownerReferences");
    });
    assert_eq!(world.machines(), ["web-0", "web-1", "web-2"]);
    world.change(&key(), |pool| pool["spec"]["replicas"] = json!(0));
    assert_eq!(world.machines(), ["web-0"]);
    let status = &world.store.get(&key()).unwrap().value["status"];
    assert_eq!((&status["replicas"], &status["labelSelector"]), (&json!(0), &json!("app=web")));
    let expected = ["SuccessfulCreate", "SuccessfulDelete", "SuccessfulUpdate"].map(str::to_owned);
    assert_eq!(world.reasons(), BTreeSet::from(expected));
}

#[test]
fn what_cannot_be_created_is_told_and_tried_again() {
    let mut world = World::new();
    // The pool's admission cannot know which instance types there will be.
    world.change(&key(), |pool| {
        pool["spec"]["virtualMachineTemplate"]["spec"]["instancetype"] = json!({"name": "none"});
    });
    let status = &world.store.get(&key()).unwrap().value["status"];
    assert_eq!(status["conditions"][0]["reason"], "FailedScaleOut");
    assert!(world.machines().is_empty() && world.rounds.due_at(&key()).is_some());
    assert!(world.reasons().contains("FailedCreate"));
    world.change(&key(), |pool| {
        let spec = &mut pool["spec"]["virtualMachineTemplate"]["spec"];
        spec.as_object_mut().unwrap().remove("instancetype");
    });
    assert_eq!(world.machines().len(), 2);
    assert!(world.store.get(&key()).unwrap().value["status"].get("conditions").is_none());
}
