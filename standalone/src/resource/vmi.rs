//! VirtualMachineInstances before they are stored.

use serde_json::{Value, json};
use vireo_api::decode;
use vireo_api::v1::VirtualMachineInstance;
use vireo_apiserver::meta;
use vireo_apiserver::resource::Cause;

/// Held by the node until the machine is gone; KubeVirt's.
pub const VMI_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";

/// Completes and validates a new VMI, as KubeVirt's webhooks do. Updates are validated by [`validate_update`].
pub(super) fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    if old.is_some() {
        return Vec::new();
    }
    let now = meta::now();
    let transition = json!([{"phase": "Pending", "phaseTransitionTimestamp": now}]);
    new["status"] = json!({"phase": "Pending", "phaseTransitionTimestamps": transition});
    let mut finalizers = meta::finalizers(new);
    if !finalizers.iter().any(|one| one == VMI_FINALIZER) {
        finalizers.push(VMI_FINALIZER.to_owned());
    }
    meta::of(new).insert("finalizers".to_owned(), json!(finalizers));
    judge(new)
}

/// Validates the change of a VMI's spec: users cannot change it, KubeVirt's components can plug volumes.
pub(crate) fn validate_update(new: &Value, old: &Value, is_component: bool) -> Vec<Cause> {
    if new.get("spec") == old.get("spec") {
        return Vec::new();
    }
    if is_component && without_volumes(new) == without_volumes(old) {
        return judge(new);
    }
    let message = "update of VMI object is restricted: delete it and create it again";
    vec![Cause::forbidden("spec", message)]
}

fn without_volumes(vmi: &Value) -> Value {
    let mut spec = vmi.get("spec").cloned().unwrap_or_default();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("volumes");
    }
    if let Some(domain) = spec.get_mut("domain").and_then(Value::as_object_mut) {
        let devices = domain.entry("devices").or_insert_with(|| json!({}));
        if let Some(devices) = devices.as_object_mut() {
            devices.remove("disks");
        }
    }
    spec
}

/// Shortens the time that the guest of a VMI has to shut down, also when the VMI is being deleted already. As for pods, a
/// deletion never makes it longer.
pub(crate) fn shorten_grace(instance: &mut Value, seconds: i64) {
    const DEFAULT: i64 = 30;
    let field = "terminationGracePeriodSeconds";
    let has = instance.pointer(&format!("/spec/{field}")).and_then(Value::as_i64).unwrap_or(DEFAULT);
    if seconds < has {
        instance["spec"][field] = json!(seconds);
    }
}

fn judge(vmi: &Value) -> Vec<Cause> {
    let decoded = decode::object::<VirtualMachineInstance>(vmi.clone());
    let Err(report) = decoded.check() else { return Vec::new() };
    let cause = |problem: &vireo_api::spec::Problem| Cause {
        reason: problem.cause().as_str(),
        message: problem.message().to_owned(),
        field: problem.field().as_str().to_owned(),
    };
    report.problems().iter().map(cause).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmi_of(spec: Value) -> Value {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"}, "spec": spec})
    }

    #[test]
    fn a_vmi_is_judged_by_the_one_validation() {
        let mut good = vmi_of(json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}));
        assert_eq!(admit(&mut good, None), []);
        assert_eq!(good["status"]["phase"], "Pending");
        assert_eq!(good["metadata"]["finalizers"], json!([VMI_FINALIZER]));
        let mut bad =
            vmi_of(json!({"domain": {"cpu": {"cores": "many"}, "devices": {"disks": [{"name": "root"}]}}}));
        let causes = admit(&mut bad, None);
        for field in ["spec.domain.cpu.cores", "spec.domain.memory.guest", "spec.domain.devices.disks[0]"] {
            assert!(causes.iter().any(|cause| cause.field.starts_with(field)), "{field} in {causes:?}");
        }
    }

    #[test]
    fn only_components_change_a_spec_and_only_its_volumes() {
        let old = vmi_of(json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}));
        let mut labelled = old.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(validate_update(&labelled, &old, false), []);
        let mut plugged = old.clone();
        plugged["spec"]["domain"]["devices"]["disks"] = json!([{"name": "data", "disk": {"bus": "scsi"}}]);
        plugged["spec"]["volumes"] = json!([{"name": "data", "emptyDisk": {"capacity": "1Gi"}}]);
        assert_eq!(validate_update(&plugged, &old, true), []);
        assert_eq!(validate_update(&plugged, &old, false)[0].reason, "FieldValueForbidden");
        let mut without_devices = old.clone();
        without_devices["spec"]["domain"].as_object_mut().unwrap().remove("devices");
        assert_eq!(validate_update(&plugged, &without_devices, true), [], "no devices are empty devices");
        plugged["spec"]["volumes"] = json!([]);
        assert!(!validate_update(&plugged, &old, true).is_empty(), "a disk without a volume");
        let mut larger = old.clone();
        larger["spec"]["domain"]["memory"]["guest"] = json!("128Mi");
        for is_component in [false, true] {
            assert_eq!(validate_update(&larger, &old, is_component)[0].reason, "FieldValueForbidden");
        }
    }
}
