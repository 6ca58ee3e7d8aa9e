//! Admission of evictions, as KubeVirt's webhook for launcher pods decides on them.

use serde_json::{Value, json};
use vireo_api::v1::VirtualMachineInstance;
use vireo_apiserver::http::ApiError;
use vireo_apiserver::meta;
use vireo_apiserver::objects;
use vireo_apiserver::store::Store;
use vireo_operators::eviction::{Eviction, decide};

use crate::resource::kubevirt::VMIS;

/// Marks the pods of launchers.
const LAUNCHER: (&str, &str) = ("kubevirt.io", "virt-launcher");

/// Decides on the eviction of a pod. The VMI of a launcher is marked for evacuation where its strategy says so.
pub(crate) fn admit(store: &Store, pod: &Value, dry_run: bool) -> Result<(), ApiError> {
    let Some(name) = vmi_of(pod) else { return Ok(()) };
    let failed = |what: &str| ApiError::too_many_requests(format!("kubevirt failed getting the vmi: {what}"));
    let Some(object) = store.get(&VMIS.key(meta::text(pod, "namespace"), name)) else {
        return Err(failed(&format!("{} {name:?} not found", VMIS.name())));
    };
    let vmi: VirtualMachineInstance =
        serde_json::from_value(object.value.clone()).map_err(|error| failed(&error.to_string()))?;
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    match decide(&vmi, node) {
        Eviction::Allowed => Ok(()),
        Eviction::Denied(why) => Err(ApiError::too_many_requests(why)),
        Eviction::Evacuated(why) => {
            if !dry_run {
                objects::change(store, &object, |vmi| {
                    vmi["status"]["evacuationNodeName"] = json!(node);
                    true
                })?;
            }
            Err(ApiError::too_many_requests(why))
        }
    }
}

/// The VMI whose launcher runs in a pod. None for other pods, and for those that have terminated.
fn vmi_of(pod: &Value) -> Option<&str> {
    let (label, value) = LAUNCHER;
    let is_launcher = pod.pointer("/metadata/labels")?.get(label).is_some_and(|has| has == value);
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    if !is_launcher || matches!(phase, "Failed" | "Succeeded") {
        return None;
    }
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["kind"] == *VMIS.kind && owner["controller"] == true)?;
    owner["name"].as_str()
}
