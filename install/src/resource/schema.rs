//! What the fields of KubeVirt's objects are: from the very types that read them, with their comments as the words of
//! `kubectl explain`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;
use vireo_api::v1::{
    KubeVirt, Shape as _, VirtualMachine, VirtualMachineClusterInstancetype, VirtualMachineClusterPreference,
    VirtualMachineInstance, VirtualMachineInstanceReplicaSet, VirtualMachineInstancetype, VirtualMachinePool,
    VirtualMachinePreference,
};
use vireo_apiserver::resource::KUBERNETES;
use vireo_apiserver::schema::Definitions;

#[cfg(test)]
mod parity;

/// Core types that KubeVirt's specs embed.
const EMBEDDED: [&str; 14] = [
    "Affinity",
    "NodeAffinity",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "ObjectFieldSelector",
    "PodAffinity",
    "PodAffinityTerm",
    "PodAntiAffinity",
    "PreferredSchedulingTerm",
    "ResourceFieldSelector",
    "Toleration",
    "TopologySpreadConstraint",
    "WeightedPodAffinityTerm",
];

/// The definitions of KubeVirt's kinds, and of Kubernetes', to which they refer.
pub static DEFINITIONS: Definitions = Definitions::new(definitions, package);

/// The definitions of KubeVirt's types, some of which have names that Kubernetes' types have, too.
static KUBEVIRT: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let mut definitions = BTreeMap::new();
    VirtualMachineInstance::schema(&mut definitions);
    VirtualMachine::schema(&mut definitions);
    VirtualMachineInstanceReplicaSet::schema(&mut definitions);
    VirtualMachinePool::schema(&mut definitions);
    VirtualMachineInstancetype::schema(&mut definitions);
    VirtualMachineClusterInstancetype::schema(&mut definitions);
    VirtualMachinePreference::schema(&mut definitions);
    VirtualMachineClusterPreference::schema(&mut definitions);
    definitions
});

/// The definitions of KubeVirt objects, and of Kubernetes', to which they refer.
pub static INSTALLATION: Definitions = Definitions::new(installation, package);

fn installation() -> BTreeMap<String, Value> {
    let mut definitions = BTreeMap::new();
    KubeVirt::schema(&mut definitions);
    for (name, schema) in KUBERNETES.iter() {
        definitions.entry(name.clone()).or_insert_with(|| schema.clone());
    }
    definitions
}

fn definitions() -> BTreeMap<String, Value> {
    let mut definitions = KUBEVIRT.clone();
    for (name, schema) in KUBERNETES.iter() {
        // What every kind has is described once, and more fully than the part that Vireo reads.
        // KubeVirt's types describe more of the selectors that they embed.
        let is_general = is_of_metadata(name) && !name.starts_with("LabelSelector");
        if is_general || !KUBEVIRT.contains_key(name) {
            definitions.insert(name.clone(), schema.clone());
        }
    }
    definitions
}

/// Whether a definition is of the metadata that every object has.
fn is_of_metadata(name: &str) -> bool {
    KUBERNETES.get(name).is_some() && KUBERNETES.package(name).starts_with("io.k8s.apimachinery")
}

/// The package under whose name a definition is published.
fn package(name: &str) -> &'static str {
    if EMBEDDED.contains(&name) {
        "io.k8s.api.core.v1"
    } else if is_of_metadata(name) || !KUBEVIRT.contains_key(name) {
        KUBERNETES.package(name)
    } else {
        "io.kubevirt.v1"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_field_and_column_has_a_description() {
        assert_eq!(DEFINITIONS.undescribed(), [""; 0]);
        assert_eq!(INSTALLATION.undescribed(), [""; 0]);
        for row in crate::resource::kubevirt::rows() {
            assert_eq!(row.undescribed_columns(), [""; 0], "{}", row.kind);
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_kind_has_a_definition() {
        assert_eq!(DEFINITIONS.undefined(), [""; 0]);
        assert_eq!(INSTALLATION.undefined(), [""; 0]);
        for row in crate::resource::kubevirt::rows() {
            assert!(DEFINITIONS.get(&row.kind).is_some(), "{}", row.kind);
        }
        assert!(DEFINITIONS.iter().count() > 100, "KubeVirt's types are among them");
    }
}
