//! Which nodes the launcher Pod of an instance may be bound to.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
};
use vireo_api::cpu::{Feature, feature as feature_of};
use vireo_api::names::{
    CPU_FEATURE_LABELS, CPU_MANAGER_LABEL, CPU_MODEL_LABELS, REALTIME_LABEL, SCHEDULABLE_LABEL,
};
use vireo_api::v1::{Cpu, CpuFeature, VirtualMachineInstance};

use crate::config::{ARCHITECTURE, ClusterConfig};

/// CPU models that every node has.
const MODELS_OF_ANY_NODE: [&str; 3] = ["", "host-model", "host-passthrough"];
/// Policies of CPU features that a node must have.
const REQUIRED: [&str; 2] = ["", "require"];
const FORBIDDEN: &str = "forbid";

/// The labels that a node must have: those that instance and cluster select, and those of its CPU.
pub(super) fn node_selector(
    vmi: &VirtualMachineInstance,
    config: &ClusterConfig,
) -> BTreeMap<String, String> {
    let spec = &vmi.spec;
    let architecture =
        Some(spec.architecture.as_str()).filter(|given| !given.is_empty()).unwrap_or(ARCHITECTURE);
    let mut selector = BTreeMap::from([
        (SCHEDULABLE_LABEL.to_owned(), "true".to_owned()),
        ("kubernetes.io/arch".to_owned(), architecture.to_owned()),
    ]);
    selector.extend(config.node_selectors.clone());
    selector.extend(spec.node_selector.clone());
    if super::resources::has_dedicated_cpus(vmi) {
        selector.insert(CPU_MANAGER_LABEL.to_owned(), "true".to_owned());
    }
    let Some(cpu) = spec.domain.cpu.as_deref() else { return selector };
    if cpu.realtime.is_some() {
        selector.insert(REALTIME_LABEL.to_owned(), "true".to_owned());
    }
    let model = Some(&cpu.model).filter(|model| !MODELS_OF_ANY_NODE.contains(&model.as_str()));
    let model = model.map(|model| format!("{CPU_MODEL_LABELS}{model}"));
    let features = features(cpu, |policy| REQUIRED.contains(&policy));
    selector.extend(model.into_iter().chain(features).map(|label| (label, "true".to_owned())));
    selector
}

/// The affinity of an instance, which keeps it from nodes with a CPU feature that it forbids.
pub(super) fn affinity(vmi: &VirtualMachineInstance, given: Option<Affinity>) -> Option<Affinity> {
    let cpu = vmi.spec.domain.cpu.as_deref();
    let forbidden = cpu.into_iter().flat_map(|cpu| features(cpu, |policy| policy == FORBIDDEN));
    let absent = |key| NodeSelectorRequirement { key, operator: "DoesNotExist".to_owned(), values: None };
    let absent: Vec<NodeSelectorRequirement> = forbidden.map(absent).collect();
    if absent.is_empty() {
        return given;
    }
    let mut affinity = given.unwrap_or_default();
    let nodes = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
    match &mut nodes.required_during_scheduling_ignored_during_execution {
        Some(required) => {
            // A node needs to match one of the terms, and an empty one matches none.
            for term in required.node_selector_terms.iter_mut().filter(|term| !is_empty(term)) {
                term.match_expressions.get_or_insert_with(Vec::new).extend(absent.clone());
            }
        }
        none => {
            let term = NodeSelectorTerm { match_expressions: Some(absent), ..NodeSelectorTerm::default() };
            *none = Some(NodeSelector { node_selector_terms: vec![term] });
        }
    }
    Some(affinity)
}

fn is_empty(term: &NodeSelectorTerm) -> bool {
    let given = [&term.match_expressions, &term.match_fields];
    given.into_iter().flatten().all(Vec::is_empty)
}

