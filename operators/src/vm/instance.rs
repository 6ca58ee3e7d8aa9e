//! The instance that a VM is started as.

use serde::Deserialize as _;
use serde_json::{Value, json};
use uuid::Uuid;
use vireo_api::names::RESERVED_VMI_ANNOTATIONS;
use vireo_api::v1::{
    API_VERSION, Matcher, ObjectMeta, VMI_KIND, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec, VirtualMachineInstanceTemplateSpec, VirtualMachineSpec,
};

use super::volumes::fixed;
use super::{FINALIZER, GENERATION_ANNOTATION, nics};
use crate::revision::owner_reference;

/// The namespace of the UUIDs that firmware shows where the template names none: KubeVirt's.
const UUIDS: Uuid = Uuid::from_u128(0x6a1a_24a1_4061_4607_8bf4_a396_3d0c_5895);

/// What to create to start a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// First, so that every instance has one: what it was made from.
    pub revision: Revision,
    /// The instance.
    pub instance: VirtualMachineInstance,
}

/// A VM's spec as it was at a start: an `apps/v1` `ControllerRevision` that the VM owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    /// Its name.
    pub name: String,
    /// Its `revision`: the VM's generation.
    pub generation: i64,
    /// Its `data`.
    pub data: Value,
}

/// What stands in the way of a start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StartError {
    #[error("spec.template is missing: say what to run")]
    NoTemplate,
    #[error("{0}")]
    Expansion(String),
}

impl Start {
    pub(super) fn of(
        vm: &VirtualMachine,
        expanded: Option<Result<&VirtualMachineInstanceTemplateSpec, &str>>,
        paused: bool,
    ) -> Result<Self, StartError> {
        let template = match expanded {
            None => vm.spec.template.as_ref().ok_or(StartError::NoTemplate)?,
            Some(expanded) => expanded.map_err(|why| StartError::Expansion(why.to_owned()))?,
        };
        let generation = vm.metadata.generation.unwrap_or(0);
        let mut spec = template.spec.clone();
        // Memory is dumped when a user asks for that, and not again at a start.
        spec.volumes.retain(|volume| volume.memory_dump.is_none());
        nics::retain(&mut spec, |nic, _| !nic.is_absent());
        let uuid = &mut spec.domain.firmware.get_or_insert_default().uuid;
        if uuid.is_empty() {
            *uuid = Uuid::new_v5(&UUIDS, vm.metadata.name.as_bytes()).to_string();
        }
        if paused {
            spec.start_strategy = Some("Paused".to_owned());
        }
        let mut annotations = template.metadata.annotations.clone();
        annotations.retain(|name, _| !RESERVED_VMI_ANNOTATIONS.contains(&name.as_str()));
        annotations.insert(GENERATION_ANNOTATION.to_owned(), generation.to_string());
        let metadata = ObjectMeta {
            name: vm.metadata.name.clone(),
            namespace: vm.metadata.namespace.clone(),
            labels: template.metadata.labels.clone(),
            annotations,
            finalizers: vec![FINALIZER.to_owned()],
            owner_references: vec![owner_reference(&vm.metadata)],
            ..ObjectMeta::default()
        };
        let instance = VirtualMachineInstance {
            api_version: API_VERSION.to_owned(),
            kind: VMI_KIND.to_owned(),
            metadata,
            spec,
            ..VirtualMachineInstance::default()
        };
        let revision =
            Revision { name: Revision::name(vm, generation), generation, data: json!({ "spec": vm.spec }) };
        Ok(Self { revision, instance })
    }
}

impl Revision {
    fn name(vm: &VirtualMachine, generation: i64) -> String {
        format!("revision-start-vm-{}-{generation}", vm.metadata.uid)
    }

    /// The name of the revision that an instance was made from.
    pub fn name_for(vm: &VirtualMachine, instance: &VirtualMachineInstance) -> Option<String> {
        template_generation(instance).map(|generation| Self::name(vm, generation))
    }
}

/// The generation of the VM that an instance was made from.
pub(super) fn template_generation(instance: &VirtualMachineInstance) -> Option<i64> {
    instance.metadata.annotations.get(GENERATION_ANNOTATION)?.parse().ok()
}

/// The spec of the template that an instance was made from, by its revision.
pub(super) fn started_with(revision: &Value) -> Option<VirtualMachineInstanceSpec> {
    let spec = VirtualMachineSpec::deserialize(revision.get("spec")?).ok()?;
    Some(spec.template?.spec)
}

/// Whether the template says something else than when the instance was made from it.
pub(super) fn is_outdated(vm: &VirtualMachine, revision: &Value) -> bool {
    let mut then = revision.get("spec").and_then(|spec| VirtualMachineSpec::deserialize(spec).ok());
    // Earlier releases stored templates without them.
    if let (Some(then), Some(now)) =
        (then.as_mut().and_then(|then| then.template.as_mut()), &vm.spec.template)
    {
        if then.spec.architecture.is_empty() {
            then.spec.architecture.clone_from(&now.spec.architecture);
        }
        if then.spec.domain.machine.is_none() {
            then.spec.domain.machine.clone_from(&now.spec.domain.machine);
        }
    }
    let mut now = vm.spec.clone();
    if let (Some(then), Some(now)) =
        (then.as_mut().and_then(|then| then.template.as_mut()), now.template.as_mut())
    {
        nics::forget_hotplugged(&mut then.spec, &mut now.spec);
    }
    let template = |spec: &VirtualMachineSpec| spec.template.as_ref().map(|template| fixed(&template.spec));
    let name = |matcher: &Option<Matcher>| matcher.as_ref().map(|matcher| matcher.name.clone());
    let choice = |spec: &VirtualMachineSpec| (name(&spec.instancetype), name(&spec.preference));
    then.is_some_and(|then| template(&then) != template(&now) || choice(&then) != choice(&now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_that_an_earlier_release_did_not_store_need_no_restart() {
        let of = |domain: Value, more: Value| -> VirtualMachine {
            let mut spec = json!({ "domain": domain });
            json_patch::merge(&mut spec, &more);
            serde_json::from_value(json!({"spec": {"template": {"spec": spec}}})).unwrap()
        };
        let (guest, q35) =
            (json!({"memory": {"guest": "64Mi"}}), json!({"domain": {"machine": {"type": "q35"}}}));
        let earlier = json!({"spec": of(guest.clone(), json!({})).spec});
        let mut stored = of(guest, q35.clone());
        stored.spec.template.as_mut().unwrap().spec.architecture = "amd64".to_owned();
        assert!(!is_outdated(&stored, &earlier));
        assert!(is_outdated(&of(json!({"memory": {"guest": "128Mi"}}), q35), &earlier));
        let other =
            of(json!({"memory": {"guest": "64Mi"}}), json!({"domain": {"machine": {"type": "pc-q35-9.0"}}}));
        assert!(is_outdated(&other, &json!({"spec": stored.spec})), "it was stored then");
    }
}
