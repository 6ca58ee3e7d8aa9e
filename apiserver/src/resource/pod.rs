//! Pods.

mod binding;
mod columns;
mod defaults;
mod qos;
mod update;
mod validate;

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Cause, METADATA_LISTS, Resource, Row, texts};
use crate::meta;

pub use binding::{bind, mark_disrupted};

/// Seconds that a pod may take to terminate where a negative number is given.
const LEAST_GRACE: i64 = 1;

/// Pods.
pub static PODS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["po"]),
        categories: texts(&["all"]),
        status: true,
        columns: columns::columns(),
        fields: texts(&[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
        ]),
        merge: Some(&[
            METADATA_LISTS[0],
            METADATA_LISTS[1],
            ("spec.containers", "name"),
            ("spec.containers.env", "name"),
            ("spec.containers.ports", "containerPort"),
            ("spec.containers.volumeDevices", "devicePath"),
            ("spec.containers.volumeMounts", "mountPath"),
            ("spec.initContainers", "name"),
            ("spec.initContainers.env", "name"),
            ("spec.initContainers.ports", "containerPort"),
            ("spec.initContainers.volumeDevices", "devicePath"),
            ("spec.initContainers.volumeMounts", "mountPath"),
            ("spec.ephemeralContainers", "name"),
            ("spec.hostAliases", "ip"),
            ("spec.imagePullSecrets", "name"),
            ("spec.resourceClaims", "name"),
            ("spec.schedulingGates", "name"),
            ("spec.topologySpreadConstraints", "topologyKey"),
            ("spec.volumes", "name"),
            ("status.conditions", "type"),
            ("status.hostIPs", "ip"),
            ("status.podIPs", "ip"),
            ("status.resourceClaimStatuses", "name"),
        ]),
        admit,
        grace: Some(grace),
        ..Resource::kubernetes("", "Pod")
    })
});

fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    defaults::fill(new);
    if let Some(old) = old {
        return update::validate(new, old);
    }
    new["status"] = json!({"phase": "Pending", "qosClass": qos::class(new)});
    if !list(new, "/spec/schedulingGates").is_empty() {
        new["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    validate::spec(new)
}

/// Seconds that a pod has to terminate gracefully. One that no node has, or that has terminated, needs none.
fn grace(pod: &Value, requested: Option<i64>) -> i64 {
    let own = || pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    if text(pod, "/spec/nodeName").is_empty() || has_terminated(pod) {
        return 0;
    }
    match requested.unwrap_or_else(own) {
        ..0 => LEAST_GRACE,
        seconds => seconds,
    }
}

/// Whether its containers have terminated and are not started again.
fn has_terminated(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Failed" | "Succeeded")
}

/// A text at a JSON pointer; empty where it is absent.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The elements of a list at a JSON pointer.
fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The containers of a pod, with the name of the field of `spec` in which they are.
fn containers(pod: &Value) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    ["initContainers", "containers"].into_iter().flat_map(move |field| {
        let found = list(pod, &format!("/spec/{field}"));
        found.iter().enumerate().map(move |(index, container)| (field, index, container))
    })
}

/// Sets a condition of a pod. Its transition time changes with its status.
fn set_condition(pod: &mut Value, condition: Value) {
    let conditions = &mut pod["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    let mut condition = condition;
    match conditions.iter_mut().find(|has| has["type"] == condition["type"]) {
        Some(has) => {
            let since = has.get("lastTransitionTime").filter(|_| has["status"] == condition["status"]);
            condition["lastTransitionTime"] = since.cloned().unwrap_or_else(|| json!(meta::now()));
            *has = condition;
        }
        None => {
            condition["lastTransitionTime"] = json!(meta::now());
            conditions.push(condition);
        }
    }
}

#[cfg(test)]
mod tests;
