//! What Prometheus's operator reads, where a cluster has it: where the metrics are, and rules.

use serde_json::{Value, json};
use vireo_api::names::KVM_RESOURCE;
use vireo_client::Kind;
use vireo_operators::certificates::{AGENT_SERVER_NAME, VIRT_HANDLER};

use super::roles::bound;
use super::{METRICS, NAMESPACE, PROMETHEUS_LABEL};
use crate::installation::Monitoring;

const GROUP: (&str, &str) = ("monitoring.coreos.com", "v1");
/// Kinds of Prometheus's operator.
pub const MONITORING: [Kind; 2] = [
    Kind::new(GROUP, "ServiceMonitor", "servicemonitors"),
    Kind::new(GROUP, "PrometheusRule", "prometheusrules"),
];
/// KubeVirt's name of the role of Prometheus.
const ROLE: &str = "kubevirt-monitoring";

/// The objects for a Prometheus, and its rights in the namespace of the components.
pub(super) fn objects(monitoring: &Monitoring) -> [Value; 4] {
    let metadata = |name: &str| {
        json!({"namespace": NAMESPACE, "name": name,
            "labels": {PROMETHEUS_LABEL.0: PROMETHEUS_LABEL.1, "k8s-app": "kubevirt"}})
    };
    let [service_monitor, rule] = MONITORING;
    // In the same namespace, a ServiceMonitor may name a Secret.
    let authority = json!({"secret": {"name": VIRT_HANDLER.secret, "key": "ca.crt"}});
    let endpoint = json!({
        "port": METRICS, "scheme": "https", "honorLabels": true,
        "tlsConfig": {"ca": authority, "serverName": AGENT_SERVER_NAME},
    });
    let [role, binding] = role(monitoring);
    [
        role,
        binding,
        json!({
            "apiVersion": service_monitor.api_version(), "kind": service_monitor.kind, "metadata": metadata("kubevirt"),
            "spec": {
                "selector": {"matchLabels": {PROMETHEUS_LABEL.0: PROMETHEUS_LABEL.1}},
                "namespaceSelector": {"matchNames": [NAMESPACE]},
                "endpoints": [endpoint],
            },
        }),
        json!({
            "apiVersion": rule.api_version(), "kind": rule.kind, "metadata": metadata("prometheus-kubevirt-rules"),
            "spec": {"groups": [
                {"name": "recordingRules.rules", "rules": records()},
                {"name": "alerts.rules", "rules": alerts()},
            ]},
        }),
    ]
}

/// What Prometheus may read to find the node agents.
pub(super) fn role(monitoring: &Monitoring) -> [Value; 2] {
    let rules = json!([{"apiGroups": [""], "resources": ["endpoints", "pods", "services"],
        "verbs": ["get", "list", "watch"]}]);
    let account = |namespace| (namespace, monitoring.account.as_str());
    let accounts: Vec<(&str, &str)> = monitoring.namespaces.iter().map(String::as_str).map(account).collect();
    bound(ROLE, Some(NAMESPACE), &rules, &accounts)
}

/// KubeVirt's, by what kube-state-metrics knows of nodes.
fn records() -> Value {
    let kvm = KVM_RESOURCE.replace(['.', '/'], "_");
    json!([
        {"record": "kubevirt_allocatable_nodes", "expr": "count(count by (node) (kube_node_status_allocatable))"},
        {"record": "kubevirt_nodes_with_kvm",
            "expr": format!("count(kube_node_status_allocatable{{resource=\"{kvm}\"}} != 0) or vector(0)")},
    ])
}

/// Those with KubeVirt's names mean what KubeVirt's mean; the others are about node agents and launchers.
fn alerts() -> Vec<Value> {
    let alert = |name: &str, expr: String, (minutes, severity, impact): (u32, &str, &str), summary: &str| {
        json!({
            "alert": name, "expr": expr, "for": format!("{minutes}m"), "annotations": {"summary": summary},
            "labels": {"severity": severity, "operator_health_impact": impact,
                "kubernetes_operator_part_of": "kubevirt", "kubernetes_operator_component": "kubevirt"},
        })
    };
    let down = |name: &str, deployment: &str| {
        let expr = format!(
            "kube_deployment_status_replicas_available{{namespace=\"{NAMESPACE}\", deployment=\"{deployment}\"}} == 0"
        );
        alert(name, expr, (10, "critical", "critical"), &format!("No replica of {deployment} is available."))
    };
    vec![
        down("VirtAPIDown", "virt-api"),
        down("VirtControllerDown", "virt-controller"),
        down("VirtOperatorDown", "virt-operator"),
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
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation::tests::installation;

    fn monitoring(spec: Value) -> [Value; 4] {
        objects(&installation(spec, 1).monitoring.unwrap())
    }

    #[test]
    fn prometheus_finds_the_node_agents_and_may_read_what_it_needs() {
        let [_, binding, monitor, _] = monitoring(json!({}));
        let endpoint = &monitor["spec"]["endpoints"][0];
        let services = super::super::metrics();
        assert_eq!(endpoint["port"], services["spec"]["ports"][0]["name"]);
        let selected = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
        for (name, value) in selected {
            assert_eq!(&services["metadata"]["labels"][name], value);
        }
        let accounts = |binding: &Value| {
            let subjects = binding["subjects"].as_array().unwrap().clone();
            subjects
                .iter()
                .map(|one| format!("{}/{}", one["namespace"], one["name"]).replace('"', ""))
                .collect()
        };
        let usual: Vec<String> = accounts(&binding);
        assert_eq!(usual, ["openshift-monitoring/prometheus-k8s", "monitoring/prometheus-k8s"]);
        let [_, binding, ..] =
            monitoring(json!({"monitorAccount": "prometheus", "monitorNamespace": "watch"}));
        let given: Vec<String> = accounts(&binding);
        assert_eq!(given, ["watch/prometheus"]);
    }

    /// `promtool check rules` finds no fault in them.
    #[test]
    fn rules_have_names_of_their_own_and_say_how_bad_it_is() {
        let [.., rules] = monitoring(json!({}));
        let groups = rules["spec"]["groups"].as_array().unwrap();
        let all: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
        let name = |rule: &Value| rule["alert"].as_str().or(rule["record"].as_str()).unwrap().to_owned();
        let mut names: Vec<String> = all.iter().map(|rule| name(rule)).collect();
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
}
