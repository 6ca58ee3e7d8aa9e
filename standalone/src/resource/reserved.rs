//! Labels of VMIs that belong to KubeVirt's components. The API refuses them to every client, also in the templates
//! that VMIs are made from; controllers and the node agent write to the store directly and are not asked.

use std::collections::BTreeMap;

use serde_json::Value;
use vireo_apiserver::resource::{Cause, Resource};

/// What KubeVirt's VMI admission webhooks reserve.
const RESERVED_LABELS: [&str; 6] = [
    "kubevirt.io/created-by",
    "kubevirt.io/install-strategy",
    "kubevirt.io/migrationJobUID",
    "kubevirt.io/migrationTargetNodeName",
    "kubevirt.io/nodeName",
    "kubevirt.io/schedulable",
];

/// Where the labels of a VMI are in an object that is one, or that VMIs are made from.
fn labels_path(resource: &Resource) -> Option<&'static str> {
    match (&*resource.group, &*resource.kind) {
        ("kubevirt.io", "VirtualMachineInstance") => Some("metadata.labels"),
        ("kubevirt.io", "VirtualMachine" | "VirtualMachineInstanceReplicaSet") => {
            Some("spec.template.metadata.labels")
        }
        ("pool.kubevirt.io", "VirtualMachinePool") => {
            Some("spec.virtualMachineTemplate.spec.template.metadata.labels")
        }
        _ => None,
    }
}

/// Refuses a client's write that sets, changes or removes a reserved label. `old` is absent when the object is new.
pub fn validate(resource: &Resource, new: &Value, old: Option<&Value>) -> Option<Cause> {
    let path = labels_path(resource)?;
    let had = old.map(|old| reserved(old, path)).unwrap_or_default();
    let has = reserved(new, path);
    let changed: Vec<&str> =
        RESERVED_LABELS.into_iter().filter(|name| had.get(name) != has.get(name)).collect();
    if changed.is_empty() {
        return None;
    }
    let verb = if old.is_none() { "creation" } else { "modification" };
    let message = format!(
        "{verb} of the following reserved kubevirt.io/ labels on a VMI object is prohibited: {}",
        changed.join(", ")
    );
    Some(Cause::unsupported(path, message))
}

fn reserved<'a>(object: &'a Value, path: &str) -> BTreeMap<&'static str, &'a Value> {
    let labels = object.pointer(&format!("/{}", path.replace('.', "/")));
    let value = |name| Some((name, labels?.get(name)?));
    RESERVED_LABELS.into_iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_apiserver::resource::Registry;

    use super::super::kubevirt;
    use super::*;

    #[test]
    fn reserved_labels_stay_as_they_are() {
        let vmi = |labels: Value| json!({"metadata": {"labels": labels}});
        let vmis = &kubevirt::VMIS;
        let node = json!({"kubevirt.io/nodeName": "a", "tier": "web"});
        for (old, new, refused) in [
            (None, json!({"tier": "web", "kubevirt.io/size": "small"}), None),
            (None, node.clone(), Some("creation")),
            (Some(node.clone()), node.clone(), None),
            (Some(node.clone()), json!({"kubevirt.io/nodeName": "a"}), None),
            (Some(node.clone()), json!({"kubevirt.io/nodeName": "b"}), Some("modification")),
            (Some(node.clone()), json!({"tier": "web"}), Some("modification")),
            (Some(node.clone()), Value::Null, Some("modification")),
            (Some(Value::Null), node, Some("modification")),
        ] {
            let old = old.map(vmi);
            let cause = validate(vmis, &vmi(new.clone()), old.as_ref());
            let verb = cause.map(|cause| cause.message.split(' ').next().unwrap_or_default().to_owned());
            assert_eq!(verb.as_deref(), refused, "{old:?} {new}");
        }
        let all: serde_json::Map<String, Value> =
            RESERVED_LABELS.iter().map(|name| ((*name).to_owned(), json!("x"))).collect();
        let cause = validate(vmis, &vmi(Value::Object(all)), None).unwrap();
        assert_eq!(cause.field, "metadata.labels");
        for name in RESERVED_LABELS {
            assert!(cause.message.contains(name), "{name} in {}", cause.message);
        }
    }

    #[test]
    fn templates_are_judged_by_the_path_of_their_labels() {
        let template = json!({"metadata": {"labels": {"kubevirt.io/created-by": "me"}}});
        let machine = json!({"template": template.clone()});
        let registry = Registry::new(kubevirt::rows());
        for (resource, spec, path) in [
            ("virtualmachines.kubevirt.io", machine.clone(), "spec.template.metadata.labels"),
            (
                "virtualmachineinstancereplicasets.kubevirt.io",
                machine.clone(),
                "spec.template.metadata.labels",
            ),
            (
                "virtualmachinepools.pool.kubevirt.io",
                json!({"virtualMachineTemplate": {"spec": machine}}),
                "spec.virtualMachineTemplate.spec.template.metadata.labels",
            ),
        ] {
            let cause = validate(registry.named(resource).unwrap(), &json!({"spec": spec}), None).unwrap();
            assert_eq!((cause.field.as_str(), cause.reason), (path, "FieldValueNotSupported"), "{resource}");
        }
        let labelled = json!({"metadata": {"labels": {"kubevirt.io/created-by": "me"}}});
        for other in ["configmaps", "virtualmachines.kubevirt.io"] {
            assert_eq!(
                validate(registry.named(other).unwrap(), &labelled, None),
                None,
                "{other}'s own labels are free"
            );
        }
    }
}
