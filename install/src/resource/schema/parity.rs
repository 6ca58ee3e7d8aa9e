//! The core types inside of KubeVirt's, against Kubernetes' own.

use k8s_openapi::api::core::v1::{
    Affinity, DownwardAPIVolumeFile, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectFieldSelector, PodAffinity, PodAffinityTerm, PodAntiAffinity, PreferredSchedulingTerm,
    ResourceFieldSelector, Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::{Map, Value, json};

use super::DEFINITIONS;

fn text() -> String {
    "x".to_owned()
}

fn texts() -> Option<Vec<String>> {
    Some(vec![text()])
}

fn selector() -> LabelSelector {
    let requirement = LabelSelectorRequirement { key: text(), operator: text(), values: texts() };
    LabelSelector {
        match_expressions: Some(vec![requirement]),
        match_labels: Some([(text(), text())].into()),
    }
}

fn node_term() -> NodeSelectorTerm {
    let requirements =
        || Some(vec![NodeSelectorRequirement { key: text(), operator: text(), values: texts() }]);
    NodeSelectorTerm { match_expressions: requirements(), match_fields: requirements() }
}

fn pod_term() -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: Some(selector()),
        match_label_keys: texts(),
        mismatch_label_keys: texts(),
        namespace_selector: Some(selector()),
        namespaces: texts(),
        topology_key: text(),
    }
}

fn weighted() -> Option<Vec<WeightedPodAffinityTerm>> {
    Some(vec![WeightedPodAffinityTerm { pod_affinity_term: pod_term(), weight: 1 }])
}

/// Every field of every type that KubeVirt's spec embeds.
fn spec() -> Value {
    let affinity = Affinity {
        node_affinity: Some(NodeAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![PreferredSchedulingTerm {
                preference: node_term(),
                weight: 1,
            }]),
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![node_term()],
            }),
        }),
        pod_affinity: Some(PodAffinity {
            preferred_during_scheduling_ignored_during_execution: weighted(),
            required_during_scheduling_ignored_during_execution: Some(vec![pod_term()]),
        }),
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: weighted(),
            required_during_scheduling_ignored_during_execution: Some(vec![pod_term()]),
        }),
    };
    let toleration = Toleration {
        effect: Some(text()),
        key: Some(text()),
        operator: Some(text()),
        toleration_seconds: Some(1),
        value: Some(text()),
    };
    let constraint = TopologySpreadConstraint {
        label_selector: Some(selector()),
        match_label_keys: texts(),
        max_skew: 1,
        min_domains: Some(1),
        node_affinity_policy: Some(text()),
        node_taints_policy: Some(text()),
        topology_key: text(),
        when_unsatisfiable: text(),
    };
    json!({"affinity": affinity, "tolerations": [toleration], "topologySpreadConstraints": [constraint]})
}

fn volume_file() -> Value {
    let file = DownwardAPIVolumeFile {
        field_ref: Some(ObjectFieldSelector { api_version: Some(text()), field_path: text() }),
        mode: Some(1),
        path: text(),
        resource_field_ref: Some(ResourceFieldSelector {
            container_name: Some(text()),
            divisor: Some(Quantity("1".to_owned())),
            resource: text(),
        }),
    };
    json!(file)
}

/// Both have the same fields, at every level.
fn compare(schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        return compare(DEFINITIONS.get(name).unwrap(), value, at);
    }
    match value {
        Value::Array(values) => values.iter().for_each(|value| compare(&schema["items"], value, at)),
        Value::Object(fields) => {
            let Some(known) = schema.get("properties").and_then(Value::as_object) else {
                assert!(schema.get("additionalProperties").is_some(), "{at} is opaque");
                return;
            };
            let names = |fields: &Map<String, Value>| {
                let mut names: Vec<String> = fields.keys().cloned().collect();
                names.sort();
                names
            };
            assert_eq!(names(known), names(fields), "{at}");
            for (name, value) in fields {
                compare(&known[name], value, &format!("{at}.{name}"));
            }
        }
        leaf => {
            let kind = schema.get("type").and_then(Value::as_str);
            let fits = match kind {
                Some("string") => leaf.is_string(),
                Some("integer") => leaf.is_i64(),
                Some("boolean") => leaf.is_boolean(),
                _ => schema.get("x-kubernetes-int-or-string").is_some(),
            };
            assert!(fits, "{at}: {kind:?}");
        }
    }
}

#[test]
fn embedded_core_types_have_kubernetes_fields() {
    let vmi = &DEFINITIONS.get("VirtualMachineInstanceSpec").unwrap()["properties"];
    for (name, value) in spec().as_object().unwrap() {
        compare(&vmi[name], value, name);
    }
    compare(DEFINITIONS.get("DownwardApiVolumeFile").unwrap(), &volume_file(), "downwardAPI");
}

/// Upstream's schema has 752 paths below a VMI's spec: everything that leads somewhere is described.
#[test]
fn no_field_of_a_vmis_spec_is_opaque() {
    fn opaque(schema: &Value, at: &str, depth: usize, found: &mut Vec<String>) {
        let name = schema.get("$ref").and_then(Value::as_str);
        let schema = name.map_or(schema, |name| DEFINITIONS.get(name).unwrap());
        if schema.get("x-kubernetes-preserve-unknown-fields").is_some() {
            found.push(at.to_owned());
        }
        assert!(depth < 32, "{at}");
        for (field, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            opaque(schema, &format!("{at}.{field}"), depth + 1, found);
        }
        for inner in ["items", "additionalProperties"] {
            if let Some(schema) = schema.get(inner) {
                opaque(schema, at, depth + 1, found);
            }
        }
    }
    for kind in
        ["VirtualMachineInstanceSpec", "VirtualMachinePreferenceSpec", "VirtualMachineInstancetypeSpec"]
    {
        let mut found = Vec::new();
        opaque(DEFINITIONS.get(kind).unwrap(), kind, 0, &mut found);
        assert_eq!(found, [""; 0]);
    }
}

#[test]
fn lists_of_a_vmis_spec_are_merged_by_kubevirts_keys() {
    let vmi = &DEFINITIONS.get("VirtualMachineInstanceSpec").unwrap()["properties"];
    for (list, keys) in [
        ("topologySpreadConstraints", json!(["topologyKey", "whenUnsatisfiable"])),
        ("utilityVolumes", json!(["name"])),
        ("resourceClaims", json!(["name"])),
    ] {
        assert_eq!(vmi[list]["x-kubernetes-list-type"], "map", "{list}");
        assert_eq!(vmi[list]["x-kubernetes-list-map-keys"], keys, "{list}");
    }
    assert_eq!(vmi["tolerations"].get("x-kubernetes-list-type"), None);
    assert_eq!(DEFINITIONS.get("NodeSelector").unwrap()["x-kubernetes-map-type"], "atomic");
    assert_eq!(DEFINITIONS.get("LabelSelector").unwrap()["x-kubernetes-map-type"], "atomic");
}
