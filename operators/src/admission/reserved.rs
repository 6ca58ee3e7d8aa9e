//! Labels and annotations of VMIs that belong to KubeVirt's components. They are refused to every other client: labels also in the
//! templates that VMIs are made from. Of annotations in templates, VMIs do not get those that are reserved.

use serde_json::Value;
use vireo_api::names::{CREATED_BY_LABEL, NODE_LABEL, RESERVED_VMI_ANNOTATIONS, SCHEDULABLE_LABEL};
use vireo_client::Kind;

use crate::Problem;

/// What KubeVirt's VMI admission webhooks reserve.
const RESERVED_LABELS: [&str; 6] = [
    CREATED_BY_LABEL,
    "kubevirt.io/install-strategy",
    "kubevirt.io/migrationJobUID",
    "kubevirt.io/migrationTargetNodeName",
    NODE_LABEL,
    SCHEDULABLE_LABEL,
];
const ANNOTATIONS: &str = "metadata.annotations";

/// Where the labels of a VMI are in an object that is one, or that VMIs are made from.
fn labels_path(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::VMI => Some("metadata.labels"),
        Kind::VM | Kind::REPLICA_SET => Some("spec.template.metadata.labels"),
        Kind::POOL => Some("spec.virtualMachineTemplate.spec.template.metadata.labels"),
        _ => None,
    }
}

/// Refuses a client's write that sets, changes or removes a reserved label or annotation. `old` is absent when the object is new.
pub fn validate(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<Problem> {
    let labels =
        labels_path(kind).and_then(|path| changed(path, &RESERVED_LABELS, "kubevirt.io/ labels", new, old));
    let annotations = (kind == Kind::VMI)
        .then(|| changed(ANNOTATIONS, &RESERVED_VMI_ANNOTATIONS, "annotations", new, old))
        .flatten();
    labels.into_iter().chain(annotations).collect()
}

/// The problem of a write that changes some of the reserved entries of the map at `path`.
fn changed(
    path: &str,
    reserved: &[&'static str],
    what: &str,
    new: &Value,
    old: Option<&Value>,
) -> Option<Problem> {
    let pointer = format!("/{}", path.replace('.', "/"));
    let value = |object: &Value, name: &str| object.pointer(&pointer)?.get(name).cloned();
    let is_changed = |name: &&str| old.and_then(|old| value(old, name)) != value(new, name);
    let changed: Vec<&str> = reserved.iter().copied().filter(is_changed).collect();
    if changed.is_empty() {
        return None;
    }
    let verb = if old.is_none() { "creation" } else { "modification" };
    let message = format!(
        "{verb} of the following reserved {what} on a VMI object is prohibited: {}",
        changed.join(", ")
    );
    Some(Problem::unsupported(path, message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::spec;

    use super::*;

    #[test]
    fn reserved_labels_stay_as_they_are() {
        let vmi = |labels: Value| json!({"metadata": {"labels": labels}});
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
            let problem = validate(Kind::VMI, &vmi(new.clone()), old.as_ref()).pop();
            let verb =
                problem.map(|problem| problem.message.split(' ').next().unwrap_or_default().to_owned());
            assert_eq!(verb.as_deref(), refused, "{old:?} {new}");
        }
        let all: serde_json::Map<String, Value> =
            RESERVED_LABELS.iter().map(|name| ((*name).to_owned(), json!("x"))).collect();
        let problem = validate(Kind::VMI, &vmi(Value::Object(all)), None).remove(0);
        assert_eq!(problem.field, "metadata.labels");
        for name in RESERVED_LABELS {
            assert!(problem.message.contains(name), "{name} in {}", problem.message);
        }
    }

    #[test]
    fn templates_have_labels_of_vmis() {
        let template = json!({"metadata": {"labels": {"kubevirt.io/created-by": "me"}}});
        let vm = json!({"template": template.clone()});
        for (kind, spec, path) in [
            (Kind::VM, vm.clone(), "spec.template.metadata.labels"),
            (Kind::REPLICA_SET, vm.clone(), "spec.template.metadata.labels"),
            (
                Kind::POOL,
                json!({"virtualMachineTemplate": {"spec": vm}}),
                "spec.virtualMachineTemplate.spec.template.metadata.labels",
            ),
        ] {
            let problem = validate(kind, &json!({"spec": spec}), None).remove(0);
            assert_eq!(
                (problem.field.as_str(), problem.cause),
                (path, spec::Cause::NotSupported),
                "{}",
                kind.kind
            );
        }
        let labelled = json!({"metadata": {"labels": {"kubevirt.io/created-by": "me"}}});
        for other in [Kind::CLAIM, Kind::VM] {
            assert_eq!(validate(other, &labelled, None), [], "{}'s own labels are free", other.kind);
        }
    }

    #[test]
    fn annotations_that_components_trust_stay_as_they_are() {
        let vmi = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        let fields = |old: Option<Value>, new: Value| {
            let problems = validate(Kind::VMI, &vmi(new), old.map(vmi).as_ref());
            problems.into_iter().map(|problem| (problem.field, problem.message)).collect::<Vec<_>>()
        };
        let users = json!({"vireo.io/hypervisor": "qemu", "kubevirt.io/pci-topology-version": "v3",
            "kubevirt.io/allow-pod-bridge-network-live-migration": "", "vm.kubevirt.io/os": "debian"});
        assert_eq!(fields(None, users.clone()), []);
        for name in RESERVED_VMI_ANNOTATIONS {
            let with = |value: &str| {
                let mut annotations = users.clone();
                annotations[name] = json!(value);
                annotations
            };
            for (old, new, verb) in [
                (None, with("1"), "creation"),
                (Some(users.clone()), with("1"), "modification"),
                (Some(with("1")), with("2"), "modification"),
                (Some(with("1")), users.clone(), "modification"),
                (Some(with("1")), Value::Null, "modification"),
            ] {
                let message = format!(
                    "{verb} of the following reserved annotations on a VMI object is prohibited: {name}"
                );
                assert_eq!(fields(old, new), [("metadata.annotations".to_owned(), message)], "{name}");
            }
            assert_eq!(fields(Some(with("1")), with("1")), [], "{name}");
            let template = json!({"spec": {"template": vmi(with("1"))}});
            assert_eq!(validate(Kind::VM, &template, None), [], "instances do not get it");
        }
    }
}
