//! VirtualMachinePools in admission.

use jiff::SignedDuration;
use serde_json::Value;
use vireo_api::spec::Origin;
use vireo_api::v1::{
    IntOrString, ObjectMeta, Shape as _, VirtualMachine, VirtualMachinePool,
    VirtualMachinePoolSelectionPolicy, VirtualMachinePoolSpec, VirtualMachineTemplateSpec,
};

use super::replicaset::{completed, of_label_selector, of_selector};
use super::vm::{self, unknown};
use crate::Problem;
use crate::pool::SORT_POLICIES;

const TEMPLATE: &str = "spec.virtualMachineTemplate";
const SELECTOR: &str = "spec.selector";

/// Completes and validates a pool.
pub fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Problem> {
    let pool = match completed::<VirtualMachinePool>(new, old) {
        Ok(pool) => pool,
        Err(problems) => return problems,
    };
    let mut unknown_fields = Vec::new();
    pool.unknown_fields("", &mut unknown_fields);
    let mut problems = unknown(&unknown_fields, TEMPLATE);
    if pool.spec.replicas.is_some_and(|replicas| replicas < 0) {
        problems.push(Problem::invalid("spec.replicas", "must be greater than or equal to 0"));
    }
    match &pool.spec.virtual_machine_template {
        None => problems.push(Problem::required(TEMPLATE, "missing virtual machine template")),
        Some(template) => {
            let origin = vm::origin(new, old, &["/spec/virtualMachineTemplate"]);
            problems.extend(validate_vm(&pool.metadata, template, origin));
            problems.extend(of_selector(pool.spec.selector.as_ref(), &template.metadata.labels));
        }
    }
    if old.is_some_and(|old| old.pointer("/spec/selector") != new.pointer("/spec/selector")) {
        let message = "selector is immutable after creation.";
        problems.push(Problem::forbidden(SELECTOR, message));
    }
    problems.extend(max_unavailable(pool.spec.max_unavailable.as_ref()));
    problems.extend(strategies(&pool.spec));
    problems.extend(healing(&pool.spec));
    problems
}

/// What every VM of it would be refused for. With its instance type and its preference, it is validated when it is created.
fn validate_vm(pool: &ObjectMeta, template: &VirtualMachineTemplateSpec, origin: Origin) -> Vec<Problem> {
    let metadata = ObjectMeta {
        name: format!("{}-0", pool.name),
        namespace: pool.namespace.clone(),
        labels: template.metadata.labels.clone(),
        annotations: template.metadata.annotations.clone(),
        ..ObjectMeta::default()
    };
    let vm = VirtualMachine { metadata, spec: template.spec.clone(), ..VirtualMachine::default() };
    let below = |problem: Problem| Problem { field: format!("{TEMPLATE}.{}", problem.field), ..problem };
    vm::validate(&vm, origin).into_iter().map(below).collect()
}

fn max_unavailable(given: Option<&IntOrString>) -> Option<Problem> {
    let percent = |text: &str| text.strip_suffix('%').and_then(|digits| digits.parse::<u8>().ok());
    let fits = match given {
        None => true,
        Some(IntOrString::Int(number)) => *number > 0,
        Some(IntOrString::String(text)) => percent(text).is_some_and(|percent| (1..=100).contains(&percent)),
    };
    let message = "must be a number greater than 0, or a percentage from 1% to 100%";
    (!fits).then(|| Problem::invalid("spec.maxUnavailable", message))
}

fn strategies(spec: &VirtualMachinePoolSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let one_of = |field: &str, given: [bool; 3]| {
        let several = given.iter().filter(|given| **given).count() > 1;
        let message = "only one of unmanaged, opportunistic and proactive may be given";
        several.then(|| Problem::invalid(field, message))
    };
    if let Some(one) = &spec.scale_in_strategy {
        let field = "spec.scaleInStrategy";
        let given = [one.unmanaged.is_some(), one.opportunistic.is_some(), one.proactive.is_some()];
        problems.extend(one_of(field, given));
        let waits = one.opportunistic.as_ref();
        problems.extend(preserved(
            &format!("{field}.opportunistic"),
            waits.and_then(|one| one.state_preservation.as_deref()),
        ));
        if let Some(one) = &one.proactive {
            let field = format!("{field}.proactive");
            problems.extend(preserved(&field, one.state_preservation.as_deref()));
            problems.extend(policy(&field, one.selection_policy.as_ref()));
        }
    }
    if let Some(one) = &spec.update_strategy {
        let field = "spec.updateStrategy";
        let given = [one.unmanaged.is_some(), one.opportunistic.is_some(), one.proactive.is_some()];
        problems.extend(one_of(field, given));
        let proactive = one.proactive.as_ref();
        problems.extend(policy(
            &format!("{field}.proactive"),
            proactive.and_then(|one| one.selection_policy.as_ref()),
        ));
    }
    problems
}

/// Claims belong to no VM here, so they outlive it in any case.
fn preserved(field: &str, given: Option<&str>) -> Option<Problem> {
    let field = format!("{field}.statePreservation");
    match given {
        None | Some("" | "Disabled" | "Offline") => None,
        Some("Online") => {
            Some(Problem::unsupported(field, "Online is not available yet: use Disabled or Offline"))
        }
        Some(_) => Some(Problem::invalid(field, "is none of Disabled, Offline and Online")),
    }
}

