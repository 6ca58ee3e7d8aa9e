//! Whether a node takes an instance: what a scheduler filters by, for the one node there is.

pub mod controller;
mod room;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use vireo_api::v1::{
    Affinity, NodeSelectorRequirement, ObjectMeta, Quantity, Toleration, VirtualMachineInstance,
};

use crate::selector::requirement_holds;

pub use room::Room;

/// Taint that a node stands for while it takes nothing new.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// What matters of a core `Node`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name and labels.
    pub metadata: ObjectMeta,
    /// What keeps instances away.
    pub spec: NodeSpec,
    /// What it has.
    pub status: NodeStatus,
}

/// What was observed of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Resources that instances may take.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// What is wanted of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// `kubectl cordon`.
    pub unschedulable: bool,
    /// `kubectl taint`. What is none keeps nobody away.
    pub taints: Vec<serde_json::Value>,
}

/// Something that only some instances put up with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
    value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    effect: String,
}

/// An instance that has no place.
#[derive(Debug)]
pub struct Waiting {
    /// What it is.
    pub instance: VirtualMachineInstance,
    /// What it takes.
    pub asks: Room,
}

/// Whom a node does not take, by UID, and why, in the words of kube-scheduler. It has the instances that take `placed`
/// already, which are not asked about again. Who waits longest has the first choice; who asks for less may pass by.
pub fn refuse(
    node: Option<&Node>,
    placed: impl IntoIterator<Item = Room>,
    mut waiting: Vec<Waiting>,
) -> BTreeMap<String, String> {
    let order = |one: &Waiting| {
        let ObjectMeta { creation_timestamp, namespace, name, .. } = &one.instance.metadata;
        (creation_timestamp.clone(), namespace.clone(), name.clone())
    };
    waiting.sort_by_cached_key(order);
    let all = node.map_or(Room { memory: 0, cpu: 0 }, |node| Room::of(&node.status.allocatable));
    let mut free = placed.into_iter().fold(all, Room::without);
    let mut refused = BTreeMap::new();
    for Waiting { instance, asks } in waiting {
        match misfit(&instance, node, free.lacks(asks)) {
            None => free = free.without(asks),
            Some(why) => drop(refused.insert(instance.metadata.uid, why)),
        }
    }
    refused
}

/// Why an instance cannot be placed; absent where the node takes it.
fn misfit(instance: &VirtualMachineInstance, node: Option<&Node>, lacks: Vec<&str>) -> Option<String> {
    let Some(node) = node else { return Some("no nodes available to schedule pods".to_owned()) };
    let spec = &instance.spec;
    let taints: Vec<Taint> = read(&node.spec.taints);
    let tolerated = |taint: &Taint| spec.tolerations.iter().any(|one| covers(one, taint));
    let cordon = Taint { key: UNSCHEDULABLE.into(), effect: "NoSchedule".into(), ..Taint::default() };
    let repels = |taint: &&Taint| ["NoSchedule", "NoExecute"].contains(&&*taint.effect) && !tolerated(taint);
    let why = if node.spec.unschedulable && !tolerated(&cordon) {
        "node(s) were unschedulable".to_owned()
    } else if let Some(taint) = taints.iter().find(repels) {
        format!("node(s) had untolerated taint {{{}: {}}}", taint.key, taint.value)
    } else if !selected(&spec.node_selector, &node.metadata)
        || !wanted(spec.affinity.as_ref(), &node.metadata)
    {
        "node(s) didn't match Pod's node affinity/selector".to_owned()
    } else if lacks.is_empty() {
        return None;
    } else {
        lacks.join(", 1 ")
    };
    Some(format!("0/1 nodes are available: 1 {why}."))
}

/// Those that can be read.
fn read<T: DeserializeOwned>(list: &[serde_json::Value]) -> Vec<T> {
    list.iter().filter_map(|one| T::deserialize(one).ok()).collect()
}

/// An empty key with `Exists` covers everything, an empty effect every effect.
fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let exists = toleration.operator == "Exists";
    let key = toleration.key == taint.key || (toleration.key.is_empty() && exists);
    let value = match toleration.operator.as_str() {
        "Exists" => true,
        "" | "Equal" => toleration.value == taint.value,
        _ => false,
    };
    effect && key && value
}

fn selected(selector: &BTreeMap<String, String>, node: &ObjectMeta) -> bool {
    selector.iter().all(|(name, value)| node.labels.get(name) == Some(value))
}

/// Whether one of the terms of a required node affinity holds.
fn wanted(affinity: Option<&Affinity>, node: &ObjectMeta) -> bool {
    let nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = nodes.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
    let Some(required) = required else { return true };
    let fields = BTreeMap::from([("metadata.name".to_owned(), node.name.clone())]);
    required.node_selector_terms.iter().any(|term| {
        let says_something = !term.match_expressions.is_empty() || !term.match_fields.is_empty();
        says_something
            && term.match_expressions.iter().all(|demand| holds_of_nodes(demand, &node.labels))
            && term.match_fields.iter().all(|NodeSelectorRequirement { key, operator, values, .. }| {
                requirement_holds((key, operator, values), &fields)
            })
    })
}

