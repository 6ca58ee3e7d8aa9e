//! The rules of Prometheus, with KubeVirt's names.

use serde_json::{Value, json};
use vireo_api::names::KVM_RESOURCE;

use crate::objects::NAMESPACE;

/// KubeVirt's, by what kube-state-metrics knows of nodes, and what components say.
pub(super) fn records() -> Vec<Value> {
    let kvm = KVM_RESOURCE.replace(['.', '/'], "_");
    let record = |name: String, expr: String| json!({"record": name, "expr": expr});
    let up = |component: &str| {
        let expr = format!("sum(up{{namespace=\"{NAMESPACE}\", pod=~\"{component}-.*\"}}) or vector(0)");
        record(format!("kubevirt_{}_up", component.replace('-', "_")), expr)
    };
    // Of the replicas of a component one leads.
    let sum = |component: &str, what: &str| {
        let name = format!("kubevirt_{component}_{what}");
        record(name.clone(), format!("sum({name}_status{{namespace=\"{NAMESPACE}\"}}) or vector(0)"))
    };
    let transitions = ["error", "migrating", "non_running", "running", "starting"]
        .map(|group| format!("kubevirt_vm_{group}_status_last_transition_timestamp_seconds"));
    vec![
        record(
            "kubevirt_allocatable_nodes".to_owned(),
            "count(count by (node) (kube_node_status_allocatable))".to_owned(),
        ),
        record(
            "kubevirt_nodes_with_kvm".to_owned(),
            format!("count(kube_node_status_allocatable{{resource=\"{kvm}\"}} != 0) or vector(0)"),
        ),
        up("virt-api"),
        up("virt-controller"),
        up("virt-handler"),
        up("virt-operator"),
        sum("virt_controller", "ready"),
        sum("virt_controller", "leading"),
        sum("virt_operator", "ready"),
        sum("virt_operator", "leading"),
        record(
            "kubevirt_number_of_vms".to_owned(),
            format!("sum by (namespace) (count by (name, namespace) ({}))", transitions.join(" + ")),
        ),
    ]
}

/// Alerts of a component of which one replica leads.
fn leader_alerts(component: &str, called: &str) -> [Value; 4] {
    let metric = format!("kubevirt_{}", component.replace('-', "_"));
    let critical = (10, "critical", "critical");
    [
        down(component, called),
        alert(
            &format!("NoReady{called}"),
            format!("{metric}_ready == 0"),
            critical,
            &format!("No {component} can lead."),
        ),
        alert(
            &format!("LowReady{called}sCount"),
            format!("{metric}_ready < {metric}_up"),
            (10, "warning", "warning"),
            &format!("Some replicas of {component} cannot lead."),
        ),
        alert(
            &format!("NoLeading{called}"),
            format!("{metric}_leading == 0"),
            critical,
            &format!("No {component} leads."),
        ),
    ]
}

/// No replica of a component answers.
fn down(component: &str, called: &str) -> Value {
    let expr = format!("kubevirt_{}_up == 0", component.replace('-', "_"));
    alert(&format!("{called}Down"), expr, (10, "critical", "critical"), &format!("No {component} answers."))
}

/// An alert, how many minutes it waits, how severe it is, and how it affects the operator's health.
fn alert(name: &str, expr: String, (minutes, severity, impact): (u32, &str, &str), summary: &str) -> Value {
    json!({
        "alert": name, "expr": expr, "for": format!("{minutes}m"), "annotations": {"summary": summary},
        "labels": {"severity": severity, "operator_health_impact": impact,
            "kubernetes_operator_part_of": "kubevirt", "kubernetes_operator_component": "kubevirt"},
    })
}

/// Of the requests of a component, most fail.
fn rest_errors(component: &str, called: &str) -> Value {
    let rate = |codes: &str| {
        format!(
            "sum(rate(kubevirt_rest_client_requests_total{{namespace=\"{NAMESPACE}\", pod=~\"{component}-.*\"{codes}}}[5m]))"
        )
    };
    alert(
        &format!("{called}RESTErrorsBurst"),
        format!("{} / {} >= 0.8", rate(", code=~\"(4|5)[0-9][0-9]\""), rate("")),
        (5, "critical", "critical"),
        &format!("More than 80% of the requests of {component} to the API server have failed for 5 minutes."),
    )
}

