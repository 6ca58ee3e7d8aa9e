//! What has its effect in clusters alone.

use super::{Field, Notice};
use crate::v1::{NodeAffinity, VirtualMachineInstanceSpec};

const NODES: &str = "there is one node";

/// The fields of a spec that have no effect on a single host, beside those that have none anywhere.
pub fn single_host_notices(spec: &VirtualMachineInstanceSpec) -> Vec<Notice> {
    let affinity = spec.affinity.as_deref();
    let pods = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let other_pods = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let prefers =
        |nodes: &NodeAffinity| !nodes.preferred_during_scheduling_ignored_during_execution.is_empty();
    let fixed = [
        ("priorityClassName", !spec.priority_class_name.is_empty(), "nothing is preempted"),
        ("schedulerName", !spec.scheduler_name.is_empty(), "there is one scheduler"),
        ("serviceAccountName", !spec.service_account_name.is_empty(), "launchers do not use the API"),
        ("subdomain", !spec.subdomain.is_empty(), "there is no DNS server of the cluster"),
        ("topologySpreadConstraints", !spec.topology_spread_constraints.is_empty(), NODES),
        ("affinity.podAffinity", pods.is_some(), NODES),
        ("affinity.podAntiAffinity", other_pods.is_some(), NODES),
        (
            "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
            nodes.is_some_and(prefers),
            NODES,
        ),
        (
            "domain.devices.logSerialConsole",
            spec.domain.devices.log_serial_console.is_some(),
            "kubectl logs shows the console always",
        ),
    ];
    let fixed = fixed.into_iter().filter(|(_, is_set, _)| *is_set);
    let fixed = fixed.map(|(field, _, why)| (field.to_owned(), why));
    let tolerations = spec.tolerations.iter().enumerate();
    let tolerations = tolerations.filter(|(_, toleration)| toleration.toleration_seconds.is_some());
    let tolerations = tolerations.map(|(index, _)| {
        (format!("tolerations[{index}].tolerationSeconds"), "taints do not evict from the node")
    });
    let notice = |(field, why): (String, &str)| Notice::new(Field::new("spec").at(&field), why.to_owned());
    fixed.chain(tolerations).map(notice).collect()
}
