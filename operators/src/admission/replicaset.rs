//! VirtualMachineInstanceReplicaSets in admission.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vireo_api::decode;
use vireo_api::spec::{Field, label_selector_problems};
use vireo_api::v1::{LabelSelector, Shape, VirtualMachineInstanceReplicaSet};

use super::vm::{mistyped, origin, unknown, validate_vmi_template, without_status};
use crate::{Problem, selector};

const TEMPLATE: &str = "spec.template";

/// Completes and validates a replica set.
pub fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Problem> {
    let set = match completed::<VirtualMachineInstanceReplicaSet>(new, old) {
        Ok(set) => set,
        Err(problems) => return problems,
    };
    let mut problems = Vec::new();
    let mut unknown_fields = Vec::new();
    set.unknown_fields("", &mut unknown_fields);
    problems.extend(unknown(&unknown_fields, TEMPLATE));
    if set.spec.replicas.is_some_and(|replicas| replicas < 0) {
        problems.push(Problem::invalid("spec.replicas", "must be greater than or equal to 0"));
    }
    match &set.spec.template {
        None => problems.push(Problem::required(TEMPLATE, "missing virtual machine instance template")),
        Some(template) => {
            let origin = origin(new, old, &["/spec/template"]);
            problems.extend(validate_vmi_template(&set.metadata, template, TEMPLATE, origin));
            problems.extend(of_selector(set.spec.selector.as_ref(), &template.metadata.labels));
        }
    }
    problems
}

/// A new object has no status yet, and its `replicas` default to one. It, or what in it has a wrong
/// type.
pub(super) fn completed<T: Shape + Default + DeserializeOwned>(
    new: &mut Value,
    old: Option<&Value>,
) -> Result<T, Vec<Problem>> {
    if old.is_none() {
        new["status"] = json!({});
    }
    if new.pointer("/spec/replicas").is_none_or(Value::is_null)
        && new.get("spec").is_some_and(Value::is_object)
    {
        new["spec"]["replicas"] = json!(1);
    }
    let decoded = decode::object::<T>(without_status(new));
    let problems = mistyped(decoded.mistyped());
    if problems.is_empty() { Ok(decoded.object) } else { Err(problems) }
}

/// A selector must choose what its template makes.
pub(super) fn of_selector(
    given: Option<&LabelSelector>,
    labels: &std::collections::BTreeMap<String, String>,
) -> Vec<Problem> {
    let Some(given) = given else { return vec![Problem::required("spec.selector", "is needed")] };
    let mut problems = of_label_selector(given, "spec.selector");
    if problems.is_empty() && !selector::matches(given, labels) {
        problems.push(Problem::invalid("spec.selector", "selector does not match labels."));
    }
    problems
}

/// What is wrong with a label selector at `path`.
pub(super) fn of_label_selector(selector: &LabelSelector, path: &str) -> Vec<Problem> {
    label_selector_problems(selector, &Field::new(path))
        .iter()
        .map(|problem| Problem::at("", problem))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(spec: Value) -> Vec<String> {
        let mut set = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
            "metadata": {"name": "x", "namespace": "n"}, "spec": spec});
        admit(&mut set, None).into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn a_set_makes_what_it_chooses() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}});
        let chosen = json!({"matchLabels": {"a": "b"}});
        assert!(fields(json!({"template": template, "selector": chosen})).is_empty());
        assert_eq!(fields(json!({"template": template})), ["spec.selector"]);
        assert_eq!(
            fields(json!({"template": template, "selector": {"matchLabels": {"a": "c"}}})),
            ["spec.selector"]
        );
        let odd = json!({"matchExpressions": [{"key": "a", "operator": "is"}]});
        let found = fields(json!({"template": template, "selector": odd}));
        assert_eq!(found, ["spec.selector.matchExpressions[0].operator"]);
        assert_eq!(fields(json!({"selector": chosen})), ["spec.template"]);
        assert_eq!(
            fields(json!({"template": template, "selector": chosen, "replicas": -1})),
            ["spec.replicas"]
        );
        assert_eq!(fields(json!({"template": template, "selector": chosen, "replica": 1})), ["spec.replica"]);
        let broken = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"domain": {"devices": {}}}});
        assert_eq!(
            fields(json!({"template": broken, "selector": chosen})),
            ["spec.template.spec.domain.memory.guest"]
        );
    }

    #[test]
    fn replicas_default_to_one() {
        let text = include_str!("../../../examples/standalone/replicaset.yaml");
        let mut set = decode::documents(text).unwrap().remove(0);
        assert_eq!(admit(&mut set, None), []);
        assert_eq!(set["spec"]["replicas"], 2);
        set["spec"].as_object_mut().unwrap().remove("replicas");
        assert_eq!(admit(&mut set, None), []);
        assert_eq!(set["spec"]["replicas"], 1);
    }
}
