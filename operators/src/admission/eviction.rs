//! Whether the launcher Pod of a VMI may be evicted, or an attachment Pod.

use kube::{Client, Error};
use serde_json::{Value, json};
use vireo_api::names::{ATTACHMENT, ATTACHMENT_VMI_ANNOTATIONS, COMPONENT_LABEL, LAUNCHER};
use vireo_api::spec::is_dns_subdomain;
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::{Kind, write};

use crate::conditions;
use crate::vmi::is_final;

/// What is done about a request to evict a Pod of a VMI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Eviction {
    /// The Pod is evicted, and the VMI ends with it.
    Allowed,
    /// The request is denied with this message.
    Denied(String),
    /// The request is denied with this message, and `status.evacuationNodeName` of the VMI becomes the Pod's node.
    Evacuated(String),
}

/// Decides on the eviction of a Pod. The VMI of a launcher is marked for evacuation where its strategy says so. The message
/// of a denial, if it is denied.
pub(super) async fn admit(client: &Client, pod: &Value, dry_run: bool) -> Option<String> {
    let (component, namespace, name) = vmi_of(pod)?;
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    let failed = |error: &dyn std::fmt::Display| Some(format!("kubevirt failed getting the vmi: {error}"));
    // Clients may write owner references, and the name becomes part of a path.
    if !is_dns_subdomain(name) {
        return failed(&format_args!("the owner reference {name:?} is not a name"));
    }
    let vmis = Kind::VMI.namespaced(client, namespace);
    let vmi = match vmis.get(name).await {
        Ok(object) => serde_json::to_value(object).and_then(serde_json::from_value::<VirtualMachineInstance>),
        // Nothing runs that the Pod is needed for.
        Err(Error::Api(status)) if status.code == 404 && component == ATTACHMENT => return None,
        Err(Error::Api(status)) => return failed(&status.message),
        Err(error) => return failed(&error),
    };
    let vmi = match vmi {
        Ok(vmi) => vmi,
        Err(error) => return failed(&error),
    };
    let decision = match component {
        ATTACHMENT => decide_attachment(&vmi),
        _ => decide(&vmi, node),
    };
    match decision {
        Eviction::Allowed => None,
        Eviction::Denied(why) => Some(why),
        Eviction::Evacuated(why) if dry_run => Some(why),
        Eviction::Evacuated(why) => {
            let after = json!({ "evacuationNodeName": node });
            match write::patch_status(&vmis, (&vmi.metadata).into(), &json!({}), &after).await {
                Ok(_) => Some(why),
                Err(error) => Some(format!("kubevirt failed marking the vmi for eviction: {error}")),
            }
        }
    }
}

/// The component of a Pod that belongs to a VMI, and namespace and name of the VMI. None for other Pods, and for those that
/// have terminated.
fn vmi_of(pod: &Value) -> Option<(&'static str, &str, &str)> {
    let label = pod.pointer("/metadata/labels")?.get(COMPONENT_LABEL)?;
    let component = [LAUNCHER, ATTACHMENT].into_iter().find(|component| label == component)?;
    if is_final(pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default()) {
        return None;
    }
    let metadata = pod.get("metadata")?;
    let name = if component == LAUNCHER {
        let owners = metadata["ownerReferences"].as_array()?;
        &owners.iter().find(|owner| owner["kind"] == Kind::VMI.kind && owner["controller"] == true)?["name"]
    } else {
        metadata["annotations"].get(ATTACHMENT_VMI_ANNOTATIONS.0)?
    };
    Some((component, metadata["namespace"].as_str()?, name.as_str()?))
}

/// An attachment Pod goes with the launcher Pod, whose eviction ends the guest.
fn decide_attachment(vmi: &VirtualMachineInstance) -> Eviction {
    if is_final(&vmi.status.phase) {
        return Eviction::Allowed;
    }
    let (namespace, name) = (&vmi.metadata.namespace, &vmi.metadata.name);
    Eviction::Denied(format!(
        "cannot evict the attachment Pod of a hotplugged volume of the running VMI \"{namespace}/{name}\""
    ))
}