/// Those with KubeVirt's names mean what KubeVirt's mean; the others are about node agents and launchers.
pub(super) fn alerts() -> Vec<Value> {
    let several = |what: &str| format!("(kubevirt_allocatable_nodes > 1) and ({what} < 2)");
    let mut alerts = vec![
        down("virt-api", "VirtAPI"),
        rest_errors("virt-api", "VirtApi"),
        rest_errors("virt-controller", "VirtController"),
        rest_errors("virt-handler", "VirtHandler"),
        rest_errors("virt-operator", "VirtOperator"),
    ];
    alerts.extend(leader_alerts("virt-controller", "VirtController"));
    alerts.extend(leader_alerts("virt-operator", "VirtOperator"));
    alerts.extend([
        alert(
            "LowVirtAPICount",
            several("kubevirt_virt_api_up"),
            (60, "warning", "warning"),
            "In a cluster of several nodes, at least two replicas of virt-api are to run.",
        ),
        alert(
            "LowVirtControllersCount",
            several("kubevirt_virt_controller_ready"),
            (10, "warning", "warning"),
            "In a cluster of several nodes, at least two replicas of virt-controller are to be ready.",
        ),
        alert(
            "LowVirtOperatorCount",
            several("kubevirt_virt_operator_up"),
            (60, "warning", "warning"),
            "In a cluster of several nodes, at least two replicas of virt-operator are to run.",
        ),
        alert(
            "OutdatedVirtualMachineInstanceWorkloads",
            "kubevirt_vmi_number_of_outdated != 0".to_owned(),
            (1440, "warning", "none"),
            "Some running VMIs have had a launcher of an earlier release for a day.",
        ),
        alert(
            "VirtualMachineStuckInUnhealthyState",
            "sum by (name, namespace, status) (kubevirt_vm_info{status=~\"provisioning|starting|terminating\"} == 1 \
             or kubevirt_vm_info{status_group=\"error\"} == 1) unless on(name, namespace) kubevirt_vmi_info"
                .to_owned(),
            (10, "warning", "none"),
            "The VM {{ $labels.namespace }}/{{ $labels.name }} is {{ $labels.status }}, and has no VMI on a node.",
        ),
        alert(
            "LowKVMNodesCount",
            "kubevirt_allocatable_nodes > 1 and kubevirt_nodes_with_kvm < 2".to_owned(),
            (5, "warning", "warning"),
            "At least two nodes with KVM are needed to replace one of them.",
        ),
        alert(
            "VMCannotBeEvicted",
            "kubevirt_vmi_non_evictable > 0".to_owned(),
            (1, "warning", "none"),
            "The VMI {{ $labels.namespace }}/{{ $labels.name }} keeps its node from being drained.",
        ),
        alert(
            "VireoNodeAgentDown",
            format!("up{{namespace=\"{NAMESPACE}\", pod=~\"virt-handler-.*\"}} == 0"),
            (5, "critical", "critical"),
            "The node agent {{ $labels.pod }} does not answer; its guests run on.",
        ),
        alert(
            "VireoLauncherSilent",
            "vireo_metrics_vmis_missing > 0".to_owned(),
            (5, "warning", "warning"),
            "Launchers on {{ $labels.node }} do not answer the node agent.",
        ),
    ]);
    alerts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// `promtool check rules` finds no fault in them.
    #[test]
    fn rules_have_names_of_their_own_and_say_how_bad_it_is() {
        let all = [records(), alerts()].concat();
        let name = |rule: &Value| rule["alert"].as_str().or(rule["record"].as_str()).unwrap().to_owned();
        let mut names: Vec<String> = all.iter().map(name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for alert in all.iter().filter(|rule| rule["alert"].is_string()) {
            assert!(
                ["warning", "critical"].contains(&alert["labels"]["severity"].as_str().unwrap()),
                "{alert}"
            );
        }
        let kvm = &all[1]["expr"];
        assert!(kvm.as_str().unwrap().contains("resource=\"devices_kubevirt_io_kvm\""), "{kvm}");
    }

    /// What the components serve of what rules ask for.
    const SERVED: [&str; 15] = [
        "kubevirt_rest_client_requests_total",
        "kubevirt_virt_controller_leading_status",
        "kubevirt_virt_controller_ready_status",
        "kubevirt_virt_operator_leading_status",
        "kubevirt_virt_operator_ready_status",
        "kubevirt_vm_error_status_last_transition_timestamp_seconds",
        "kubevirt_vm_info",
        "kubevirt_vm_migrating_status_last_transition_timestamp_seconds",
        "kubevirt_vm_non_running_status_last_transition_timestamp_seconds",
        "kubevirt_vm_running_status_last_transition_timestamp_seconds",
        "kubevirt_vm_starting_status_last_transition_timestamp_seconds",
        "kubevirt_vmi_info",
        "kubevirt_vmi_non_evictable",
        "kubevirt_vmi_number_of_outdated",
        "vireo_metrics_vmis_missing",
    ];

    #[test]
    fn rules_ask_for_metrics_that_there_are() {
        let (records, mut asked) = (records(), BTreeSet::new());
        let recorded: BTreeSet<&str> = records.iter().map(|rule| rule["record"].as_str().unwrap()).collect();
        for rule in [records.clone(), alerts()].concat() {
            let expr = rule["expr"].as_str().unwrap();
            let words = expr.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let names = words.filter(|word| word.starts_with("kubevirt_") || word.starts_with("vireo_"));
            asked.extend(names.filter(|name| !recorded.contains(name)).map(str::to_owned));
        }
        assert_eq!(asked.iter().map(String::as_str).collect::<Vec<_>>(), SERVED);
    }
}
