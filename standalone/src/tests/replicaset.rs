//! The controller of replica sets, as virt-controller's user of a whole server.

use std::collections::BTreeSet;
use std::time::Duration;

use vireo_api::v1::REPLICA_SET_KIND;
use vireo_apiserver::meta;
use vireo_apiserver::store::Object;
use vireo_operators::Controllers;

use super::*;
use crate::place;
use crate::policy::VIRT_CONTROLLER;
use crate::run::client;

const SETS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstancereplicasets";
const SET: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstancereplicasets/web";
/// How long the controller may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A server with a set, which the controller keeps while this lives.
struct Controlled {
    world: World,
    _controller: tokio::task::JoinSet<()>,
}

impl Controlled {
    async fn new(replicas: i64) -> Self {
        let world = World::new();
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}});
        let set = json!({"apiVersion": "kubevirt.io/v1", "kind": REPLICA_SET_KIND, "metadata": {"name": "web"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
        let (code, made) = world.ask("POST", SETS, set).await;
        assert_eq!(code, 201, "{made}");
        let mut controllers = tokio::task::JoinSet::new();
        let all = Controllers::new(&client(&world.server, VIRT_CONTROLLER, "virt-controller"));
        controllers.spawn(async move { all.run().await });
        Self { world, _controller: controllers }
    }

    /// Waits until something holds after a write.
    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let mut revisions = self.world.server.store.subscribe();
        let waiting = async {
            while !holds() {
                revisions.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(LIMIT, waiting).await;
        assert!(waited.is_ok(), "{what}: {} with {:?}", self.status(), self.names());
    }

    /// Waits until so many instances are there and counted.
    async fn counts(&self, number: usize) {
        let counted = || self.status()["replicas"].as_u64() == Some(number as u64);
        self.until(&format!("{number} instances"), || self.instances().len() == number && counted()).await;
    }

    /// Those that are not on their way out.
    fn instances(&self) -> Vec<Arc<Object>> {
        let all = self.world.server.store.list(&place::vmis().name(), Some("default")).objects;
        all.into_iter().filter(|object| !meta::is_leaving(&object.value)).collect()
    }

    fn names(&self) -> BTreeSet<String> {
        self.instances().iter().map(|one| one.key.name.clone()).collect()
    }

    fn status(&self) -> Value {
        let set = self.world.server.store.get(&place::replica_sets().key("default", "web"));
        set.unwrap().value["status"].clone()
    }

    fn change(&self, instance: &Object, change: impl Fn(&mut Value)) {
        let changed = place::change(&self.world.server.store, instance, |value| {
            change(value);
            true
        });
        changed.unwrap();
    }

    fn reasons(&self) -> BTreeSet<String> {
        let events = self.world.server.store.list("events", None).objects;
        events.iter().filter_map(|event| Some(event.value["reason"].as_str()?.to_owned())).collect()
    }
}

#[tokio::test]
async fn a_set_is_scaled_healed_and_adopts() {
    let set = Controlled::new(2).await;
    set.counts(2).await;
    let first = set.instances();
    let owner = &first[0].value["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["controller"]), (&json!(REPLICA_SET_KIND), &json!(true)));
    assert!(first.iter().all(|one| one.key.name.starts_with("web")), "{:?}", set.names());

    // An instance that ends is replaced.
    set.change(&first[0], |value| value["status"]["phase"] = json!("Succeeded"));
    set.until("a new instance", || set.names().len() == 2 && !set.names().contains(&first[0].key.name)).await;

    // One that is ready is counted, and goes last.
    let ready = set.instances()[1].clone();
    set.change(&ready, |value| {
        value["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    });
    set.until("a ready instance", || set.status()["readyReplicas"] == 1).await;

    // One that lost its owner is adopted.
    set.change(&ready, |value| {
        meta::of(value).remove("ownerReferences");
    });
    let adopted = || {
        let owned = |one: &Arc<Object>| one.value["metadata"]["ownerReferences"][0]["uid"].is_string();
        set.instances().iter().all(owned)
    };
    set.until("the orphan is adopted", adopted).await;
    set.counts(2).await;

    let scale = json!({"spec": {"replicas": 1}});
    let (code, scaled) = set.world.patch(&format!("{SET}/scale"), "merge", scale).await;
    assert_eq!(code, 200, "{scaled}");
    set.counts(1).await;
    assert_eq!(set.names(), BTreeSet::from([ready.key.name.clone()]));
    let none = set.world.patch(SET, "merge", json!({"spec": {"replicas": 0}})).await;
    assert_eq!(none.0, 200);
    set.counts(0).await;
    let reasons = ["SuccessfulCreate", "SuccessfulDelete"].map(str::to_owned);
    assert_eq!(set.reasons(), BTreeSet::from(reasons));
}

#[tokio::test]
async fn many_instances_are_made_once() {
    let set = Controlled::new(60).await;
    set.counts(60).await;
    assert_eq!(set.world.patch(SET, "merge", json!({"spec": {"replicas": 7}})).await.0, 200);
    set.counts(7).await;
    let all = set.world.server.store.list(&place::vmis().name(), Some("default")).objects;
    assert_eq!(all.len(), 60, "none was made twice: those that leave are held by their finalizers");
}

#[tokio::test]
async fn an_instance_that_cannot_be_created_is_an_event_and_tried_again() {
    let set = Controlled::new(0).await;
    set.counts(0).await;
    // As where an administrator takes a right away.
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kubevirt-controller";
    let (_, before) = set.world.ask("GET", role, Value::Null).await;
    let rules = |verbs: Value| {
        let mut rules = before["rules"].clone();
        for rule in rules.as_array_mut().unwrap() {
            if rule["resources"] == json!(["virtualmachineinstances"]) {
                rule["verbs"] = verbs.clone();
            }
        }
        json!({ "rules": rules })
    };
    assert_eq!(set.world.patch(role, "merge", rules(json!(["list", "watch"]))).await.0, 200);
    assert_eq!(set.world.patch(SET, "merge", json!({"spec": {"replicas": 1}})).await.0, 200);
    set.until("a failure", || set.status()["conditions"][0]["type"] == "ReplicaFailure").await;
    let why = set.status()["conditions"][0]["message"].as_str().unwrap().to_owned();
    assert!(why.contains("cannot create resource \"virtualmachineinstances\""), "{why}");
    assert!(set.reasons().contains("FailedCreate"));
    assert_eq!(set.world.patch(role, "merge", json!({"rules": before["rules"]})).await.0, 200);
    set.counts(1).await;
    set.until("no failure", || set.status().get("conditions").is_none()).await;
}

#[tokio::test]
async fn a_paused_set_is_left_alone() {
    let set = Controlled::new(1).await;
    set.counts(1).await;
    let pause = json!({"spec": {"paused": true, "replicas": 3}});
    assert_eq!(set.world.patch(SET, "merge", pause).await.0, 200);
    set.until("it is paused", || set.reasons().contains("SuccessfulPaused")).await;
    assert_eq!(
        (set.status()["conditions"][0]["type"].clone(), set.names().len()),
        (json!("ReplicaPaused"), 1)
    );
    assert_eq!(set.world.patch(SET, "merge", json!({"spec": {"paused": false}})).await.0, 200);
    set.counts(3).await;
    assert!(set.reasons().contains("SuccessfulResumed"));
}
