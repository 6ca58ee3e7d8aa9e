//! Validation of VirtualMachines: what every VMI of them would be refused for, by the field of the template.

use serde_json::{Value, json};
use uuid::Uuid;
use vireo_api::decode;
use vireo_api::spec::{Vm, memory_hotplug_problems};
use vireo_api::v1::{
    API_VERSION, ObjectMeta, Shape as _, Stranger, VMI_KIND, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceTemplateSpec,
};
use vireo_apiserver::resource::Cause;
use vireo_operators::vm::RunStrategy;

const TEMPLATE: &str = "spec.template";

pub(super) fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    if old.is_none() {
        new["status"] = json!({"printableStatus": "Stopped"});
    }
    if has_same_spec(new, old) {
        return Vec::new();
    }
    // Its status is its controller's business, also when an older release wrote it.
    let mut wanted = new.clone();
    if let Some(fields) = wanted.as_object_mut() {
        fields.remove("status");
    }
    let decoded = decode::object::<VirtualMachine>(wanted);
    let causes: Vec<Cause> = decoded.mistyped().iter().map(|problem| cause(problem, "")).collect();
    if causes.is_empty() { judge(&decoded.object) } else { causes }
}

/// Whether an update leaves the spec as it is stored. It is not validated again: an earlier release may have accepted it,
/// and finalizers must come off all the same.
pub(crate) fn has_same_spec(new: &Value, old: Option<&Value>) -> bool {
    old.is_some_and(|old| old.get("spec") == new.get("spec"))
}

/// What a machine would be refused for.
pub(super) fn judge(machine: &VirtualMachine) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Err(error) = RunStrategy::of(&machine.spec) {
        causes.push(Cause::invalid("spec.runStrategy", error.to_string()));
    }
    if !machine.spec.data_volume_templates.is_empty() {
        let message = "is not available yet: use a volume that exists";
        causes.push(Cause::unsupported("spec.dataVolumeTemplates", message));
    }
    let mut strangers = Vec::new();
    machine.strangers("", &mut strangers);
    causes.extend(unknown(&strangers, TEMPLATE));
    match &machine.spec.template {
        None => causes.push(Cause::required(TEMPLATE, "is needed: say what to run")),
        // With what it chose, it is judged by who can look for that: `crate::instancetypes`.
        Some(_) if machine.spec.instancetype.is_some() || machine.spec.preference.is_some() => {}
        Some(template) => causes.extend(of_machine(&machine.metadata, template)),
    }
    causes
}

/// Unknown fields of a spec; the template judges its own.
pub(super) fn unknown(strangers: &[Stranger], template: &str) -> Vec<Cause> {
    let inside = format!("{template}.spec.");
    let mine =
        |stranger: &&Stranger| stranger.field.starts_with("spec.") && !stranger.field.starts_with(&inside);
    let tell = |stranger: &Stranger| {
        let similar = stranger.similar.as_ref().map(|similar| format!(": did you mean {similar}?"));
        let message = format!("unknown field {:?}{}", stranger.name, similar.unwrap_or_default());
        Cause::invalid(stranger.field.clone(), message)
    };
    strangers.iter().filter(mine).map(tell).collect()
}

/// What the instances of a VirtualMachine would be refused for, and what keeps them from being updated while they run.
pub(crate) fn of_machine(owner: &ObjectMeta, template: &VirtualMachineInstanceTemplateSpec) -> Vec<Cause> {
    let mut causes = of_template(owner, template, TEMPLATE);
    causes.extend(memory_hotplug_problems(&template.spec).iter().map(|problem| cause(problem, TEMPLATE)));
    causes
}

/// What the instances of `owner` would be refused for, by the fields of their template at `path`.
pub(crate) fn of_template(
    owner: &ObjectMeta,
    template: &VirtualMachineInstanceTemplateSpec,
    path: &str,
) -> Vec<Cause> {
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
    match Vm::try_from(&instance) {
        Ok(_) => Vec::new(),
        Err(report) => report.problems().iter().map(|problem| cause(problem, path)).collect(),
    }
}

pub(super) fn cause(problem: &vireo_api::spec::Problem, below: &str) -> Cause {
    let field = problem.field().as_str();
    let field = if below.is_empty() { field.to_owned() } else { format!("{below}.{field}") };
    Cause { reason: problem.cause().as_str(), message: problem.message().to_owned(), field }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(spec: Value) -> Vec<String> {
        let mut vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "x", "namespace": "n"}, "spec": spec});
        admit(&mut vm, None).into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn what_an_instance_would_be_refused_for_is_told_of_the_template() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}});
        assert!(fields(json!({"runStrategy": "Always", "template": template})).is_empty());
        assert!(fields(json!({"running": true, "template": template})).is_empty());
        assert_eq!(
            fields(json!({"running": true, "runStrategy": "Always", "template": template})),
            ["spec.runStrategy"]
        );
        assert_eq!(
            fields(json!({"dataVolumeTemplates": [{}], "template": template})),
            ["spec.dataVolumeTemplates"]
        );
        assert_eq!(fields(json!({"runstrategy": "Always", "template": template})), ["spec.runstrategy"]);
        assert_eq!(fields(json!({"runStrategy": "Always"})), ["spec.template"]);
        let broken = json!({"spec": {"domain": {"devices": {"disks": [{"name": "root"}]}}}});
        let told = fields(json!({"template": broken}));
        assert!(told.contains(&"spec.template.spec.domain.memory.guest".to_owned()), "{told:?}");
        let mistyped = json!({"spec": {"domain": {"cpu": {"cores": "many"}}}});
        assert_eq!(fields(json!({"template": mistyped})), ["spec.template.spec.domain.cpu.cores"]);
    }

    #[test]
    fn a_spec_that_does_not_change_is_not_validated_again() {
        let stored = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "x", "namespace": "n", "finalizers": ["a"]}, "spec": {"runStrategy": "Sometimes"}});
        let mut released = stored.clone();
        released["metadata"]["finalizers"] = json!([]);
        assert_eq!(admit(&mut released, Some(&stored)), []);
        released["spec"]["runStrategy"] = json!("Never");
        assert!(!admit(&mut released, Some(&stored)).is_empty());
    }

    #[test]
    fn the_example_is_a_machine() {
        let text = include_str!("../../../examples/standalone/vm.yaml");
        let mut vm = decode::documents(text).unwrap().remove(0);
        assert_eq!(admit(&mut vm, None), []);
    }
}
