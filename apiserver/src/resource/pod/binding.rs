//! What the subresources `binding` and `eviction` write to a pod.

use serde_json::{Map, Value, json};

use super::{has_terminated, list, set_condition, text};
use crate::meta;

/// Assigns a pod to the node that a Binding names.
///
/// # Errors
/// Why it cannot be assigned.
pub fn bind(pod: &mut Value, binding: &Value) -> Result<(), String> {
    let name = meta::text(pod, "name");
    if meta::is_being_deleted(pod) {
        return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = text(pod, "/spec/nodeName");
    if !node.is_empty() {
        return Err(format!("pod {name} is already assigned to node {node:?}"));
    }
    if !list(pod, "/spec/schedulingGates").is_empty() {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    pod["spec"]["nodeName"] = json!(text(binding, "/target/name"));
    for field in ["labels", "annotations"] {
        let Some(more) = binding.pointer(&format!("/metadata/{field}")).and_then(Value::as_object) else {
            continue;
        };
        let has = meta::of(pod).entry(field).or_insert_with(|| json!({}));
        if !has.is_object() {
            *has = json!({});
        }
        let more: Map<String, Value> = more.clone();
        has.as_object_mut().into_iter().for_each(|has| has.extend(more.clone()));
    }
    set_condition(pod, json!({"type": "PodScheduled", "status": "True"}));
    Ok(())
}

/// Records in the conditions of a pod that it is deleted because it is evicted.
pub fn mark_disrupted(pod: &mut Value) {
    if !has_terminated(pod) {
        set_condition(
            pod,
            json!({
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            }),
        );
    }
}
