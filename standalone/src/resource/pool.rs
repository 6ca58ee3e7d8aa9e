//! VirtualMachinePools before they are stored.

use jiff::SignedDuration;
use serde_json::Value;
use vireo_api::v1::{
    IntOrString, ObjectMeta, Shape as _, VirtualMachine, VirtualMachinePool,
    VirtualMachinePoolSelectionPolicy, VirtualMachinePoolSpec, VirtualMachineTemplateSpec,
};
use vireo_apiserver::resource::Cause;
use vireo_operators::pool::SORT_POLICIES;

use super::machine::{judge, unknown};
use super::replicaset::{completed, of_label_selector, of_selector};

const TEMPLATE: &str = "spec.virtualMachineTemplate";
const SELECTOR: &str = "spec.selector";

pub(super) fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let pool = match completed::<VirtualMachinePool>(new, old) {
        Ok(pool) => pool,
        Err(causes) => return causes,
    };
    let mut strangers = Vec::new();
    pool.strangers("", &mut strangers);
    let mut causes = unknown(&strangers, TEMPLATE);
    if pool.spec.replicas.is_some_and(|replicas| replicas < 0) {
        causes.push(Cause::invalid("spec.replicas", "must be greater than or equal to 0"));
    }
    match &pool.spec.virtual_machine_template {
        None => causes.push(Cause::required(TEMPLATE, "missing virtual machine template")),
        Some(template) => {
            causes.extend(of_machine(&pool.metadata, template));
            causes.extend(of_selector(pool.spec.selector.as_ref(), &template.metadata.labels));
        }
    }
    if old.is_some_and(|old| old.pointer("/spec/selector") != new.pointer("/spec/selector")) {
        let message = "selector is immutable after creation.";
        causes.push(Cause { reason: "FieldValueForbidden", ..Cause::invalid(SELECTOR, message) });
    }
    causes.extend(max_unavailable(pool.spec.max_unavailable.as_ref()));
    causes.extend(strategies(&pool.spec));
    causes.extend(healing(&pool.spec));
    causes
}

/// What every machine of it would be refused for. What it is by its instance type and its preference, it is told when it
/// is made.
fn of_machine(pool: &ObjectMeta, template: &VirtualMachineTemplateSpec) -> Vec<Cause> {
    let metadata = ObjectMeta {
        name: format!("{}-0", pool.name),
        namespace: pool.namespace.clone(),
        labels: template.metadata.labels.clone(),
        annotations: template.metadata.annotations.clone(),
        ..ObjectMeta::default()
    };
    let machine = VirtualMachine { metadata, spec: template.spec.clone(), ..VirtualMachine::default() };
    let below = |cause: Cause| Cause { field: format!("{TEMPLATE}.{}", cause.field), ..cause };
    judge(&machine).into_iter().map(below).collect()
}

fn max_unavailable(given: Option<&IntOrString>) -> Option<Cause> {
    let percent = |text: &str| text.strip_suffix('%').and_then(|digits| digits.parse::<u8>().ok());
    let fits = match given {
        None => true,
        Some(IntOrString::Int(number)) => *number > 0,
        Some(IntOrString::String(text)) => percent(text).is_some_and(|percent| (1..=100).contains(&percent)),
    };
    let message = "must be a number greater than 0, or a percentage from 1% to 100%";
    (!fits).then(|| Cause::invalid("spec.maxUnavailable", message))
}

