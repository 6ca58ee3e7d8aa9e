//! VirtualMachineInstances in admission.

use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;
use vireo_api::decode;
use vireo_api::names::VMI_FINALIZER;
use vireo_api::spec::{Report, Vm};
use vireo_api::v1::VirtualMachineInstance;

use super::warnings;
use crate::Problem;
use crate::config::ClusterConfig;
use crate::defaults;

const GRACE_PERIOD: &str = "terminationGracePeriodSeconds";

/// Writes defaults into the spec of a new VMI that is valid. An update that would change nothing but defaults is left as the VMI
/// is stored. Warnings for its author.
pub fn complete(new: &mut Value, old: Option<&Value>, config: &ClusterConfig) -> Vec<String> {
    if let Some(old) = old {
        defaults::keep_stored(new, old, config);
        return Vec::new();
    }
    let Ok(vm) = decode::object::<VirtualMachineInstance>(new.clone()).check() else { return Vec::new() };
    if let Some(spec) = new["spec"].as_object_mut() {
        defaults::set_defaults(spec, config, Uuid::new_v4());
    }
    warnings::of_valid(&vm, "")
}

/// Completes and validates a new VMI, as KubeVirt's webhooks do. Updates are validated by [`validate_update`].
pub fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Problem> {
    if old.is_some() {
        return Vec::new();
    }
    let now = Timestamp::now();
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let transition = json!([{"phase": "Pending", "phaseTransitionTimestamp": now}]);
    new["status"] = json!({"phase": "Pending", "phaseTransitionTimestamps": transition});
    if !new["metadata"].is_object() {
        new["metadata"] = json!({});
    }
    match new["metadata"]["finalizers"].as_array_mut() {
        Some(finalizers) if finalizers.iter().any(|one| one == VMI_FINALIZER) => {}
        Some(finalizers) => finalizers.push(json!(VMI_FINALIZER)),
        None => new["metadata"]["finalizers"] = json!([VMI_FINALIZER]),
    }
    problems(decode::object::<VirtualMachineInstance>(new.clone()).check_request())
}

/// Validates the change of a VMI's spec: users cannot change it; KubeVirt's components can plug volumes and NICs, switch their
/// links, and set how long its guest may take to shut down.
pub fn validate_update(new: &Value, old: &Value, is_component: bool) -> Vec<Problem> {
    if new.get("spec") == old.get("spec") {
        return Vec::new();
    }
    if is_component && fixed(new, old) == fixed(old, new) {
        // What an earlier release accepted stays, as it does where it is not changed.
        return problems(decode::object::<VirtualMachineInstance>(new.clone()).check());
    }
    let message = "update of VMI object is restricted: delete it and create it again";
    vec![Problem::forbidden("spec", message)]
}

/// The spec without what components can change: NICs that another one does not have, for example.
fn fixed(vmi: &Value, other: &Value) -> Value {
    let name = |nic: &Value| nic.get("name").and_then(Value::as_str).map(str::to_owned);
    let nics = other.pointer("/spec/domain/devices/interfaces").and_then(Value::as_array);
    let common: Vec<Option<String>> = nics.into_iter().flatten().map(name).collect();
    let mut spec = vmi.get("spec").cloned().unwrap_or_default();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("volumes");
        fields.remove(GRACE_PERIOD);
        fields.entry("networks").or_insert_with(|| json!([]));
    }
    if let Some(domain) = spec.get_mut("domain").and_then(Value::as_object_mut) {
        let devices = domain.entry("devices").or_insert_with(|| json!({}));
        if let Some(devices) = devices.as_object_mut() {
            devices.remove("disks");
            let nics = devices.entry("interfaces").or_insert_with(|| json!([])).as_array_mut();
            let Some(nics) = nics else { return spec };
            nics.retain(|nic| common.contains(&name(nic)));
            for nic in nics.iter_mut().filter_map(Value::as_object_mut) {
                nic.remove("state");
            }
            let names: Vec<Option<String>> = nics.iter().map(name).collect();
            if let Some(networks) = spec.get_mut("networks").and_then(Value::as_array_mut) {
                networks.retain(|network| names.contains(&name(network)));
            }
        }
    }
    spec
}

/// Shortens the time that the guest of a VMI has to shut down, also when the VMI is being deleted already. As for pods, a
/// deletion never makes it longer.
pub fn shorten_grace(instance: &mut Value, seconds: i64) {
    const DEFAULT: i64 = 30;
    let has = instance["spec"].get(GRACE_PERIOD).and_then(Value::as_i64).unwrap_or(DEFAULT);
    if seconds < has {
        instance["spec"][GRACE_PERIOD] = json!(seconds);
    }
}

fn problems(read: Result<Vm, Report>) -> Vec<Problem> {
    let report = read.err();
    let found = report.iter().flat_map(Report::problems);
    found.map(|problem| Problem::at("", problem)).collect()
}

