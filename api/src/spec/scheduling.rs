//! Affinity, tolerations and topology spread constraints, as Kubernetes validates them in a pod's spec. They are read
//! where a VMI is placed; here they are only checked.

use super::Field;
use super::labels::{label_name, label_selector, label_value};
use super::report::Findings;
use super::syntax::{is_dns_label, is_dns_subdomain};
use crate::v1;

const NOT_AN_OPERATOR: &str = "not a valid selector operator";
const NOT_POSITIVE: &str = "must be greater than zero";
const TOPOLOGY_KEY: &str = "can not be empty";
const DO_NOT_SCHEDULE: &str = "DoNotSchedule";

pub(super) fn validate(spec: &v1::VirtualMachineInstanceSpec, found: &mut Findings) {
    let at = Field::new("spec");
    if let Some(affinity) = &spec.affinity {
        self::affinity(affinity, &at.at("affinity"), found);
    }
    for (index, toleration) in spec.tolerations.iter().enumerate() {
        self::toleration(toleration, &at.at("tolerations").index(index), found);
    }
    spread(&spec.topology_spread_constraints, &at.at("topologySpreadConstraints"), found);
    if !spec.service_account_name.is_empty() && !is_dns_subdomain(&spec.service_account_name) {
        let field = at.at("serviceAccountName");
        found.invalid_value(&field, &spec.service_account_name, super::syntax::RFC_1123_SUBDOMAIN);
    }
}

fn affinity(affinity: &v1::Affinity, at: &Field, found: &mut Findings) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    if let Some(nodes) = &affinity.node_affinity {
        let at = at.at("nodeAffinity");
        if let Some(required) = &nodes.required_during_scheduling_ignored_during_execution {
            node_selector(required, &at.at(REQUIRED).at("nodeSelectorTerms"), found);
        }
        let preferred = &nodes.preferred_during_scheduling_ignored_during_execution;
        for (index, term) in preferred.iter().enumerate() {
            let at = at.at(PREFERRED).index(index);
            weight(term.weight, &at, found);
            node_selector_term(&term.preference, &at.at("preference"), found);
        }
    }
    let pods = affinity.pod_affinity.as_ref().map(|pods| {
        let required = &pods.required_during_scheduling_ignored_during_execution;
        ("podAffinity", required, &pods.preferred_during_scheduling_ignored_during_execution)
    });
    let others = affinity.pod_anti_affinity.as_ref().map(|pods| {
        let required = &pods.required_during_scheduling_ignored_during_execution;
        ("podAntiAffinity", required, &pods.preferred_during_scheduling_ignored_during_execution)
    });
    for (name, required, preferred) in [pods, others].into_iter().flatten() {
        let at = at.at(name);
        for (index, term) in required.iter().enumerate() {
            pod_affinity_term(term, &at.at(REQUIRED).index(index), found);
        }
        for (index, term) in preferred.iter().enumerate() {
            let at = at.at(PREFERRED).index(index);
            weight(term.weight, &at, found);
            pod_affinity_term(&term.pod_affinity_term, &at.at("podAffinityTerm"), found);
        }
    }
}

fn weight(weight: Option<i32>, at: &Field, found: &mut Findings) {
    let weight = weight.unwrap_or(0);
    if !(1..=100).contains(&weight) {
        found.invalid_value(&at.at("weight"), weight, "must be in the range 1-100");
    }
}

fn node_selector(selector: &v1::NodeSelector, at: &Field, found: &mut Findings) {
    if selector.node_selector_terms.is_empty() {
        found.required_value(at, "must have at least one node selector term");
    }
    for (index, term) in selector.node_selector_terms.iter().enumerate() {
        node_selector_term(term, &at.index(index), found);
    }
}

fn node_selector_term(term: &v1::NodeSelectorTerm, at: &Field, found: &mut Findings) {
    for (index, requirement) in term.match_expressions.iter().enumerate() {
        node_label(requirement, &at.at("matchExpressions").index(index), found);
    }
    for (index, requirement) in term.match_fields.iter().enumerate() {
        node_field(requirement, &at.at("matchFields").index(index), found);
    }
}

