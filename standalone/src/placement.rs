//! Which instances this node takes; what it does not take is told why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::{Value, json};
use vireo_api::v1::{VMI_KIND, VirtualMachineInstance};
use vireo_apiserver::controller::{self, Controller};
use vireo_apiserver::meta;
use vireo_apiserver::store::{Changes, DiskError, Follower, Key, Object, Store};
use vireo_handler::reconcile::status::Phase;
use vireo_operators::placement::{Node, Room, Waiting, refuse};

use crate::machines::told::{About, Event, write as tell};
use crate::place;

const CONDITION: &str = "PodScheduled";

/// A node as placement looks at it; absent where there is none.
pub(crate) fn node(store: &Store, name: &str) -> Option<Node> {
    Node::deserialize(&store.get(&place::nodes().key("", name))?.value).ok()
}

/// Who cannot be on the node now, by UID, and why. Those that are `taken` are on it and have not said so yet.
pub(crate) fn refusals(
    node: Option<&Node>,
    instances: &[Arc<Object>],
    taken: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let (mut placed, mut waiting) = (Vec::new(), Vec::new());
    for object in instances {
        let instance = &object.value;
        if phase(instance).is_final() {
            continue;
        }
        let asks = Room::asked(instance);
        if is_placed(instance) || taken(meta::text(instance, "uid")) {
            placed.push(asks);
        } else if !meta::is_leaving(instance)
            && let Ok(instance) = VirtualMachineInstance::deserialize(instance)
        {
            waiting.push(Waiting { instance, asks });
        }
    }
    refuse(node, placed, waiting)
}

fn phase(instance: &Value) -> Phase {
    Phase::parse(instance.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default())
}

/// Whether an instance has its place, and keeps it.
fn is_placed(instance: &Value) -> bool {
    let node = instance.pointer("/status/nodeName").and_then(Value::as_str).unwrap_or_default();
    matches!(phase(instance), Phase::Scheduled | Phase::Running) || !node.is_empty()
}

/// Tells those that are not placed.
#[derive(Debug)]
struct Placement {
    follower: Follower,
    node: String,
    /// Instances that wait for a place, and why.
    refused: BTreeMap<Key, String>,
}

/// Tells until the store is gone.
pub async fn run(store: Arc<Store>, node: &str) {
    controller::control(store, || Placement::on(node)).await;
}

impl Placement {
    fn on(node: &str) -> Self {
        Self { follower: Follower::default(), node: node.to_owned(), refused: BTreeMap::new() }
    }
}

impl Controller for Placement {
    const NAME: &'static str = "VirtualMachineInstances without a place";

    /// What one takes, another may lack: all are looked at together.
    fn changed(&mut self, store: &Store) -> BTreeSet<Key> {
        let (instances, nodes) = (place::vmis().name(), place::nodes().name());
        let mut written = BTreeSet::new();
        if let Changes::Delta(events) = self.follower.look(store) {
            let concerns = events.iter().filter(|event| [&instances, &nodes].contains(&&event.key.resource));
            written.extend(concerns.map(|event| event.key.clone()));
            if written.is_empty() {
                return written;
            }
        }
        let all = store.list(&instances, None).objects;
        let mut by_uid = refusals(node(store, &self.node).as_ref(), &all, |_| false);
        let why = |object: &Arc<Object>| {
            Some((object.key.clone(), by_uid.remove(meta::text(&object.value, "uid"))?))
        };
        let before = std::mem::replace(&mut self.refused, all.iter().filter_map(why).collect());
        let is_news = |(key, why): &(&Key, &String)| written.contains(*key) || before.get(*key) != Some(*why);
        self.refused.iter().filter(is_news).map(|(key, _)| key.clone()).collect()
    }

    fn control(
        &mut self,
        store: &Store,
        object: &Arc<Object>,
        _: Timestamp,
    ) -> Result<Option<Timestamp>, DiskError> {
        let Some(why) = self.refused.get(&object.key) else { return Ok(None) };
        let mut is_news = false;
        place::change(store, object, |value| {
            let waits = !is_placed(value) && !meta::is_leaving(value) && !phase(value).is_final();
            is_news = waits && note(value, why);
            true
        })?;
        if is_news && let Ok(instance) = VirtualMachineInstance::deserialize(&object.value) {
            let about = About {
                kind: VMI_KIND,
                metadata: &instance.metadata,
                component: "default-scheduler",
                host: "",
            };
            tell(store, &about, &Event::new(true, "FailedScheduling", why.clone()))?;
        }
        Ok(None)
    }

    fn forget(&mut self, key: &Key) {
        self.refused.remove(key);
    }
}

/// Says in an instance's status why it has no place; whether that is news.
fn note(instance: &mut Value, why: &str) -> bool {
    if !instance["status"].is_object() {
        instance["status"] = json!({});
    }
    let status = &mut instance["status"];
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let (has, mut others): (Vec<_>, Vec<_>) =
        conditions.into_iter().partition(|one| one.get("type").is_some_and(|kind| kind == CONDITION));
    if has.iter().any(|one| one.get("message").is_some_and(|message| message == why)) {
        return false;
    }
    let now = meta::now();
    others.push(json!({
        "type": CONDITION, "status": "False", "reason": "Unschedulable", "message": why,
        "lastProbeTime": null, "lastTransitionTime": now,
    }));
    status["conditions"] = json!(others);
    status["phase"] = json!(Phase::Scheduling.as_str());
    true
}

