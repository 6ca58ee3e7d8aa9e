//! The defaults of a pod.

use serde_json::{Value, json};

/// Fills in what a pod leaves out.
pub(super) fn fill(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
        ("securityContext", json!({})),
    ] {
        default(spec, field, value);
    }
    for field in ["initContainers", "containers"] {
        elements(spec, field).filter(|container| container.is_object()).for_each(container);
    }
    for volume in elements(spec, "volumes") {
        if let Some(fields) = volume.as_object_mut()
            && fields.len() == 1
            && fields.contains_key("name")
        {
            fields.insert("emptyDir".to_owned(), json!({}));
        }
    }
}

fn container(container: &mut Value) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    default(container, "imagePullPolicy", json!(policy));
    default(container, "terminationMessagePath", json!("/dev/termination-log"));
    default(container, "terminationMessagePolicy", json!("File"));
    default(container, "resources", json!({}));
    for port in elements(container, "ports").filter(|port| port.is_object()) {
        default(port, "protocol", json!("TCP"));
    }
    let resources = &mut container["resources"];
    for field in ["limits", "requests"] {
        let amounts = resources.get_mut(field).and_then(Value::as_object_mut);
        for amount in amounts.into_iter().flat_map(|amounts| amounts.values_mut()) {
            if amount.is_number() {
                *amount = json!(amount.to_string());
            }
        }
    }
    // What is limited is requested, unless it is requested otherwise.
    if let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() {
        default(resources, "requests", json!({}));
        for (name, limit) in limits {
            default(&mut resources["requests"], &name, limit);
        }
    }
}

/// Whether an image has the tag `latest`, or none and no digest.
fn is_latest(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or_default();
    match name.split_once(':') {
        _ if name.contains('@') => false,
        Some((_, tag)) => tag == "latest",
        None => true,
    }
}

fn default(object: &mut Value, field: &str, value: Value) {
    if object.get(field).is_none_or(|has| has.is_null() || has == "")
        && (object.is_object() || object.is_null())
    {
        object[field] = value;
    }
}

fn elements<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}
