//! The DataVolumes of the templates of a VM: which of them are created, and what the VM waits for before it is started.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use vireo_api::names::CREATED_BY_LABEL;
use vireo_api::v1::{DataVolumeTemplateSpec, VirtualMachine};
use vireo_client::{Kind, ObjectKey};

use super::Action;
use crate::data_volume::{DataVolume, Storage};
use crate::revision::owner_reference;

/// Of a VM: `false` has its DataVolumes created when it is started, and not with it; KubeVirt's.
const IMMEDIATE_ANNOTATION: &str = "kubevirt.io/immediate-data-volume-creation";
/// Of a DataVolume: lets it take over a claim of its name; CDI's.
const ADOPTION_ANNOTATION: &str = "cdi.kubevirt.io/allowClaimAdoption";
/// Whose service account is asked for where no volume names one.
const DEFAULT_ACCOUNT: &str = "default";

/// How far the DataVolumes of the templates of a VM are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Provision {
    /// There are no templates, or the VM can be started.
    #[default]
    Ready,
    /// The DataVolumes of these templates, by their indices, do not exist.
    Missing(Vec<usize>),
    /// The cluster has no DataVolumes, and a claim does not exist. The explanation.
    Unserved(String),
    /// A DataVolume is not filled. The explanation.
    Filling(String),
    /// A DataVolume is not being filled. The explanation.
    Failed(String),
}

impl Provision {
    /// How far they are in a cluster.
    pub fn of(vm: &VirtualMachine, storage: &impl Storage) -> Self {
        let templates = &vm.spec.data_volume_templates;
        let key = |template: &DataVolumeTemplateSpec| {
            ObjectKey::new(&vm.metadata.namespace, &template.metadata.name)
        };
        let is_missing = |template: &DataVolumeTemplateSpec| storage.data_volume(&key(template)).is_none();
        if !storage.serves_data_volumes() {
            let without_claim = templates.iter().find(|template| storage.claim(&key(template)).is_none());
            return without_claim.map_or(Self::Ready, |template| Self::Unserved(unserved(template)));
        }
        let missing = templates.iter().enumerate().filter(|(_, template)| is_missing(template));
        let missing: Vec<usize> = missing.map(|(index, _)| index).collect();
        if !missing.is_empty() {
            return Self::Missing(missing);
        }
        let found = templates.iter().filter_map(|template| storage.data_volume(&key(template)));
        let states = found.map(|data_volume| of_one(vm, &data_volume));
        // What cannot pass comes first.
        let first = states.min_by_key(|state| match state {
            Self::Failed(_) => 0,
            Self::Filling(_) => 1,
            Self::Ready | Self::Missing(_) | Self::Unserved(_) => 2,
        });
        first.unwrap_or_default()
    }

    /// The missing ones that are to be created, and what is wrong with them. `refused` says why they could not be created
    /// the last time, and `is_start` whether the VM would be started if they were ready.
    pub(super) fn due(
        &self,
        vm: &VirtualMachine,
        is_start: bool,
        refused: Option<&str>,
    ) -> (Option<&[usize]>, Option<String>) {
        let is_due = is_start || is_immediate(vm);
        match self {
            Self::Missing(missing) if is_due => (Some(missing), refused.map(str::to_owned)),
            Self::Unserved(why) if is_due => (None, Some(why.clone())),
            Self::Failed(why) => (None, Some(why.clone())),
            Self::Ready | Self::Missing(_) | Self::Unserved(_) | Self::Filling(_) => (None, None),
        }
    }

    /// The status for people of a VM without an instance.
    pub(super) fn printable(&self, action: &Action, is_refused: bool) -> Option<&'static str> {
        match self {
            Self::Failed(_) => Some("DataVolumeError"),
            Self::Filling(_) => Some("Provisioning"),
            Self::Missing(_) if matches!(action, Action::CreateDataVolumes(_)) && !is_refused => {
                Some("Provisioning")
            }
            Self::Ready | Self::Missing(_) | Self::Unserved(_) => None,
        }
    }
}

fn unserved(template: &DataVolumeTemplateSpec) -> String {
    format!(
        "spec.dataVolumeTemplates: DataVolume {} cannot be created: the cluster has no DataVolumes, as it does not serve \
         {}: install CDI",
        template.metadata.name,
        Kind::DATA_VOLUME.api_version()
    )
}

fn of_one(vm: &VirtualMachine, data_volume: &DataVolume) -> Provision {
    let name = &data_volume.metadata.name;
    let of_another = data_volume.metadata.owner_references.iter().any(|owner| {
        owner.kind == Kind::VM.kind && owner.name == vm.metadata.name && owner.uid != vm.metadata.uid
    });
    if of_another || data_volume.metadata.deletion_timestamp.is_some() {
        return Provision::Filling(format!("DataVolume {name} is being deleted"));
    }
    if data_volume.is_filled() {
        return Provision::Ready;
    }
    match data_volume.failure() {
        Some(why) => Provision::Failed(why),
        // The instance waits for what is not bound.
        None if data_volume.waits_for_consumer() => Provision::Ready,
        None => Provision::Filling(format!("DataVolume {name} is not ready yet: {}", data_volume.progress())),
    }
}

/// Whether DataVolumes are created also while the VM is not started.
fn is_immediate(vm: &VirtualMachine) -> bool {
    vm.metadata.annotations.get(IMMEDIATE_ANNOTATION).is_none_or(|value| value != "false")
}

/// The service account that has to have the right to clone.
pub(super) fn account(vm: &VirtualMachine) -> &str {
    let volumes = vm.spec.template.iter().flat_map(|template| &template.spec.volumes);
    // A VMI has one at most.
    let mut accounts = volumes.filter_map(|volume| volume.service_account.as_deref());
    accounts.next().map_or(DEFAULT_ACCOUNT, |account| &account.service_account_name)
}

/// The spec of the DataVolume of a template.
pub(super) fn spec(vm: &VirtualMachine, template: &DataVolumeTemplateSpec) -> Map<String, Value> {
    let mut spec = template.spec.as_object().cloned().unwrap_or_default();
    let class = vm.spec.template.as_ref().map(|template| template.spec.priority_class_name.as_str());
    let has_class =
        spec.get("priorityClassName").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    if let Some(class) = class.filter(|class| !class.is_empty() && !has_class) {
        spec.insert("priorityClassName".to_owned(), json!(class));
    }
    spec
}

/// The DataVolume of a template, which the VM controls.
pub(super) fn data_volume(
    vm: &VirtualMachine,
    template: &DataVolumeTemplateSpec,
    spec: Map<String, Value>,
) -> Value {
    let with = |map: &BTreeMap<String, String>, name: &str, value: &str| {
        let mut map = map.clone();
        map.insert(name.to_owned(), value.to_owned());
        map
    };
    let metadata = &template.metadata;
    json!({
        "apiVersion": Kind::DATA_VOLUME.api_version(), "kind": Kind::DATA_VOLUME.kind,
        "metadata": {
            "name": metadata.name, "namespace": vm.metadata.namespace,
            "labels": with(&metadata.labels, CREATED_BY_LABEL, &vm.metadata.uid),
            "annotations": with(&metadata.annotations, ADOPTION_ANNOTATION, "true"),
            "ownerReferences": [owner_reference(&vm.metadata)],
        },
        "spec": spec,
    })
}

#[cfg(test)]
mod tests;