fn policy(field: &str, given: Option<&VirtualMachinePoolSelectionPolicy>) -> Vec<Problem> {
    let Some(policy) = given else { return Vec::new() };
    let field = format!("{field}.selectionPolicy");
    let mut problems = Vec::new();
    if policy.sort_policy.as_deref().is_some_and(|policy| !SORT_POLICIES.contains(&policy)) {
        let message = format!("is none of {}", SORT_POLICIES.join(", "));
        problems.push(Problem::invalid(format!("{field}.sortPolicy"), message));
    }
    let Some(selectors) = &policy.selectors else { return problems };
    let field = format!("{field}.selectors");
    if !selectors.node_selector_requirement_matcher.is_empty() {
        let message = "is not available: there is one node";
        problems.push(Problem::unsupported(format!("{field}.nodeSelectorRequirementMatcher"), message));
    }
    if let Some(selector) = &selectors.label_selector {
        problems.extend(of_label_selector(selector, &format!("{field}.labelSelector")));
    }
    problems
}

fn healing(spec: &VirtualMachinePoolSpec) -> Vec<Problem> {
    let Some(healing) = &spec.autohealing else { return Vec::new() };
    let mut problems = Vec::new();
    if healing.start_up_failure_threshold.is_some_and(|threshold| threshold < 1) {
        let message = "must be greater than or equal to 1";
        problems.push(Problem::invalid("spec.autohealing.startUpFailureThreshold", message));
    }
    let given = healing.min_failing_to_start_duration.as_deref();
    if given.is_some_and(|text| text.parse::<SignedDuration>().is_err()) {
        let message = "must be a duration, such as 90s, 5m or 1h30m";
        problems.push(Problem::invalid("spec.autohealing.minFailingToStartDuration", message));
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::decode;
    use vireo_api::spec::Cause::Forbidden;

    use super::*;

    fn pool(more: &Value) -> Value {
        let vm = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"runStrategy": "Always",
            "template": {"spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}}}});
        let mut pool = json!({"apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool",
            "metadata": {"name": "x", "namespace": "n"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "virtualMachineTemplate": vm}});
        for (field, value) in more.as_object().unwrap() {
            pool["spec"][field] = value.clone();
        }
        pool
    }

    fn fields(more: &Value) -> Vec<String> {
        admit(&mut pool(more), None).into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn each_problem_names_its_field() {
        let both = json!({"unmanaged": {}, "proactive": {}});
        let odd = json!({"proactive": {"selectionPolicy": {"sortPolicy": "Best"}}});
        let online = json!({"proactive": {"statePreservation": "Online"}});
        let broken = json!({"metadata": {"labels": {"a": "b"}},
            "spec": {"template": {"spec": {"domain": {"devices": {}}}}, "running": true, "runStrategy": "Always"}});
        let guest = "spec.virtualMachineTemplate.spec.template.spec.domain.memory.guest";
        for (more, expected) in [
            (json!({}), vec![]),
            (json!({"maxUnavailable": "50%"}), vec![]),
            (json!({"maxUnavailable": 0}), vec!["spec.maxUnavailable"]),
            (json!({"maxUnavailable": "101%"}), vec!["spec.maxUnavailable"]),
            (json!({"maxUnavailable": "2"}), vec!["spec.maxUnavailable"]),
            (json!({"replicas": -1}), vec!["spec.replicas"]),
            (json!({"replica": 1}), vec!["spec.replica"]),
            (json!({"updateStrategy": both}), vec!["spec.updateStrategy"]),
            (json!({"scaleInStrategy": both}), vec!["spec.scaleInStrategy"]),
            (
                json!({"updateStrategy": odd}),
                vec!["spec.updateStrategy.proactive.selectionPolicy.sortPolicy"],
            ),
            (json!({"scaleInStrategy": online}), vec!["spec.scaleInStrategy.proactive.statePreservation"]),
            (
                json!({"autohealing": {"minFailingToStartDuration": "soon", "startUpFailureThreshold": 0}}),
                vec![
                    "spec.autohealing.startUpFailureThreshold",
                    "spec.autohealing.minFailingToStartDuration",
                ],
            ),
            (json!({"autohealing": {"minFailingToStartDuration": "1h30m"}}), vec![]),
            (
                json!({"virtualMachineTemplate": broken}),
                vec!["spec.virtualMachineTemplate.spec.runStrategy", guest],
            ),
        ] {
            assert_eq!(fields(&more), expected, "{more}");
        }
    }

    #[test]
    fn what_it_chooses_is_chosen_for_good() {
        let mut old = pool(&json!({}));
        assert_eq!(admit(&mut old, None), []);
        assert_eq!(old["spec"]["replicas"], 1);
        let mut new = old.clone();
        new["spec"]["selector"] = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
        let found = admit(&mut new, Some(&old));
        assert_eq!((found[0].field.as_str(), found[0].cause), (SELECTOR, Forbidden));
    }

    #[test]
    fn the_example_is_a_pool() {
        let text = include_str!("../../../examples/standalone/pool.yaml");
        let mut pool = decode::documents(text).unwrap().remove(0);
        assert_eq!(admit(&mut pool, None), []);
        assert_eq!(pool["spec"]["replicas"], 2);
    }
}
