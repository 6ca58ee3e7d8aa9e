//! VirtualMachines in admission: what every VMI of them would be refused for, by the field of the template.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use uuid::Uuid;
use vireo_api::decode;
use vireo_api::spec::{self, Origin, Vm, memory_hotplug_problems};
use vireo_api::v1::{
    API_VERSION, ObjectMeta, Shape as _, UnknownField, VMI_KIND, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceTemplateSpec,
};

use super::{data_volumes, warnings};
use crate::Problem;
use crate::config::ClusterConfig;
use crate::defaults::{self, Identity};
use crate::instancetype::{self, Choice, Chosen, Lookup};
use crate::vm::RunStrategy;

const TEMPLATE: &str = "spec.template";
/// What the instances of a VM are made from.
const OF_TEMPLATE: [&str; 3] = ["/spec/template", "/spec/instancetype", "/spec/preference"];

/// Completes and validates a VM without its instance type and its preference.
pub fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Problem> {
    if old.is_none() {
        new["status"] = json!({"printableStatus": "Stopped"});
    }
    if has_same_spec(new, old) {
        return Vec::new();
    }
    // Its status is its controller's business, also when an older release wrote it.
    let decoded = decode::object::<VirtualMachine>(without_status(new));
    let problems = mistyped(decoded.mistyped());
    if problems.is_empty() { validate(&decoded.object, origin(new, old, &OF_TEMPLATE)) } else { problems }
}

/// Where the template at these pointers comes from. What an earlier release accepted does not keep an object from being updated
/// otherwise: a VM can be stopped.
pub(super) fn origin(new: &Value, old: Option<&Value>, pointers: &[&str]) -> Origin {
    let is_same = |old: &Value| pointers.iter().all(|pointer| old.pointer(pointer) == new.pointer(pointer));
    if old.is_some_and(is_same) { Origin::Store } else { Origin::Request }
}

/// Whether an update leaves the spec as it is stored. It is not validated again: an earlier release may have accepted it,
/// and finalizers must come off all the same.
fn has_same_spec(new: &Value, old: Option<&Value>) -> bool {
    old.is_some_and(|old| old.get("spec") == new.get("spec"))
}

/// What a VM would be refused for, without its instance type and its preference.
pub(super) fn validate(vm: &VirtualMachine, origin: Origin) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Err(error) = RunStrategy::of(&vm.spec) {
        problems.push(Problem::invalid("spec.runStrategy", error.to_string()));
    }
    problems.extend(data_volumes::validate(vm));
    let mut unknown_fields = Vec::new();
    vm.unknown_fields("", &mut unknown_fields);
    problems.extend(unknown(&unknown_fields, TEMPLATE));
    match &vm.spec.template {
        None => problems.push(Problem::required(TEMPLATE, "is needed: say what to run")),
        // It is validated with them by `validate_expanded`.
        Some(_) if vm.spec.instancetype.is_some() || vm.spec.preference.is_some() => {}
        Some(template) => problems.extend(validate_template(&vm.metadata, template, origin)),
    }
    problems
}

/// Unknown fields of a spec; those of the template are found with its VMI.
pub(super) fn unknown(unknown_fields: &[UnknownField], template: &str) -> Vec<Problem> {
    let inside = format!("{template}.spec.");
    let is_own = |unknown_field: &&UnknownField| {
        unknown_field.field.starts_with("spec.") && !unknown_field.field.starts_with(&inside)
    };
    let problem = |unknown_field: &UnknownField| {
        let similar = unknown_field.similar.as_ref().map(|similar| format!(": did you mean {similar}?"));
        let message = format!("unknown field {:?}{}", unknown_field.name, similar.unwrap_or_default());
        Problem::invalid(unknown_field.field.clone(), message)
    };
    unknown_fields.iter().filter(is_own).map(problem).collect()
}

/// What the instances of a VirtualMachine would be refused for, and what keeps them from being updated while they run.
fn validate_template(
    owner: &ObjectMeta,
    template: &VirtualMachineInstanceTemplateSpec,
    origin: Origin,
) -> Vec<Problem> {
    let mut problems = validate_vmi_template(owner, template, TEMPLATE, origin);
    problems
        .extend(memory_hotplug_problems(&template.spec).iter().map(|problem| Problem::at(TEMPLATE, problem)));
    problems
}