/// Decides by the eviction strategy of the VMI. `node` is the node of its Pod. Without one it is `None`, as of VMIs of earlier
/// releases.
pub(super) fn decide(vmi: &VirtualMachineInstance, node: &str) -> Eviction {
    let is_migratable = conditions::has(&vmi.status.conditions, "LiveMigratable", "True");
    let (namespace, name) = (&vmi.metadata.namespace, &vmi.metadata.name);
    match vmi.spec.eviction_strategy.as_deref() {
        Some("LiveMigrate") if !is_migratable => {
            return Eviction::Denied(format!(
                "VMI {name} is configured with an eviction strategy but is not live-migratable"
            ));
        }
        Some("LiveMigrate" | "External") => {}
        Some("LiveMigrateIfPossible") if is_migratable => {}
        _ => return Eviction::Allowed,
    }
    // The descheduler looks for this message.
    let triggered = format!("Eviction triggered evacuation of VMI \"{namespace}/{name}\"");
    if !vmi.status.evacuation_node_name.is_empty() {
        return Eviction::Denied(format!("Evacuation in progress: {triggered}"));
    }
    if vmi.status.node_name != node {
        return Eviction::Denied("Eviction request for target Pod".to_owned());
    }
    Eviction::Evacuated(triggered)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decided(strategy: Option<&str>, migratable: bool, evacuated: &str, node: &str) -> Eviction {
        let vmi = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "guest"}, "spec": {"evictionStrategy": strategy},
            "status": {"nodeName": "node1", "evacuationNodeName": evacuated, "conditions": [
                {"type": "LiveMigratable", "status": if migratable { "True" } else { "False" }},
            ]},
        }));
        decide(&vmi.unwrap(), node)
    }

    #[test]
    fn pods_of_vmis_are_found() {
        let owners = json!([{"kind": "VirtualMachineInstance", "name": "guest", "controller": true}]);
        let metadata = |component: &str| {
            json!({"namespace": "n", "labels": {"kubevirt.io": component}, "ownerReferences": owners,
                "annotations": {"kubevirt.io/owner-vmi-name": "other"}})
        };
        let pod =
            |component, phase: &str| json!({"metadata": metadata(component), "status": {"phase": phase}});
        assert_eq!(vmi_of(&pod("virt-launcher", "Running")), Some((LAUNCHER, "n", "guest")));
        assert_eq!(vmi_of(&pod("hotplug-disk", "Running")), Some((ATTACHMENT, "n", "other")));
        assert_eq!(vmi_of(&pod("virt-launcher", "Succeeded")), None);
        assert_eq!(vmi_of(&pod("virt-handler", "Running")), None);
    }

    #[test]
    fn an_attachment_pod_stays_while_its_guest_may_run() {
        let vmi = |phase: &str| {
            let metadata = json!({"namespace": "n", "name": "guest"});
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
        };
        assert!(
            matches!(decide_attachment(&vmi("Running")), Eviction::Denied(why) if why.contains("n/guest"))
        );
        assert_eq!(decide_attachment(&vmi("Failed")), Eviction::Allowed);
    }

    #[test]
    fn the_strategy_decides() {
        let denied = |message: &str| Eviction::Denied(message.to_owned());
        let triggered = "Eviction triggered evacuation of VMI \"n/guest\"";
        let evacuated = Eviction::Evacuated(triggered.to_owned());
        for (strategy, migratable, expected) in [
            (None, false, Eviction::Allowed),
            (Some("None"), true, Eviction::Allowed),
            (
                Some("LiveMigrate"),
                false,
                denied("VMI guest is configured with an eviction strategy but is not live-migratable"),
            ),
            (Some("LiveMigrate"), true, evacuated.clone()),
            (Some("LiveMigrateIfPossible"), false, Eviction::Allowed),
            (Some("LiveMigrateIfPossible"), true, evacuated.clone()),
            (Some("External"), false, evacuated),
        ] {
            assert_eq!(decided(strategy, migratable, "", "node1"), expected, "{strategy:?} {migratable}");
        }
        assert_eq!(
            decided(Some("External"), false, "node1", "node1"),
            denied(&format!("Evacuation in progress: {triggered}"))
        );
        let target = decided(Some("External"), false, "", "node2");
        assert_eq!(target, denied("Eviction request for target Pod"));
    }
}