/// Nodes are also chosen by numbers.
fn holds_of_nodes(demand: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let compared = || {
        let has: i64 = labels.get(&demand.key)?.parse().ok()?;
        let [bound] = demand.values.as_slice() else { return None };
        Some(has.cmp(&bound.parse().ok()?))
    };
    match demand.operator.as_str() {
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        operator => requirement_holds((&demand.key, operator, &demand.values), labels),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn why(node: Value, spec: Value) -> Option<String> {
        let mut all =
            json!({"metadata": {"name": "one", "labels": {"disk": "ssd", "cores": "8"}}, "spec": node});
        all["apiVersion"] = json!("v1");
        let node: Node = serde_json::from_value(all).unwrap();
        let instance = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        misfit(&instance, Some(&node), Vec::new())
    }

    /// Instances that ask for so much, created at that time, on a node of 1000 bytes and two processors.
    fn refused(placed: &[(u64, u64)], waiting: &[(&str, &str, (u64, u64))]) -> Vec<(String, String)> {
        let node = json!({"status": {"allocatable": {"memory": "1000", "cpu": "2"}}});
        let node: Node = serde_json::from_value(node).unwrap();
        let room = |(memory, cpu): (u64, u64)| Room { memory, cpu };
        let waits = |(uid, time, asks): &(&str, &str, (u64, u64))| {
            let metadata = json!({"name": uid, "uid": uid, "creationTimestamp": time});
            let instance = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            Waiting { instance, asks: room(*asks) }
        };
        let waiting = waiting.iter().map(waits).collect();
        refuse(Some(&node), placed.iter().copied().map(room), waiting).into_iter().collect()
    }

    #[test]
    fn who_was_there_first_has_room_first() {
        let told = |uid: &str, lacks: &str| {
            (uid.to_owned(), format!("0/1 nodes are available: 1 Insufficient {lacks}."))
        };
        for (placed, waiting, expected) in [
            (vec![], vec![("a", "1", (1000, 2000))], vec![]),
            (vec![], vec![("a", "1", (1001, 100))], vec![told("a", "memory")]),
            (vec![], vec![("a", "1", (1, 2001))], vec![told("a", "cpu")]),
            (vec![(900, 1950)], vec![("a", "1", (101, 51))], vec![told("a", "cpu, 1 Insufficient memory")]),
            // The older one, whatever its name.
            (vec![], vec![("a", "2", (600, 1)), ("b", "1", (600, 1))], vec![told("a", "memory")]),
            (vec![], vec![("b", "1", (600, 1)), ("a", "1", (600, 1))], vec![told("b", "memory")]),
            // What does not fit does not stand in the way of what does.
            (vec![(500, 0)], vec![("a", "1", (600, 1)), ("b", "2", (500, 1))], vec![told("a", "memory")]),
            // More than there is may be placed already, and stays.
            (vec![(2000, 9000)], vec![("a", "1", (1, 0))], vec![told("a", "memory")]),
            (vec![(2000, 9000)], vec![("a", "1", (0, 0))], vec![]),
        ] {
            assert_eq!(refused(&placed, &waiting), expected, "{placed:?} {waiting:?}");
        }
    }

    #[test]
    fn a_cordon_and_a_taint_keep_away_what_does_not_tolerate_them() {
        let cordoned = json!({"unschedulable": true});
        let told = why(cordoned.clone(), json!({}));
        assert_eq!(told.as_deref(), Some("0/1 nodes are available: 1 node(s) were unschedulable."));
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"key": UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"}),
        ] {
            assert_eq!(why(cordoned.clone(), json!({"tolerations": [toleration]})), None);
        }
        let taint = |effect: &str| json!({"taints": [{"key": "gpu", "value": "a", "effect": effect}]});
        let told = why(taint("NoExecute"), json!({})).unwrap();
        assert_eq!(told, "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: a}.");
        assert_eq!(why(taint("PreferNoSchedule"), json!({})), None);
        let nonsense = json!({"unschedulable": true, "taints": [1, {"key": "gpu"}]});
        assert!(
            why(nonsense, json!({})).is_some_and(|told| told.contains("unschedulable")),
            "and nothing more"
        );
        for (toleration, covers) in [
            (json!({"key": "gpu", "value": "a"}), true),
            (json!({"key": "gpu", "value": "b"}), false),
            (json!({"key": "gpu", "operator": "Exists"}), true),
            (json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "gpu", "operator": "Near"}), false),
        ] {
            let told = why(taint("NoSchedule"), json!({"tolerations": [toleration]}));
            assert_eq!(told.is_none(), covers, "{toleration}");
        }
    }

    #[test]
    fn a_node_is_chosen_by_labels_name_and_numbers() {
        let plain = |spec: Value| why(json!({}), spec).is_none();
        assert!(plain(json!({"nodeSelector": {"disk": "ssd"}})));
        assert!(!plain(json!({"nodeSelector": {"disk": "tape"}})));
        let terms = |terms: Value| {
            let required = json!({"nodeSelectorTerms": terms});
            plain(
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}),
            )
        };
        let label = |operator: &str, value: &str| {
            let key = if operator == "In" { "disk" } else { "cores" };
            json!({"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]})
        };
        for (term, holds) in [
            (label("In", "ssd"), true),
            (label("In", "tape"), false),
            (label("Gt", "7"), true),
            (label("Gt", "8"), false),
            (label("Lt", "9"), true),
            (label("Lt", "many"), false),
            (json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["one"]}]}), true),
            (json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["two"]}]}), false),
            (json!({}), false),
        ] {
            assert_eq!(terms(json!([term])), holds, "{term}");
            assert_eq!(terms(json!([label("In", "tape"), term])), holds, "or {term}");
        }
        assert!(plain(json!({"affinity": {"podAntiAffinity": {}}})));
    }

    #[test]
    fn without_a_node_there_is_no_place() {
        let waiting =
            Waiting { instance: VirtualMachineInstance::default(), asks: Room { memory: 0, cpu: 0 } };
        assert_eq!(refuse(None, [], vec![waiting]).len(), 1);
    }
}
