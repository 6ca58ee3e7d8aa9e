//! What the VMs of a pool are made from.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vireo_api::v1::{
    API_VERSION, ObjectMeta, OwnerReference, POOL_KIND, POOL_VERSION, VM_KIND, VirtualMachine,
    VirtualMachinePool, VirtualMachineSpec, Volume,
};

use super::REVISION_LABEL;

/// A pool's spec as it was: an `apps/v1` `ControllerRevision` that the pool owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    /// Its name.
    pub name: String,
    /// Its `revision`: the pool's generation.
    pub generation: i64,
    /// Its `data`.
    pub data: Value,
}

/// The part of a VM that comes from its pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// All its labels.
    pub labels: BTreeMap<String, String>,
    /// All its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its spec.
    pub spec: VirtualMachineSpec,
}

impl Revision {
    /// The pool as it is now.
    pub(super) fn of(pool: &VirtualMachinePool) -> Self {
        let generation = pool.metadata.generation.unwrap_or(0);
        let data = serde_json::to_value(&pool.spec).unwrap_or_default();
        Self { name: format!("{}-{generation}", pool.metadata.name), generation, data }
    }

    /// Its owner references.
    pub fn owner(pool: &VirtualMachinePool) -> Value {
        json!(owner(pool))
    }
}

/// The name of a VM by its number.
pub(super) fn name(pool: &VirtualMachinePool, number: u64) -> String {
    format!("{}-{number}", pool.metadata.name)
}

/// The number in a VM's name, if that is one a pool gives.
pub(super) fn number(pool: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(pool)?.strip_prefix('-')?;
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// What a VM of this number is to be; nothing where the pool has no template.
pub(super) fn made(pool: &VirtualMachinePool, number: u64, revision: &str) -> Option<Made> {
    let template = pool.spec.virtual_machine_template.as_ref()?;
    let mut made = Made {
        labels: template.metadata.labels.clone(),
        annotations: template.metadata.annotations.clone(),
        spec: template.spec.clone(),
    };
    made.labels.insert(REVISION_LABEL.to_owned(), revision.to_owned());
    if let Some(template) = made.spec.template.as_mut() {
        template.metadata.labels.insert(REVISION_LABEL.to_owned(), revision.to_owned());
    }
    let mut data_volumes = Vec::new();
    for template in &mut made.spec.data_volume_templates {
        data_volumes.push(template.metadata.name.clone());
        append_to(&mut template.metadata.name, number);
    }
    let names = pool.spec.name_generation.clone().unwrap_or_default();
    let volumes = made.spec.template.iter_mut().flat_map(|template| &mut template.spec.volumes);
    for volume in volumes {
        let claim = volume.persistent_volume_claim.as_mut().map(|source| &mut source.claim_name);
        let claim = claim.or_else(|| volume.data_volume.as_mut().map(|source| &mut source.name));
        if let Some(claim) = claim.filter(|claim| data_volumes.contains(claim)) {
            append_to(claim, number);
        }
        append(
            volume,
            number,
            names.append_index_to_config_map_refs == Some(true),
            names.append_index_to_secret_refs == Some(true),
        );
    }
    Some(made)
}

fn append(volume: &mut Volume, number: u64, config_maps: bool, secrets: bool) {
    if let Some(source) = volume.config_map.as_mut().filter(|_| config_maps) {
        append_to(&mut source.name, number);
    }
    if let Some(source) = volume.secret.as_mut().filter(|_| secrets) {
        append_to(&mut source.secret_name, number);
    }
}

fn append_to(name: &mut String, number: u64) {
    name.push('-');
    name.push_str(&number.to_string());
}

/// A new VM.
pub(super) fn create(pool: &VirtualMachinePool, number: u64, revision: &str) -> Option<VirtualMachine> {
    let Made { labels, annotations, spec } = made(pool, number, revision)?;
    let metadata = ObjectMeta {
        name: name(pool, number),
        namespace: pool.metadata.namespace.clone(),
        labels,
        annotations,
        owner_references: vec![owner(pool)],
        ..ObjectMeta::default()
    };
    Some(VirtualMachine {
        api_version: API_VERSION.to_owned(),
        kind: VM_KIND.to_owned(),
        metadata,
        spec,
        ..VirtualMachine::default()
    })
}

fn owner(pool: &VirtualMachinePool) -> OwnerReference {
    OwnerReference {
        api_version: POOL_VERSION.to_owned(),
        kind: POOL_KIND.to_owned(),
        name: pool.metadata.name.clone(),
        uid: pool.metadata.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
        ..OwnerReference::default()
    }
}
