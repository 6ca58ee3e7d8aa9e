//! Whether the launcher pod of a VMI may be evicted.

use vireo_api::v1::VirtualMachineInstance;

use crate::conditions;

/// What is done about a request to evict a launcher pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// The pod is evicted, and the VMI ends with it.
    Allowed,
    /// The request is denied with this message.
    Denied(String),
    /// The request is denied with this message, and `status.evacuationNodeName` of the VMI becomes the pod's node.
    Evacuated(String),
}

/// Decides by the eviction strategy of the VMI. `node` is the node of its pod. The strategy of the cluster is `None`.
pub fn decide(vmi: &VirtualMachineInstance, node: &str) -> Eviction {
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