#[cfg(test)]
mod tests {
    use vireo_api::spec::Cause::Forbidden;

    use super::*;

    fn vmi_of(spec: Value) -> Value {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"}, "spec": spec})
    }

    #[test]
    fn a_vmi_is_completed_and_validated() {
        let mut good = vmi_of(json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}));
        assert_eq!(admit(&mut good, None), []);
        assert_eq!(good["status"]["phase"], "Pending");
        assert_eq!(good["metadata"]["finalizers"], json!([VMI_FINALIZER]));
        let mut bad =
            vmi_of(json!({"domain": {"cpu": {"cores": "many"}, "devices": {"disks": [{"name": "root"}]}}}));
        let problems = admit(&mut bad, None);
        for field in ["spec.domain.cpu.cores", "spec.domain.memory.guest", "spec.domain.devices.disks[0]"] {
            assert!(
                problems.iter().any(|problem| problem.field.starts_with(field)),
                "{field} in {problems:?}"
            );
        }
    }

    #[test]
    fn what_native_lacks_is_refused_where_a_vmi_is_created() {
        let mut vmi = vmi_of(json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {"tpm": {}}}}));
        assert_eq!(admit(&mut vmi.clone(), None), []);
        vmi["metadata"]["annotations"] = json!({"vireo.io/hypervisor": "native"});
        let problems = admit(&mut vmi.clone(), None);
        let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["spec.domain.devices.tpm"], "{problems:?}");
        let mut plugged = vmi.clone();
        plugged["spec"]["domain"]["devices"]["disks"] = json!([{"name": "data", "disk": {"bus": "scsi"}}]);
        plugged["spec"]["volumes"] = json!([{"name": "data", "emptyDisk": {"capacity": "1Gi"}}]);
        assert_eq!(validate_update(&plugged, &vmi, true), [], "it is stored");
    }

    #[test]
    fn only_components_change_a_spec_and_only_some_of_it() {
        let old = vmi_of(json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}));
        let mut labelled = old.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(validate_update(&labelled, &old, false), []);
        let mut plugged = old.clone();
        plugged["spec"]["domain"]["devices"]["disks"] = json!([{"name": "data", "disk": {"bus": "scsi"}}]);
        plugged["spec"]["volumes"] = json!([{"name": "data", "emptyDisk": {"capacity": "1Gi"}}]);
        assert_eq!(validate_update(&plugged, &old, true), []);
        assert_eq!(validate_update(&plugged, &old, false)[0].cause, Forbidden);
        let mut without_devices = old.clone();
        without_devices["spec"]["domain"].as_object_mut().unwrap().remove("devices");
        assert_eq!(validate_update(&plugged, &without_devices, true), [], "no devices are empty devices");
        let mut hurried = old.clone();
        hurried["spec"]["terminationGracePeriodSeconds"] = json!(1);
        assert_eq!(validate_update(&hurried, &old, true), []);
        assert_eq!(validate_update(&hurried, &old, false)[0].cause, Forbidden);
        let nics = |state: &str| json!([{"name": "default", "masquerade": {}, "state": state}]);
        let mut linked = old.clone();
        linked["spec"]["networks"] = json!([{"name": "default", "pod": {}}]);
        linked["spec"]["domain"]["devices"]["interfaces"] = nics("up");
        let mut switched = linked.clone();
        switched["spec"]["domain"]["devices"]["interfaces"] = nics("down");
        assert_eq!(validate_update(&switched, &linked, true), []);
        assert_eq!(validate_update(&switched, &linked, false)[0].cause, Forbidden);
        let mut with_lan = linked.clone();
        let lan = json!({"name": "lan", "bridge": {}});
        with_lan["spec"]["domain"]["devices"]["interfaces"].as_array_mut().unwrap().push(lan);
        let network = json!({"name": "lan", "multus": {"networkName": "lan"}});
        with_lan["spec"]["networks"].as_array_mut().unwrap().push(network);
        for (new, old) in [(&with_lan, &linked), (&linked, &with_lan)] {
            assert_eq!(validate_update(new, old, true), []);
            assert_eq!(validate_update(new, old, false)[0].cause, Forbidden);
        }
        switched["spec"]["domain"]["devices"]["interfaces"][0]["model"] = json!("e1000");
        assert_eq!(validate_update(&switched, &linked, true)[0].cause, Forbidden);
        plugged["spec"]["volumes"] = json!([]);
        assert!(!validate_update(&plugged, &old, true).is_empty(), "a disk without a volume");
        let mut larger = old.clone();
        larger["spec"]["domain"]["memory"]["guest"] = json!("128Mi");
        for is_component in [false, true] {
            assert_eq!(validate_update(&larger, &old, is_component)[0].cause, Forbidden);
        }
    }
}