/// The labels of the CPU features with a policy, by the name that they have there.
fn features(cpu: &Cpu, is_wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
    let wanted = cpu.features.iter().filter(move |feature| is_wanted(&feature.policy));
    let name = |feature: &CpuFeature| match feature_of(&feature.name) {
        Some(Feature::Labelled(name)) => name.to_owned(),
        Some(Feature::Unlabelled) | None => feature.name.clone(),
    };
    wanted.map(move |feature| format!("{CPU_FEATURE_LABELS}{}", name(feature)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vmi(spec: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({"metadata": {"name": "demo"}, "spec": spec})).unwrap()
    }

    fn cpu(cpu: Value) -> Value {
        json!({"domain": {"cpu": cpu}})
    }

    fn selector(spec: Value) -> Value {
        json!(node_selector(&vmi(spec), &ClusterConfig::default()))
    }

    /// That of an instance with the affinity.
    fn affinity_of(spec: &Value, given: Value) -> Value {
        json!(affinity(&vmi(spec.clone()), serde_json::from_value(given).unwrap()))
    }

    fn required(terms: Value) -> Value {
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
    }

    #[test]
    fn nodes_have_the_model_and_the_required_features() {
        let usual = json!({"kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true"});
        for model in ["", "host-model", "host-passthrough"] {
            assert_eq!(selector(cpu(json!({"model": model}))), usual);
        }
        let features = json!([{"name": "avx2"}, {"name": "lahf-lm", "policy": "require"},
            {"name": "a", "policy": "force"}, {"name": "b", "policy": "optional"},
            {"name": "c", "policy": "disable"}, {"name": "d", "policy": "forbid"}]);
        let mut expected = usual;
        // The label has libvirt's name.
        for label in ["cpu-feature.node.kubevirt.io/avx2", "cpu-feature.node.kubevirt.io/lahf_lm"] {
            expected[label] = json!("true");
        }
        expected["cpu-model.node.kubevirt.io/Haswell-noTSX"] = json!("true");
        assert_eq!(selector(cpu(json!({"model": "Haswell-noTSX", "features": features}))), expected);
    }

    #[test]
    fn real_time_needs_a_node_that_has_it() {
        let selected = selector(cpu(json!({"dedicatedCpuPlacement": true, "realtime": {}})));
        let labels = [CPU_MANAGER_LABEL, REALTIME_LABEL].map(|label| selected[label].as_str());
        assert_eq!(labels, [Some("true"); 2]);
        let usual = selector(cpu(json!({"dedicatedCpuPlacement": true})));
        assert_eq!(usual.get(REALTIME_LABEL), None);
    }

    #[test]
    fn what_the_cpu_needs_takes_precedence() {
        let mut spec = cpu(json!({"model": "Nehalem"}));
        spec["nodeSelector"] =
            json!({"cpu-model.node.kubevirt.io/Nehalem": "false", "kubevirt.io/schedulable": "false"});
        let selector = selector(spec);
        assert_eq!(selector["cpu-model.node.kubevirt.io/Nehalem"], "true");
        assert_eq!(selector["kubevirt.io/schedulable"], "false", "as the instance selects");
    }

    #[test]
    fn no_term_of_the_affinity_matches_nodes_with_a_forbidden_feature() {
        let forbids = cpu(json!({"features": [{"name": "rtm", "policy": "forbid"}]}));
        let absent = json!({"key": "cpu-feature.node.kubevirt.io/rtm", "operator": "DoesNotExist"});
        assert_eq!(affinity_of(&forbids, json!(null)), required(json!([{"matchExpressions": [absent]}])));

        let ssd = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
        let name = json!({"key": "metadata.name", "operator": "In", "values": ["node1"]});
        let given = required(json!([{"matchExpressions": [ssd]}, {"matchFields": [name]}, {}]));
        let terms = json!([{"matchExpressions": [ssd, absent]},
            {"matchExpressions": [absent], "matchFields": [name]}, {}]);
        assert_eq!(affinity_of(&forbids, given.clone()), required(terms), "the empty one matches no node");

        let others = cpu(json!({"features": [{"name": "rtm", "policy": "disable"}, {"name": "avx"}]}));
        assert_eq!(affinity_of(&others, given.clone()), given);
        assert_eq!(affinity_of(&others, json!(null)), json!(null));
    }
}
