use serde_json::{Value, json};

use super::*;

fn why(node: Value, spec: Value) -> Option<String> {
    let mut all = json!({"metadata": {"name": "one", "labels": {"disk": "ssd", "cores": "8"}}, "spec": node});
    all["apiVersion"] = json!("v1");
    let node: Node = serde_json::from_value(all).unwrap();
    misfit(&serde_json::from_value(spec).unwrap(), Some(&node), Vec::new())
}

fn resources((memory, cpu): (u64, u64)) -> Resources {
    Resources { memory, cpu }
}

/// A Pod of two containers that together request so much.
fn pod(uid: &str, created: &str, (memory, cpu): (u64, u64)) -> Pod {
    let container = |memory: u64, cpu: u64| json!({"resources": {"requests": {"memory": memory.to_string(), "cpu": format!("{cpu}m")}}});
    let containers = [container(memory, 0), container(0, cpu)];
    let metadata = json!({"name": uid, "uid": uid, "creationTimestamp": created});
    Pod::read(json!({"metadata": metadata, "spec": {"containers": containers}})).unwrap()
}

/// Pods that request so much, created at that time, on a node of 1000 bytes and two CPUs.
fn refused(bound: &[(u64, u64)], pending: &[(&str, &str, (u64, u64))]) -> Vec<(String, String)> {
    let node = json!({"status": {"allocatable": {"memory": "1000", "cpu": "2"}}});
    let node: Node = serde_json::from_value(node).unwrap();
    let pods: Vec<Pod> =
        pending.iter().map(|(uid, created, requests)| pod(uid, created, *requests)).collect();
    let bound = bound.iter().copied().map(resources);
    unschedulable(Some(&node), bound, pods.iter().collect()).into_iter().collect()
}

#[test]
fn who_was_there_first_has_room_first() {
    let reported = |uid: &str, lacks: &str| {
        (uid.to_owned(), format!("0/1 nodes are available: 1 Insufficient {lacks}."))
    };
    for (placed, waiting, expected) in [
        (vec![], vec![("a", "1", (1000, 2000))], vec![]),
        (vec![], vec![("a", "1", (1001, 100))], vec![reported("a", "memory")]),
        (vec![], vec![("a", "1", (1, 2001))], vec![reported("a", "cpu")]),
        (vec![(900, 1950)], vec![("a", "1", (101, 51))], vec![reported("a", "cpu, 1 Insufficient memory")]),
        // The older one, whatever its name.
        (vec![], vec![("a", "2", (600, 1)), ("b", "1", (600, 1))], vec![reported("a", "memory")]),
        (vec![], vec![("b", "1", (600, 1)), ("a", "1", (600, 1))], vec![reported("b", "memory")]),
        // What does not fit does not stand in the way of what does.
        (vec![(500, 0)], vec![("a", "1", (600, 1)), ("b", "2", (500, 1))], vec![reported("a", "memory")]),
        // More than there is may be placed already, and stays.
        (vec![(2000, 9000)], vec![("a", "1", (1, 0))], vec![reported("a", "memory")]),
        (vec![(2000, 9000)], vec![("a", "1", (0, 0))], vec![]),
    ] {
        assert_eq!(refused(&placed, &waiting), expected, "{placed:?} {waiting:?}");
    }
}

#[test]
fn a_cordon_and_a_taint_keep_away_what_does_not_tolerate_them() {
    let cordoned = json!({"unschedulable": true});
    let reported = why(cordoned.clone(), json!({}));
    assert_eq!(reported.as_deref(), Some("0/1 nodes are available: 1 node(s) were unschedulable."));
    for toleration in [
        json!({"operator": "Exists"}),
        json!({"key": UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"}),
    ] {
        assert_eq!(why(cordoned.clone(), json!({"tolerations": [toleration]})), None);
    }
    let taint = |effect: &str| json!({"taints": [{"key": "gpu", "value": "a", "effect": effect}]});
    let reported = why(taint("NoExecute"), json!({})).unwrap();
    assert_eq!(reported, "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: a}.");
    assert_eq!(why(taint("PreferNoSchedule"), json!({})), None);
    let nonsense = json!({"unschedulable": true, "taints": [1, {"key": "gpu"}]});
    assert!(
        why(nonsense, json!({})).is_some_and(|reported| reported.contains("unschedulable")),
        "and nothing more"
    );
    for (toleration, covers) in [
        (json!({"key": "gpu", "value": "a"}), true),
        (json!({"key": "gpu", "value": "b"}), false),
        (json!({"key": "gpu", "operator": "Exists"}), true),
        (json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}), false),
        (json!({"key": "gpu", "operator": "Near"}), false),
    ] {
        let reported = why(taint("NoSchedule"), json!({"tolerations": [toleration]}));
        assert_eq!(reported.is_none(), covers, "{toleration}");
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
fn without_a_node_pods_are_not_bound() {
    assert_eq!(unschedulable(None, [], vec![&pod("a", "1", (0, 0))]).len(), 1);
}

#[test]
fn a_pod_takes_its_requests_while_it_is_bound_and_has_not_ended() {
    for (node, phase, takes, pending) in [
        ("", "Pending", false, true),
        ("one", "Pending", true, false),
        ("one", "Running", true, false),
        ("one", "Failed", false, false),
        ("", "Failed", false, false),
    ] {
        let container = json!({"resources": {"requests": {"memory": "5"}}});
        let object = json!({"metadata": {}, "spec": {"nodeName": node, "containers": [container]},
            "status": {"phase": phase}});
        let pod = Pod::read(object).unwrap();
        let requests = takes.then_some(resources((5, 0)));
        assert_eq!((pod.takes(), pod.is_pending()), (requests, pending), "{node} {phase}");
    }
}
