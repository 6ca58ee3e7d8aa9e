//! Warnings of what is deprecated or has no effect.

use serde_json::Value;
use uuid::Uuid;
use vireo_api::spec::{Notice, Vm, single_host_notices};
use vireo_api::v1::{
    API_VERSION, ObjectMeta, VMI_KIND, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec,
};
use vireo_client::Kind;

use super::host_paths::Instance;

/// Those of a replica set or a pool, if its template changed.
pub(super) fn of_template(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<String> {
    let Some(instance) = Instance::of(kind, new, old) else { return Vec::new() };
    let spec = instance.changed("").and_then(|spec| serde_json::from_value(spec.clone()).ok());
    spec.map(|spec| of_spec(spec, &instance.field(""))).unwrap_or_default()
}

/// Those of fields that have their effect in clusters alone, if the spec of VMIs changed.
pub(super) fn of_single_host(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<String> {
    let Some(instance) = Instance::of(kind, new, old) else { return Vec::new() };
    let Some(Ok(spec)) = instance.changed("").map(|spec| serde_json::from_value(spec.clone())) else {
        return Vec::new();
    };
    texts(&single_host_notices(&spec), &instance.field(""))
}

/// Those of a VM, beside those of its template.
pub(super) fn of_vm(vm: &VirtualMachine) -> Vec<String> {
    let mut warnings = Vec::new();
    if vm.spec.running.is_some() {
        // KubeVirt's words.
        warnings.push("spec.running is deprecated, please use spec.runStrategy instead.".to_owned());
    }
    if vm.spec.update_volumes_strategy.as_deref() == Some("Migration") {
        warnings.push("spec.updateVolumesStrategy: \"Migration\" has no effect".to_owned());
    }
    warnings
}

/// Those of the spec of VMIs, which is at `path`, such as `spec.template.spec.`.
pub(super) fn of_spec(spec: VirtualMachineInstanceSpec, path: &str) -> Vec<String> {
    let metadata = ObjectMeta { name: "x".to_owned(), uid: Uuid::nil().to_string(), ..ObjectMeta::default() };
    let vmi = VirtualMachineInstance {
        api_version: API_VERSION.to_owned(),
        kind: VMI_KIND.to_owned(),
        metadata,
        spec,
        ..VirtualMachineInstance::default()
    };
    // What is wrong with one that is not valid is more important.
    Vm::try_from(&vmi).map(|vm| of_valid(&vm, path)).unwrap_or_default()
}

/// Those of a VMI whose spec is at `path`.
pub(super) fn of_valid(vm: &Vm, path: &str) -> Vec<String> {
    texts(vm.notices(), path)
}

fn texts(notices: &[Notice], path: &str) -> Vec<String> {
    let below = path.strip_suffix("spec.").unwrap_or(path);
    notices.iter().map(|notice| format!("{below}{notice}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_no_effect_is_named_where_it_is_written() {
        let cpu = json!({"sockets": 1, "maxSockets": 4});
        let spec = json!({"domain": {"memory": {"guest": "64Mi"}, "cpu": cpu}});
        let why = "cpu.maxSockets: has no effect: vCPUs cannot be hotplugged yet";
        let template = json!({"template": {"spec": spec}});
        for (kind, object, at) in [
            (Kind::VMI, json!({"spec": spec}), "spec"),
            (Kind::REPLICA_SET, json!({"spec": template}), "spec.template.spec"),
            (
                Kind::POOL,
                json!({"spec": {"virtualMachineTemplate": {"spec": template}}}),
                "spec.virtualMachineTemplate.spec.template.spec",
            ),
        ] {
            assert_eq!(of_template(kind, &object, None), [format!("{at}.domain.{why}")]);
            assert_eq!(of_template(kind, &object, Some(&object)), [""; 0], "it did not change");
        }
        let invalid = json!({"spec": {"domain": {"cpu": cpu}}});
        assert_eq!(of_template(Kind::VMI, &invalid, None), [""; 0]);
    }

    #[test]
    fn what_acts_in_clusters_alone_is_named_on_a_single_host() {
        let spec = json!({
            "priorityClassName": "high", "schedulerName": "mine", "serviceAccountName": "robot", "subdomain": "s",
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "t", "whenUnsatisfiable": "DoNotSchedule"}],
            "affinity": {"podAffinity": {}, "podAntiAffinity": {}, "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}},
            "tolerations": [{"key": "a"}, {"key": "b", "effect": "NoExecute", "tolerationSeconds": 1}],
            "domain": {"resources": {"limits": {"cpu": 1}}, "devices": {"logSerialConsole": false}, "firmware": {
                "kernelBoot": {"container": {"imagePullPolicy": "Always"}}}},
            "volumes": [{"name": "a"}, {"name": "b", "containerDisk": {"imagePullPolicy": "Never"}}],
        });
        let vm = json!({"spec": {"template": {"spec": spec}}});
        let warnings = of_single_host(Kind::VM, &vm, None);
        let at = "spec.template.spec.";
        let fields: Vec<&str> = warnings
            .iter()
            .filter_map(|warning| warning.split_once(": has no effect: ")?.0.strip_prefix(at))
            .collect();
        let expected = [
            "priorityClassName",
            "schedulerName",
            "serviceAccountName",
            "subdomain",
            "topologySpreadConstraints",
            "affinity.podAffinity",
            "affinity.podAntiAffinity",
            "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
            "domain.devices.logSerialConsole",
            "tolerations[1].tolerationSeconds",
        ];
        assert_eq!(fields, expected);
        assert_eq!(of_single_host(Kind::VM, &vm, Some(&vm)), [""; 0], "it did not change");
        let required = json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}});
        assert_eq!(of_single_host(Kind::VMI, &json!({ "spec": required }), None), [""; 0]);
    }

    #[test]
    fn deprecated_settings_of_a_vm_are_named() {
        let vm = json!({"spec": {"running": false, "updateVolumesStrategy": "Migration"}});
        let warnings = of_vm(&serde_json::from_value(vm).unwrap());
        assert_eq!(
            warnings,
            [
                "spec.running is deprecated, please use spec.runStrategy instead.",
                "spec.updateVolumesStrategy: \"Migration\" has no effect"
            ]
        );
        let vm = json!({"spec": {"runStrategy": "Always", "updateVolumesStrategy": "Replacement"}});
        assert_eq!(of_vm(&serde_json::from_value(vm).unwrap()), [""; 0]);
    }
}