fn node_label(requirement: &v1::NodeSelectorRequirement, at: &Field, found: &mut Findings) {
    let (values, count) = (at.at("values"), requirement.values.len());
    match requirement.operator.as_str() {
        "In" | "NotIn" if count == 0 => {
            found.required_value(&values, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if count > 0 => {
            found.forbidden(&values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "Gt" | "Lt" if count != 1 => {
            found.required_value(&values, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => found.invalid_value(&at.at("operator"), other, NOT_AN_OPERATOR),
    }
    label_name(&requirement.key, &at.at("key"), found);
}

fn node_field(requirement: &v1::NodeSelectorRequirement, at: &Field, found: &mut Findings) {
    let values = at.at("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if requirement.values.len() == 1 => {}
        "In" | "NotIn" => found.required_value(
            &values,
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        ),
        other => found.invalid_value(&at.at("operator"), other, NOT_AN_OPERATOR),
    }
    if requirement.key != "metadata.name" {
        found.invalid_value(&at.at("key"), &requirement.key, "not a valid field selector key");
        return;
    }
    for (index, name) in requirement.values.iter().enumerate() {
        if !is_dns_subdomain(name) {
            found.invalid_value(&values.index(index), name, super::syntax::RFC_1123_SUBDOMAIN);
        }
    }
}

fn pod_affinity_term(term: &v1::PodAffinityTerm, at: &Field, found: &mut Findings) {
    for (name, selector) in
        [("labelSelector", &term.label_selector), ("namespaceSelector", &term.namespace_selector)]
    {
        if let Some(selector) = selector {
            label_selector(selector, &at.at(name), found);
        }
    }
    for (name, keys) in
        [("matchLabelKeys", &term.match_label_keys), ("mismatchLabelKeys", &term.mismatch_label_keys)]
    {
        label_keys(keys, term.label_selector.as_ref(), &at.at(name), found);
    }
    for (index, namespace) in term.namespaces.iter().enumerate() {
        if !is_dns_label(namespace) {
            let field = at.at("namespaces").index(index);
            found.invalid_value(&field, namespace, super::syntax::RFC_1123_LABEL);
        }
    }
    topology_key(&term.topology_key, &at.at("topologyKey"), found);
}

fn topology_key(key: &str, at: &Field, found: &mut Findings) {
    if key.is_empty() {
        found.required_value(at, TOPOLOGY_KEY);
    } else {
        label_name(key, at, found);
    }
}

/// Keys of labels that are merged into a selector.
fn label_keys(keys: &[String], selector: Option<&v1::LabelSelector>, at: &Field, found: &mut Findings) {
    if !keys.is_empty() && selector.is_none() {
        found.forbidden(at, "must not be specified when labelSelector is not set");
        return;
    }
    for (index, key) in keys.iter().enumerate() {
        let at = at.index(index);
        label_name(key, &at, found);
        let selects = |selector: &v1::LabelSelector| {
            selector.match_labels.contains_key(key)
                || selector.match_expressions.iter().any(|requirement| requirement.key == *key)
        };
        if selector.is_some_and(selects) {
            found.invalid_value(&at, key, "exists in both the keys and labelSelector");
        }
    }
}

fn toleration(toleration: &v1::Toleration, at: &Field, found: &mut Findings) {
    let v1::Toleration { key, operator, value, effect, .. } = toleration;
    if !key.is_empty() {
        label_name(key, &at.at("key"), found);
    } else if operator != "Exists" {
        let detail =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        found.invalid_value(&at.at("operator"), operator, detail);
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        found.invalid_value(&at.at("effect"), effect, detail);
    }
    match operator.as_str() {
        "" | "Equal" => label_value(value, &at.at("value"), found),
        "Exists" if value.is_empty() => {}
        "Exists" => {
            found.invalid_value(&at.at("value"), value, "value must be empty when `operator` is 'Exists'");
        }
        other => found.unsupported_value(&at.at("operator"), other, &["Equal", "Exists"]),
    }
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if !effect.is_empty() && !effects.contains(&effect.as_str()) {
        found.unsupported_value(&at.at("effect"), effect, &effects);
    }
}

fn spread(constraints: &[v1::TopologySpreadConstraint], at: &Field, found: &mut Findings) {
    for (index, constraint) in constraints.iter().enumerate() {
        let at = at.index(index);
        let action = constraint.when_unsatisfiable.as_str();
        let skew = constraint.max_skew.unwrap_or(0);
        if skew <= 0 {
            found.invalid_value(&at.at("maxSkew"), skew, NOT_POSITIVE);
        }
        topology_key(&constraint.topology_key, &at.at("topologyKey"), found);
        let actions = [DO_NOT_SCHEDULE, "ScheduleAnyway"];
        if !actions.contains(&action) {
            found.unsupported_value(&at.at("whenUnsatisfiable"), action, &actions);
        }
        let same = |other: &v1::TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key && other.when_unsatisfiable == action
        };
        if constraints.iter().take(index).any(same) {
            let field = at.at("{topologyKey, whenUnsatisfiable}");
            found.duplicate_value(&field, &format!("{{{}, {action}}}", constraint.topology_key));
        }
        if let Some(domains) = constraint.min_domains {
            let field = at.at("minDomains");
            if domains <= 0 {
                found.invalid_value(&field, domains, NOT_POSITIVE);
            }
            if action != DO_NOT_SCHEDULE {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable={DO_NOT_SCHEDULE}, not {action}");
                found.invalid_value(&field, domains, &detail);
            }
        }
        for (name, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            let policies = ["Honor", "Ignore"];
            if let Some(policy) = policy.as_deref().filter(|policy| !policies.contains(policy)) {
                found.unsupported_value(&at.at(name), policy, &policies);
            }
        }
        let selector = constraint.label_selector.as_ref();
        label_keys(&constraint.match_label_keys, selector, &at.at("matchLabelKeys"), found);
        if let Some(selector) = selector {
            label_selector(selector, &at.at("labelSelector"), found);
        }
    }
}
