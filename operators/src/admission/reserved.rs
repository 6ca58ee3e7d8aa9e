//! Labels of VMIs that belong to KubeVirt's components. They are refused to every other client, also in the templates that
//! VMIs are made from.

use std::collections::BTreeMap;

use serde_json::Value;
use vireo_api::names::{CREATED_BY_LABEL, NODE_LABEL, SCHEDULABLE_LABEL};
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

/// Where the labels of a VMI are in an object that is one, or that VMIs are made from.
fn labels_path(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::VMI => Some("metadata.labels"),
        Kind::VM | Kind::REPLICA_SET => Some("spec.template.metadata.labels"),
        Kind::POOL => Some("spec.virtualMachineTemplate.spec.template.metadata.labels"),
        _ => None,
    }
}

/// Refuses a client's write that sets, changes or removes a reserved label. `old` is absent when the object is new.
pub fn validate(kind: Kind, new: &Value, old: Option<&Value>) -> Option<Problem> {
    let path = labels_path(kind)?;
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
    Some(Problem::unsupported(path, message))
}

fn reserved<'a>(object: &'a Value, path: &str) -> BTreeMap<&'static str, &'a Value> {
    let labels = object.pointer(&format!("/{}", path.replace('.', "/")));
    let value = |name| Some((name, labels?.get(name)?));
    RESERVED_LABELS.into_iter().filter_map(value).collect()
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
            let problem = validate(Kind::VMI, &vmi(new.clone()), old.as_ref());
            let verb =
                problem.map(|problem| problem.message.split(' ').next().unwrap_or_default().to_owned());
            assert_eq!(verb.as_deref(), refused, "{old:?} {new}");
        }
        let all: serde_json::Map<String, Value> =
            RESERVED_LABELS.iter().map(|name| ((*name).to_owned(), json!("x"))).collect();
        let problem = validate(Kind::VMI, &vmi(Value::Object(all)), None).unwrap();
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
            let problem = validate(kind, &json!({"spec": spec}), None).unwrap();
            assert_eq!(
                (problem.field.as_str(), problem.cause),
                (path, spec::Cause::NotSupported),
                "{}",
                kind.kind
            );
        }
        let labelled = json!({"metadata": {"labels": {"kubevirt.io/created-by": "me"}}});
        for other in [Kind::CLAIM, Kind::VM] {
            assert_eq!(validate(other, &labelled, None), None, "{}'s own labels are free", other.kind);
        }
    }
}
