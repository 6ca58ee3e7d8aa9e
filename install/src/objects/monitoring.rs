//! What Prometheus's operator reads, where a cluster has it: where the metrics are, and rules.

mod rules;

use serde_json::{Value, json};
use vireo_client::Kind;
use vireo_operators::certificates::{METRICS_SERVER_NAME, VIRT_HANDLER};

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
        "tlsConfig": {"ca": authority, "serverName": METRICS_SERVER_NAME},
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
                {"name": "recordingRules.rules", "rules": rules::records()},
                {"name": "alerts.rules", "rules": rules::alerts()},
            ]},
        }),
    ]
}

/// What Prometheus may read to find the components.
pub(super) fn role(monitoring: &Monitoring) -> [Value; 2] {
    let rules = json!([{"apiGroups": [""], "resources": ["endpoints", "pods", "services"],
        "verbs": ["get", "list", "watch"]}]);
    let account = |namespace| (namespace, monitoring.account.as_str());
    let accounts: Vec<(&str, &str)> = monitoring.namespaces.iter().map(String::as_str).map(account).collect();
    bound(ROLE, Some(NAMESPACE), &rules, &accounts)
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
        // Each component has a certificate with this name.
        assert_eq!(endpoint["tlsConfig"]["serverName"], METRICS_SERVER_NAME);
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
}
