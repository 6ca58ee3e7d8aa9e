//! Which instances this node takes; what it does not take is told why.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::{Value, json};
use vireo_api::v1::{VMI_KIND, VirtualMachineInstance};
use vireo_handler::reconcile::status::Phase;
use vireo_operators::placement::{Node, misfit};

use crate::machines::told::{About, Event, write as tell};
use crate::rounds::{self, Controller};
use crate::store::{DiskError, Follower, Key, News, Object, Store};
use crate::{meta, place};

const CONDITION: &str = "PodScheduled";

/// A node as placement looks at it; absent where there is none.
pub(crate) fn node(store: &Store, name: &str) -> Option<Node> {
    Node::deserialize(&store.get(&place::nodes().key("", name))?.value).ok()
}

/// Why an instance cannot be on the node now; absent where it can, or is.
pub(crate) fn refusal(node: Option<&Node>, instance: &Value) -> Option<String> {
    let text = |path: &str| instance.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let begun = matches!(Phase::parse(text("/status/phase")), Phase::Scheduled | Phase::Running);
    if begun || !text("/status/nodeName").is_empty() {
        return None;
    }
    misfit(&VirtualMachineInstance::deserialize(instance).ok()?, node)
}

/// Tells those that are not placed.
#[derive(Debug)]
struct Placement {
    follower: Follower,
    node: String,
    /// Instances that wait for a place.
    waiting: BTreeSet<Key>,
}

/// Tells until the store is gone.
pub async fn run(store: Arc<Store>, node: &str) {
    rounds::control(store, || Placement::on(node)).await;
}

impl Placement {
    fn on(node: &str) -> Self {
        Self { follower: Follower::default(), node: node.to_owned(), waiting: BTreeSet::new() }
    }
}

impl Controller for Placement {
    const WHOSE: &'static str = "VirtualMachineInstances without a place";

    fn changed(&mut self, store: &Store) -> BTreeSet<Key> {
        let (instances, nodes) = (place::vmis().name(), place::nodes().name());
        let News::These(events) = self.follower.look(store) else {
            return store.list(&instances, None).objects.iter().map(|object| object.key.clone()).collect();
        };
        let mut keys = BTreeSet::new();
        for event in events {
            if event.key.resource == instances {
                keys.insert(event.key.clone());
            } else if event.key.resource == nodes {
                keys.extend(self.waiting.iter().cloned());
            }
        }
        keys
    }

    fn control(
        &mut self,
        store: &Store,
        object: &Arc<Object>,
        _: Timestamp,
    ) -> Result<Option<Timestamp>, DiskError> {
        let ended = |value: &Value| {
            let phase = value.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
            meta::is_leaving(value) || Phase::parse(phase).is_final()
        };
        let node = node(store, &self.node);
        let why = |value: &Value| match ended(value) {
            true => None,
            false => refusal(node.as_ref(), value),
        };
        let Some(told) = why(&object.value) else {
            self.waiting.remove(&object.key);
            return Ok(None);
        };
        self.waiting.insert(object.key.clone());
        let mut is_news = false;
        place::change(store, object, |value| {
            is_news = why(value).as_ref() == Some(&told) && note(value, &told);
            true
        })?;
        if is_news && let Ok(instance) = VirtualMachineInstance::deserialize(&object.value) {
            let about = About {
                kind: VMI_KIND,
                metadata: &instance.metadata,
                component: "default-scheduler",
                host: "",
            };
            tell(store, &about, &Event::new(true, "FailedScheduling", told))?;
        }
        Ok(None)
    }

    fn forget(&mut self, key: &Key) {
        self.waiting.remove(key);
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
    use super::*;
    use crate::rounds::Rounds;
    use crate::store::Change;

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
        assert_eq!(refusal(node(&store, "node1").as_ref(), &store.get(&key).unwrap().value), None);
        change(&|node| node["spec"]["unschedulable"] = json!(true));
        let mut placed = store.get(&key).unwrap().value.clone();
        assert!(refusal(node(&store, "node1").as_ref(), &placed).is_some());
        placed["status"]["nodeName"] = json!("node1");
        assert_eq!(refusal(node(&store, "node1").as_ref(), &placed), None, "what is placed stays");
    }
}