#[cfg(test)]
mod tests {
    use vireo_apiserver::controller::Rounds;
    use vireo_apiserver::store::Change;

    use super::*;
    use crate::tests::Settle as _;

    #[test]
    fn what_has_no_place_says_why_until_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        place::prepare(&store, "node1").unwrap();
        let mut value = json!({"apiVersion": "kubevirt.io/v1", "kind": VMI_KIND, "metadata": {},
            "spec": {"nodeSelector": {"disk": "ssd"}, "domain": {"devices": {}}}, "status": {"phase": "Pending"}});
        meta::create(&mut value, "default", "x");
        let key = place::vmis().key("default", "x");
        store.write(&key, |_, _| Ok::<_, ()>(Change::Put(value))).unwrap();
        let mut rounds = Rounds::of(Placement::on("node1"));
        rounds.settle(&store);
        let status = store.get(&key).unwrap().value["status"].clone();
        assert_eq!(
            (&status["phase"], &status["conditions"][0]["reason"]),
            (&json!("Scheduling"), &json!("Unschedulable"))
        );
        let events = store.list("events", None).objects;
        assert_eq!((events.len(), &events[0].value["reason"]), (1, &json!("FailedScheduling")));

        let change = |what: &dyn Fn(&mut Value)| {
            let node = store.get(&place::nodes().key("", "node1")).unwrap();
            place::change(&store, &node, |value| {
                what(value);
                true
            })
            .unwrap();
        };
        change(&|node| node["spec"]["unschedulable"] = json!(true));
        rounds.settle(&store);
        let told = store.get(&key).unwrap().value["status"]["conditions"][0]["message"].clone();
        assert!(told.as_str().unwrap().contains("unschedulable"), "{told}");
        change(&|node| {
            node["spec"]["unschedulable"] = json!(false);
            node["metadata"]["labels"]["disk"] = json!("ssd");
        });
        let refused = || {
            let all = store.list(&place::vmis().name(), None).objects;
            refusals(node(&store, "node1").as_ref(), &all, |_| false).len()
        };
        assert_eq!(refused(), 0);
        change(&|node| node["spec"]["unschedulable"] = json!(true));
        assert_eq!(refused(), 1);
        let waiting = store.get(&key).unwrap();
        place::change(&store, &waiting, |value| {
            value["status"]["nodeName"] = json!("node1");
            true
        })
        .unwrap();
        assert_eq!(refused(), 0, "what is placed stays");
    }

    #[test]
    fn room_is_made_by_who_goes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        place::prepare(&store, "node1").unwrap();
        let one = store.get(&place::nodes().key("", "node1")).unwrap();
        place::change(&store, &one, |value| {
            value["status"]["allocatable"] = json!({"memory": "512Mi", "cpu": "8"});
            true
        })
        .unwrap();
        let key = |name: &str| place::vmis().key("default", name);
        let put = |name: &str, status: Value| {
            let domain = json!({"memory": {"guest": "200Mi"}, "devices": {}});
            let mut value = json!({"apiVersion": "kubevirt.io/v1", "kind": VMI_KIND, "metadata": {},
                "spec": {"domain": domain}, "status": status});
            meta::create(&mut value, "default", name);
            store.write(&key(name), |_, _| Ok::<_, ()>(Change::Put(value))).unwrap();
        };
        put("first", json!({"phase": "Running", "nodeName": "node1"}));
        put("ended", json!({"phase": "Succeeded", "nodeName": "node1"}));
        put("second", json!({"phase": "Pending"}));
        let mut rounds = Rounds::of(Placement::on("node1"));
        rounds.settle(&store);
        let told = || store.get(&key("second")).unwrap().value["status"]["conditions"][0]["message"].clone();
        assert_eq!(told(), "0/1 nodes are available: 1 Insufficient memory.");
        let settled = store.revision();
        put("third", json!({"phase": "Pending"}));
        rounds.settle(&store);
        assert!(store.revision() > settled && rounds.controller.refused.len() == 2);
        let listed = || store.list(&place::vmis().name(), None).objects;
        let node = node(&store, "node1");
        let uid = |name: &str| meta::text(&store.get(&key(name)).unwrap().value, "uid").to_owned();
        place::remove(&store, &store.get(&key("first")).unwrap()).unwrap();
        let now = refusals(node.as_ref(), &listed(), |_| false);
        assert_eq!(now.keys().collect::<Vec<_>>(), [&uid("third")]);
        let now = refusals(node.as_ref(), &listed(), |taken| taken == uid("third"));
        assert_eq!(now.keys().collect::<Vec<_>>(), [&uid("second")], "who is taken has the room");
        rounds.settle(&store);
        assert!(!rounds.controller.refused.contains_key(&key("second")), "it only waits to be taken");
    }
}
