//! Whether a node takes a Pod: what a scheduler filters by, for the one node there is.

pub mod controller;
mod pod;
mod resources;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use vireo_api::v1::{Affinity, NodeSelectorRequirement, ObjectMeta, Quantity, Toleration};

use crate::selector::requirement_holds;

pub use pod::{Pod, PodSpec};
pub use resources::Resources;

/// Taint that a node stands for while it takes nothing new.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// What matters of a core `Node`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name and labels.
    pub metadata: ObjectMeta,
    /// What keeps Pods away.
    pub spec: NodeSpec,
    /// What it has.
    pub status: NodeStatus,
}

/// What was observed of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Resources that Pods may take.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// What is wanted of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// `kubectl cordon`.
    pub unschedulable: bool,
    /// `kubectl taint`. Unknown effects are ignored.
    pub taints: Vec<serde_json::Value>,
}

/// What keeps Pods away that do not tolerate it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
    value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    effect: String,
}

/// The Pods, by UID, that a node does not take, and why, as kube-scheduler says it. Pods that request `bound` are bound to
/// it already. The oldest Pod comes first; one that requests less may pass it by.
pub fn unschedulable(
    node: Option<&Node>,
    bound: impl IntoIterator<Item = Resources>,
    mut pending: Vec<&Pod>,
) -> BTreeMap<String, String> {
    pending.sort_by_key(|pod| {
        let ObjectMeta { creation_timestamp, namespace, name, .. } = &pod.metadata;
        (creation_timestamp, namespace, name)
    });
    let none = Resources { memory: 0, cpu: 0 };
    let all = node.map_or(none, |node| Resources::of(&node.status.allocatable));
    let mut free = bound.into_iter().fold(all, Resources::without);
    let mut unschedulable = BTreeMap::new();
    for pod in pending {
        match misfit(&pod.spec, node, free.lacks(pod.requests)) {
            None => free = free.without(pod.requests),
            Some(why) => drop(unschedulable.insert(pod.metadata.uid.clone(), why)),
        }
    }
    unschedulable
}

/// Why a Pod does not fit; absent where the node takes it.
fn misfit(spec: &PodSpec, node: Option<&Node>, lacks: Vec<&str>) -> Option<String> {
    let Some(node) = node else { return Some("no nodes available to schedule pods".to_owned()) };
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
            && term.match_expressions.iter().all(|requirement| holds_of_nodes(requirement, &node.labels))
            && term.match_fields.iter().all(|NodeSelectorRequirement { key, operator, values, .. }| {
                requirement_holds((key, operator, values), &fields)
            })
    })
}

/// Nodes are also chosen by numbers.
fn holds_of_nodes(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let compared = || {
        let has: i64 = labels.get(&requirement.key)?.parse().ok()?;
        let [bound] = requirement.values.as_slice() else { return None };
        Some(has.cmp(&bound.parse().ok()?))
    };
    match requirement.operator.as_str() {
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        operator => requirement_holds((&requirement.key, operator, &requirement.values), labels),
    }
}

#[cfg(test)]
mod tests;
