//! VirtualMachineInstances before they are stored.

use serde_json::{Value, json};
use vireo_api::decode;
use vireo_api::v1::VirtualMachineInstance;
use vireo_apiserver::meta;
use vireo_apiserver::resource::Cause;

/// Held by the node until the machine is gone; KubeVirt's.
pub const VMI_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";

/// As KubeVirt's webhooks: judged by the one validation there is; later only `metadata` may change.
pub(super) fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    match old {
        None => {
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
        Some(old) => {
            if let Some(fields) = new.as_object_mut() {
                match old.get("status") {
                    Some(status) => fields.insert("status".to_owned(), status.clone()),
                    None => fields.remove("status"),
                };
            }
            if new.get("spec") == old.get("spec") {
                return Vec::new();
            }
            let message = "update of VMI object is restricted: delete it and create it again";
            vec![Cause::forbidden("spec", message)]
        }
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
    fn what_a_vmi_is_and_says_is_not_the_users_to_change() {
        let mut old = vmi_of(json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}));
        admit(&mut old, None);
        let mut new = old.clone();
        new["status"] = json!({"phase": "Running"});
        new["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(admit(&mut new, Some(&old)), []);
        assert_eq!((&new["status"], &new["metadata"]["labels"]["a"]), (&old["status"], &json!("b")));
        new["spec"]["domain"]["memory"]["guest"] = json!("128Mi");
        assert_eq!(admit(&mut new, Some(&old))[0].reason, "FieldValueForbidden");
    }
}
