//! Labels of the Node that tell which guests it can run: CPU models, CPU features, Hyper-V enlightenments and others, as
//! KubeVirt's node labeller has them. Launcher Pods select nodes by them.
//!
//! On a node with KVM they are what KVM reports, which QEMU runs guests with; without it, what QEMU emulates.

mod catalog;
mod host;
mod obsolete;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use vireo_api::names::{
    CPU_FEATURE_LABELS, CPU_MODEL_LABELS, CPU_MODEL_MIGRATION_LABELS, CPU_TIMER_LABELS, CPU_VENDOR_LABELS,
    HOST_MODEL_FEATURE_LABELS, HOST_MODEL_LABELS, HYPERV_LABELS, MACHINE_TYPE_LABELS,
    OBSOLETE_HOST_MODEL_LABEL, REALTIME_LABEL, SKIP_LABELLER_ANNOTATION, TSC_FREQUENCY_LABELS,
    is_node_labellers,
};

use catalog::{Catalog, Model};
pub use obsolete::ObsoleteModels;

const MACHINE_TYPE: &str = "q35";
/// Features that QEMU leaves out of named models on KVM, and those that depend on them, in CPUID's leaf 0x8000_000A.
const OFF_ON_KVM: [&str; 3] = ["acpi", "monitor", "svm"];
const SVM_LEAF: u32 = 0x8000_000a;
/// The feature that models have on KVM, and not in the table.
const VME: &str = "vme";

/// What a node tells of itself.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    vendor: Option<&'static str>,
    /// Absent where guests are emulated.
    kvm: Option<KvmFacts>,
    /// Whether real-time tasks may run without a limit.
    is_realtime: bool,
}

/// What KVM offers to guests.
#[derive(Debug, Clone, Default)]
struct KvmFacts {
    /// Names of CPU features.
    features: BTreeSet<&'static str>,
    /// Hyper-V enlightenments.
    hyperv: BTreeSet<&'static str>,
    tsc: Option<Tsc>,
}

/// The time stamp counter.
#[derive(Debug, Clone, Copy)]
struct Tsc {
    hertz: u64,
    /// Whether guests may have one with another frequency.
    is_scalable: bool,
}

impl Facts {
    /// Those of this node. Blocks.
    pub fn of_this_node() -> Self {
        host::read()
    }
}

/// The labels of a node.
pub type Labels = BTreeMap<String, String>;

/// The labels of a node with these facts.
pub fn labels(facts: &Facts, obsolete: &ObsoleteModels) -> Labels {
    let catalog = Catalog::read();
    let mut labels = Labels::new();
    let mut add =
        |prefix: &str, name: &str| drop(labels.insert(format!("{prefix}{name}"), "true".to_owned()));
    add(MACHINE_TYPE_LABELS, MACHINE_TYPE);
    if let Some(vendor) = facts.vendor {
        add(CPU_VENDOR_LABELS, vendor);
    }
    if facts.is_realtime {
        add(REALTIME_LABEL, "");
    }
    let features = facts.kvm.as_ref().map_or(&catalog.emulated, |kvm| &kvm.features);
    for feature in catalog.features.iter().filter(|feature| features.contains(feature.name)) {
        add(CPU_FEATURE_LABELS, feature.name);
        feature.aliases.iter().for_each(|alias| add(CPU_FEATURE_LABELS, alias));
    }
    let usable = usable_models(&catalog, facts);
    let obsolete = obsolete.of(&catalog);
    for model in usable.iter().filter(|model| !obsolete.contains(model)) {
        add(CPU_MODEL_LABELS, model.name);
        add(CPU_MODEL_MIGRATION_LABELS, model.name);
    }
    let Some(kvm) = &facts.kvm else { return labels };
    if let Some(model) = host_model(&usable, facts.vendor) {
        add(HOST_MODEL_LABELS, model.name);
        let beyond = kvm.features.difference(&model.features).filter(|name| **name != VME);
        beyond.for_each(|name| add(HOST_MODEL_FEATURE_LABELS, name));
        if obsolete.contains(model) {
            add(OBSOLETE_HOST_MODEL_LABEL, "");
        }
    }
    kvm.hyperv.iter().for_each(|name| add(HYPERV_LABELS, name));
    if let Some(Tsc { hertz, is_scalable }) = kvm.tsc {
        add(TSC_FREQUENCY_LABELS, &hertz.to_string());
        let mut timer = |name, value| labels.insert(format!("{CPU_TIMER_LABELS}{name}"), value);
        timer("tsc-frequency", hertz.to_string());
        timer("tsc-scalable", is_scalable.to_string());
    }
    labels
}

/// The models that guests of the node can have with all their features.
fn usable_models<'a>(catalog: &'a Catalog, facts: &Facts) -> Vec<&'a Model> {
    let Some(kvm) = &facts.kvm else {
        return catalog.models.iter().filter(|model| model.features.is_subset(&catalog.emulated)).collect();
    };
    let of_svm = catalog.features.iter().filter(|feature| feature.location.is_in_leaf(SVM_LEAF));
    let off: BTreeSet<&str> = of_svm.map(|feature| feature.name).chain(OFF_ON_KVM).collect();
    let is_usable =
        |model: &&Model| model.features.difference(&off).all(|feature| kvm.features.contains(feature));
    catalog.models.iter().filter(is_usable).collect()
}

/// The model of the node's vendor with the most features, by its usual name.
fn host_model<'a>(usable: &[&'a Model], vendor: Option<&str>) -> Option<&'a Model> {
    let of_vendor = usable.iter().copied().filter(|model| Some(model.vendor) == vendor);
    of_vendor.max_by_key(|model| (model.features.len(), model.is_alias))
}

/// Writes the labels into a Node. Managed labels that it has no more are removed, and those of others stay.
pub fn apply(node: &mut Value, labels: &Labels) {
    let metadata = &mut node["metadata"];
    if metadata["annotations"].get(SKIP_LABELLER_ANNOTATION).is_some() {
        return;
    }
    if !metadata["labels"].is_object() {
        metadata["labels"] = Value::Object(Map::new());
    }
    let Some(present) = metadata["labels"].as_object_mut() else { return };
    present.retain(|label, _| !is_node_labellers(label));
    present.extend(labels.iter().map(|(label, value)| (label.clone(), json!(value))));
}

#[cfg(test)]
mod tests;