fn strategies(spec: &VirtualMachinePoolSpec) -> Vec<Cause> {
    let mut causes = Vec::new();
    let one_of = |field: &str, given: [bool; 3]| {
        let several = given.iter().filter(|given| **given).count() > 1;
        let message = "only one of unmanaged, opportunistic and proactive may be given";
        several.then(|| Cause::invalid(field, message))
    };
    if let Some(one) = &spec.scale_in_strategy {
        let field = "spec.scaleInStrategy";
        let given = [one.unmanaged.is_some(), one.opportunistic.is_some(), one.proactive.is_some()];
        causes.extend(one_of(field, given));
        let waits = one.opportunistic.as_ref();
        causes.extend(preserved(
            &format!("{field}.opportunistic"),
            waits.and_then(|one| one.state_preservation.as_deref()),
        ));
        if let Some(one) = &one.proactive {
            let field = format!("{field}.proactive");
            causes.extend(preserved(&field, one.state_preservation.as_deref()));
            causes.extend(policy(&field, one.selection_policy.as_ref()));
        }
    }
    if let Some(one) = &spec.update_strategy {
        let field = "spec.updateStrategy";
        let given = [one.unmanaged.is_some(), one.opportunistic.is_some(), one.proactive.is_some()];
        causes.extend(one_of(field, given));
        let proactive = one.proactive.as_ref();
        causes.extend(policy(
            &format!("{field}.proactive"),
            proactive.and_then(|one| one.selection_policy.as_ref()),
        ));
    }
    causes
}

/// Claims belong to nobody's machine here, so they outlive it whatever is said.
fn preserved(field: &str, given: Option<&str>) -> Option<Cause> {
    let field = format!("{field}.statePreservation");
    match given {
        None | Some("" | "Disabled" | "Offline") => None,
        Some("Online") => {
            Some(Cause::unsupported(field, "Online is not available yet: use Disabled or Offline"))
        }
        Some(_) => Some(Cause::invalid(field, "is none of Disabled, Offline and Online")),
    }
}

fn policy(field: &str, given: Option<&VirtualMachinePoolSelectionPolicy>) -> Vec<Cause> {
    let Some(policy) = given else { return Vec::new() };
    let field = format!("{field}.selectionPolicy");
    let mut causes = Vec::new();
    if policy.sort_policy.as_deref().is_some_and(|policy| !SORT_POLICIES.contains(&policy)) {
        let message = format!("is none of {}", SORT_POLICIES.join(", "));
        causes.push(Cause::invalid(format!("{field}.sortPolicy"), message));
    }
    let Some(selectors) = &policy.selectors else { return causes };
    let field = format!("{field}.selectors");
    if !selectors.node_selector_requirement_matcher.is_empty() {
        let message = "is not available: there is one node";
        causes.push(Cause::unsupported(format!("{field}.nodeSelectorRequirementMatcher"), message));
    }
    if let Some(selector) = &selectors.label_selector {
        causes.extend(of_label_selector(selector, &format!("{field}.labelSelector")));
    }
    causes
}

fn healing(spec: &VirtualMachinePoolSpec) -> Vec<Cause> {
    let Some(healing) = &spec.autohealing else { return Vec::new() };
    let mut causes = Vec::new();
    if healing.start_up_failure_threshold.is_some_and(|threshold| threshold < 1) {
        let message = "must be greater than or equal to 1";
        causes.push(Cause::invalid("spec.autohealing.startUpFailureThreshold", message));
    }
    let given = healing.min_failing_to_start_duration.as_deref();
    if given.is_some_and(|text| text.parse::<SignedDuration>().is_err()) {
        let message = "is no duration: write it as 90s, 5m or 1h30m";
        causes.push(Cause::invalid("spec.autohealing.minFailingToStartDuration", message));
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::decode;

    use super::*;

    fn pool(more: &Value) -> Value {
        let machine = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"runStrategy": "Always",
            "template": {"spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}}}});
        let mut pool = json!({"apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool",
            "metadata": {"name": "x", "namespace": "n"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "virtualMachineTemplate": machine}});
        for (field, value) in more.as_object().unwrap() {
            pool["spec"][field] = value.clone();
        }
        pool
    }

    fn fields(more: &Value) -> Vec<String> {
        admit(&mut pool(more), None).into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn each_part_is_judged_by_its_field() {
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
        let told = admit(&mut new, Some(&old));
        assert_eq!((told[0].field.as_str(), told[0].reason), (SELECTOR, "FieldValueForbidden"));
    }

    #[test]
    fn the_example_is_a_pool() {
        let text = include_str!("../../../examples/standalone/pool.yaml");
        let mut pool = decode::documents(text).unwrap().remove(0);
        assert_eq!(admit(&mut pool, None), []);
        assert_eq!(pool["spec"]["replicas"], 2);
    }
}
