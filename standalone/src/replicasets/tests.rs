use std::convert::Infallible;

use vireo_apiserver::controller::Rounds;
use vireo_apiserver::store::Change;

use super::*;
use crate::tests::Settle as _;

struct World {
    _dir: tempfile::TempDir,
    store: Store,
    rounds: Rounds<ReplicaSets>,
}

impl World {
    fn new(replicas: i64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        place::prepare(&store, "node1").unwrap();
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}});
        let mut value = json!({"apiVersion": "kubevirt.io/v1", "kind": REPLICA_SET_KIND, "metadata": {},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
        meta::create(&mut value, "default", "web");
        assert_eq!((place::replica_sets().admit)(&mut value, None), []);
        store.write(&key(), |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
        Self { _dir: dir, store, rounds: Rounds::of(ReplicaSets::default()) }
    }

    fn settle(&mut self) {
        self.rounds.settle(&self.store);
    }

    fn change(&self, change: impl FnOnce(&mut Value)) {
        place::change(&self.store, &self.store.get(&key()).unwrap(), |value| {
            change(value);
            true
        })
        .unwrap();
    }

    /// Those that are not on their way out.
    fn instances(&self) -> Vec<Arc<Object>> {
        let all = self.store.list(&place::vmis().name(), Some("default")).objects;
        all.into_iter().filter(|object| !meta::is_leaving(&object.value)).collect()
    }

    fn status(&self) -> Value {
        self.store.get(&key()).unwrap().value["status"].clone()
    }
}

fn key() -> Key {
    place::replica_sets().key("default", "web")
}

#[test]
fn a_set_is_scaled_healed_and_adopts() {
    let mut world = World::new(2);
    world.settle();
    let first = world.instances();
    assert_eq!((first.len(), &world.status()["replicas"]), (2, &json!(2)));
    assert!(first[0].key.name.starts_with("web") && first[0].key.name != first[1].key.name);
    assert_eq!(first[0].value["metadata"]["ownerReferences"][0]["kind"], REPLICA_SET_KIND);

    place::change(&world.store, &first[0], |value| {
        value["status"]["phase"] = json!("Succeeded");
        true
    })
    .unwrap();
    world.settle();
    let healed = world.instances();
    assert_eq!(healed.len(), 2);
    assert!(healed.iter().all(|one| one.key != first[0].key), "the one that ended is replaced");

    // One that nobody owns any more comes back, and is one too many for a set of two with another.
    place::change(&world.store, &healed[0], |value| {
        meta::of(value).remove("ownerReferences");
        true
    })
    .unwrap();
    world.settle();
    let adopted = world.instances();
    assert_eq!(adopted.len(), 2);
    assert!(adopted.iter().all(|one| one.value["metadata"]["ownerReferences"][0]["uid"].is_string()));

    world.change(|value| value["spec"]["replicas"] = json!(0));
    world.settle();
    assert_eq!((world.instances().len(), &world.status()["replicas"]), (0, &json!(0)));
    let events = world.store.list("events", None).objects;
    let reasons: BTreeSet<&str> = events.iter().filter_map(|event| event.value["reason"].as_str()).collect();
    assert_eq!(reasons, BTreeSet::from(["SuccessfulCreate", "SuccessfulDelete"]));
}

#[test]
fn what_cannot_be_created_is_told_and_tried_again() {
    let mut world = World::new(1);
    // As if another release had let it in.
    world.change(|value| value["spec"]["template"]["spec"]["domain"] = json!({"devices": {}}));
    world.settle();
    assert_eq!(world.status()["conditions"][0]["type"], "ReplicaFailure");
    assert!(world.rounds.due_at(&key()).is_some());
    world.change(|value| value["spec"]["template"]["spec"]["domain"]["memory"] = json!({"guest": "64Mi"}));
    world.settle();
    assert_eq!((world.instances().len(), world.status()["conditions"].as_array()), (1, None));
}