/// What the instances of `owner` would be refused for, by the fields of their template at `path`.
pub(super) fn validate_vmi_template(
    owner: &ObjectMeta,
    template: &VirtualMachineInstanceTemplateSpec,
    path: &str,
    origin: Origin,
) -> Vec<Problem> {
    let metadata = ObjectMeta {
        name: owner.name.clone(),
        namespace: owner.namespace.clone(),
        // An instance has one; which does not matter here.
        uid: Uuid::nil().to_string(),
        labels: template.metadata.labels.clone(),
        annotations: template.metadata.annotations.clone(),
        ..ObjectMeta::default()
    };
    let instance = VirtualMachineInstance {
        api_version: API_VERSION.to_owned(),
        kind: VMI_KIND.to_owned(),
        metadata,
        spec: template.spec.clone(),
        ..VirtualMachineInstance::default()
    };
    match Vm::read(&instance, &[], origin) {
        Ok(_) => Vec::new(),
        Err(report) => report.problems().iter().map(|problem| Problem::at(path, problem)).collect(),
    }
}

/// The values of a wrong type.
pub(super) fn mistyped(problems: &[spec::Problem]) -> Vec<Problem> {
    problems.iter().map(|problem| Problem::at("", problem)).collect()
}

/// An object as its client writes it.
pub(super) fn without_status(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    object
}

/// Whether its instance type and its preference are looked for.
fn is_expanded(new: &Value, old: Option<&Value>) -> bool {
    new.pointer("/metadata/deletionTimestamp").is_none_or(Value::is_null) && !has_same_spec(new, old)
}

/// Sets the instance type and the preference that a VM infers from its volumes. `labels` are those of the claim of a
/// namespace and a name. `old` is the stored object that it replaces.
pub fn infer(
    new: &mut Value,
    old: Option<&Value>,
    labels: impl Fn(&str, &str) -> Option<BTreeMap<String, String>>,
) -> Vec<Problem> {
    match is_expanded(new, old) {
        true => instancetype::infer_names(new, old, labels),
        false => Vec::new(),
    }
}

/// Writes defaults into the template of a VM. Warnings for its author.
pub(super) fn complete(
    lookup: &impl Lookup,
    new: &mut Value,
    old: Option<&Value>,
    (config, identity): (&ClusterConfig, &Identity),
) -> Vec<String> {
    if !is_expanded(new, old) {
        return Vec::new();
    }
    let Ok(vm) = serde_json::from_value::<VirtualMachine>(new.clone()) else { return Vec::new() };
    let mut warnings = warnings::of_vm(&vm);
    let expanded = instancetype::expand(lookup, &vm).ok().flatten();
    if let Some(template) = expanded.or_else(|| vm.spec.template.clone()) {
        warnings.extend(warnings::of_spec(template.spec, &format!("{TEMPLATE}.spec.")));
    }
    // Without a preference that it names, it is refused.
    let Ok(preference) = instancetype::find(lookup, &vm, Choice::Preference) else { return warnings };
    if let Some(template) = new.pointer_mut("/spec/template").and_then(Value::as_object_mut) {
        let preference = preference.as_ref().map(Chosen::spec);
        defaults::fill_template(template, preference, config, identity);
    }
    warnings
}

/// Validates a VM with its instance type and its preference. `old` is the stored object that it replaces.
pub fn validate_expanded(lookup: &impl Lookup, new: &Value, old: Option<&Value>) -> Vec<Problem> {
    if !is_expanded(new, old) {
        return Vec::new();
    }
    let Ok(vm) = serde_json::from_value::<VirtualMachine>(new.clone()) else { return Vec::new() };
    match instancetype::expand(lookup, &vm) {
        Ok(Some(template)) => validate_template(&vm.metadata, &template, origin(new, old, &OF_TEMPLATE)),
        Ok(None) => Vec::new(),
        Err(problems) => problems,
    }
}

#[cfg(test)]
mod tests;
