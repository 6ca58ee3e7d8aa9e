//! The objects of an installation: virt-operator with what it needs, which a user applies, and what virt-operator applies.

mod chart;
mod monitoring;
mod roles;
mod workloads;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use vireo_api::names::{ATTACHMENT, COMPONENT_LABEL, CONSUMER, LAUNCHER, MANAGED_BY};
use vireo_client::Kind;
use vireo_operators::certificates::WEBHOOK_CONFIGURATION;
use vireo_operators::virt_api::{GROUP, VERSIONS};
use vireo_operators::webhooks::{KINDS, Webhook};

pub use self::chart::chart_files;
pub use self::monitoring::MONITORING;
use self::roles::{cluster_roles, election, operator_roles, virt_api_roles};
use self::workloads::{api, controller, handler, operator};
use crate::installation::{Images, Installation};
use crate::policy::{VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER};
use crate::resource::crd::{custom_resource_definitions, kubevirt_definition};
pub use vireo_api::names::NAMESPACE;

/// Namespace and name of virt-operator's ServiceAccount; KubeVirt's.
const VIRT_OPERATOR: (&str, &str) = (NAMESPACE, "kubevirt-operator");
/// The port at which virt-api listens.
const API_PORT: u16 = 8443;
/// The port of metrics and of what probes ask; KubeVirt's, and its name.
const METRICS_PORT: u16 = 8443;
const METRICS: &str = "metrics";
/// The label of Pods with metrics; KubeVirt's.
const PROMETHEUS_LABEL: (&str, &str) = ("prometheus.kubevirt.io", "true");

/// PodDisruptionBudgets, in the versions that clusters have: the newest first.
pub const DISRUPTION_BUDGETS: [Kind; 2] = [
    Kind::new(("policy", "v1"), "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind::new(("policy", "v1beta1"), "PodDisruptionBudget", "poddisruptionbudgets"),
];
/// The label of all that virt-operator installs, and removes. Kubernetes' label of what manages an object is not enough: that of
/// KubeVirt's own virt-operator has the same value, and what it left is not removed.
pub(crate) const INSTALLED_BY: (&str, &str) = ("vireo.io/installed-by", "virt-operator");
/// The PriorityClass of the components; KubeVirt's.
const PRIORITY_CLASS: &str = "kubevirt-cluster-critical";
/// Labels of roles that become part of another one begin so.
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";
/// Its value, which is the highest that is not Kubernetes' own.
const PRIORITY: u32 = 1_000_000_000;

/// virt-operator, and what it needs: what a user applies, in the order in which it is to be created.
pub fn operator_objects(images: &Images) -> Vec<Value> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let priority = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": PRIORITY_CLASS},
        "value": PRIORITY,
        "description": "The components of KubeVirt, without which its VMs cannot be managed.",
    });
    let mut objects = vec![namespace, kubevirt_definition(), priority, account(VIRT_OPERATOR)];
    objects.extend(election(VIRT_OPERATOR));
    objects.extend(operator_roles());
    objects.push(operator(images));
    objects
}

/// [`operator_objects`] as YAML documents.
///
/// # Errors
/// When an object has no YAML form.
pub fn operator_manifests(images: &Images) -> Result<String, serde_saphyr::ser::Error> {
    operator_objects(images)
        .iter()
        .map(|object| Ok(format!("---\n{}", serde_saphyr::to_string(object)?)))
        .collect()
}

fn account((namespace, name): (&str, &str)) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named(namespace, name)})
}

/// All that virt-operator applies, in the order in which it is to be created.
pub fn objects(installation: &Installation) -> Vec<Value> {
    let mut objects = custom_resource_definitions();
    objects.extend(cluster_roles().map(|mut role| {
        if !installation.aggregates_roles
            && let Some(labels) = role["metadata"]["labels"].as_object_mut()
        {
            labels.retain(|label, _| !label.starts_with(AGGREGATE));
        }
        role
    }));
    objects.extend([VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER].map(account));
    objects.extend(election(VIRT_CONTROLLER));
    objects.extend(virt_api_roles());
    let authority = STANDARD.encode(&installation.authority);
    objects.extend(aggregation(&authority));
    objects.push(metrics());
    objects.extend(installation.monitoring.iter().flat_map(monitoring::objects));
    objects.extend(webhooks(&authority));
    objects.extend([api(installation), controller(installation), handler(installation)]);
    objects.extend(disruption_budgets(installation));
    for object in &mut objects {
        let labels = &mut object["metadata"]["labels"];
        for (name, value) in [INSTALLED_BY, MANAGED_BY] {
            labels[name] = json!(value);
        }
        for (name, value) in &installation.labels {
            labels[*name] = json!(value);
        }
    }
    objects
}

/// Of a Deployment with several replicas, one may be evicted at a time.
fn disruption_budgets(installation: &Installation) -> impl Iterator<Item = Value> {
    let Installation { api_replicas, controller_replicas, disruption_budgets, .. } = *installation;
    [(VIRT_API, api_replicas), (VIRT_CONTROLLER, controller_replicas)]
        .into_iter()
        .filter(|(_, replicas)| *replicas > 1)
        .map(move |((namespace, name), replicas)| {
            json!({
                "apiVersion": disruption_budgets.api_version(), "kind": disruption_budgets.kind,
                "metadata": named(namespace, &format!("{name}-pdb")),
                "spec": {"minAvailable": replicas - 1, "selector": {"matchLabels": {COMPONENT_LABEL: name}}},
            })
        })
}

fn named(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "labels": {COMPONENT_LABEL: name}})
}

/// The group of the subresources, which virt-api serves.
fn aggregation(authority: &str) -> Vec<Value> {
    let (namespace, name) = VIRT_API;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": named(namespace, name),
        "spec": {"selector": {COMPONENT_LABEL: name}, "ports": [{"protocol": "TCP", "port": 443, "targetPort": API_PORT}]},
    });
    let group = |version: &&str| {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{GROUP}"), "labels": {COMPONENT_LABEL: name}},
            "spec": {"group": GROUP, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 15,
                "caBundle": authority,
                "service": {"namespace": namespace, "name": name, "port": 443}},
        })
    };
    [service].into_iter().chain(VERSIONS.iter().map(group)).collect()
}

/// Where Prometheus finds all that has metrics.
fn metrics() -> Value {
    let label = json!({PROMETHEUS_LABEL.0: PROMETHEUS_LABEL.1});
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": "kubevirt-prometheus-metrics",
            "labels": {COMPONENT_LABEL: "", PROMETHEUS_LABEL.0: PROMETHEUS_LABEL.1}},
        "spec": {"clusterIP": "None", "selector": label,
            "ports": [{"name": METRICS, "protocol": "TCP", "port": 443, "targetPort": METRICS}]},
    })
}

/// What asks virt-api before objects are stored and Pods are evicted. Without virt-api, nothing is stored, and no Pod of an
/// instance; evictions are not held up.
fn webhooks(authority: &str) -> [Value; 2] {
    let rules: Vec<Value> = KINDS
        .iter()
        .map(|kind| {
            json!({"apiGroups": [kind.group], "apiVersions": [kind.version], "resources": [kind.plural],
                "operations": ["CREATE", "UPDATE"], "scope": "*"})
        })
        .collect();
    let evictions = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"],
        "operations": ["CREATE"], "scope": "*"}]);
    let pods = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
        "operations": ["CREATE", "UPDATE"], "scope": "Namespaced"}]);
    let webhook = |name: &str, webhook: Webhook, rules: &Value, (policy, effects): (&str, &str)| {
        let service =
            json!({"namespace": VIRT_API.0, "name": VIRT_API.1, "path": webhook.path(), "port": 443});
        json!({
            "name": format!("{name}.kubevirt.io"), "admissionReviewVersions": ["v1"], "sideEffects": effects,
            "failurePolicy": policy, "timeoutSeconds": 10, "rules": rules, "clientConfig": {"service": service, "caBundle": authority},
        })
    };
    let configuration = |kind: &str, webhooks: &[Value]| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": WEBHOOK_CONFIGURATION, "labels": {COMPONENT_LABEL: VIRT_API.1}},
            "webhooks": webhooks,
        })
    };
    let installations = |operations: &[&str]| {
        json!([{"apiGroups": [Kind::KUBEVIRT.group], "apiVersions": [Kind::KUBEVIRT.version],
            "resources": [Kind::KUBEVIRT.plural], "operations": operations, "scope": "*"}])
    };
    let mut validate_pod = webhook("pod", Webhook::ValidatePod, &pods, ("Fail", "None"));
    validate_pod["objectSelector"] = json!({"matchExpressions": [
        {"key": COMPONENT_LABEL, "operator": "In", "values": [LAUNCHER, ATTACHMENT, CONSUMER]}]});
    let (written, deleted) = (installations(&["CREATE", "UPDATE"]), installations(&["DELETE"]));
    let rules = json!(rules);
    [
        configuration(
            "MutatingWebhookConfiguration",
            &[webhook("mutate", Webhook::Mutate, &rules, ("Fail", "None"))],
        ),
        configuration(
            "ValidatingWebhookConfiguration",
            &[
                webhook("validate", Webhook::Validate, &rules, ("Fail", "None")),
                validate_pod,
                webhook("evict", Webhook::Evict, &evictions, ("Ignore", "NoneOnDryRun")),
                // A change may be what brings virt-api back.
                webhook("kubevirt", Webhook::ValidateInstallation, &written, ("Ignore", "None")),
                // virt-operator looks for workloads, too; what never got a virt-api must not stay forever.
                webhook("uninstall", Webhook::Uninstall, &deleted, ("Ignore", "None")),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation::tests::{images, installation};

    fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
        objects.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name)
    }

    #[test]
    fn each_component_has_an_account_a_role_and_a_workload() {
        let objects = objects(&installation(json!({}), 2));
        for (kind, name) in [
            ("ServiceAccount", "virt-controller"),
            ("ServiceAccount", "virt-handler"),
            ("ClusterRole", "kubevirt-controller"),
            ("ClusterRoleBinding", "kubevirt-handler"),
            ("Deployment", "virt-api"),
            ("Deployment", "virt-controller"),
            ("PodDisruptionBudget", "virt-api-pdb"),
            ("APIService", "v1.subresources.kubevirt.io"),
            ("DaemonSet", "virt-handler"),
            ("ServiceMonitor", "kubevirt"),
            ("PrometheusRule", "prometheus-kubevirt-rules"),
        ] {
            let object = find(&objects, kind, name).unwrap_or_else(|| panic!("{kind} {name}"));
            assert_eq!(object["metadata"]["labels"][INSTALLED_BY.0], INSTALLED_BY.1, "{kind} {name}");
        }
        for (kind, name) in [
            ("ClusterRole", "system:kube-scheduler"),
            ("ClusterRole", "local-provisioner"),
            ("Deployment", "virt-operator"),
            ("CustomResourceDefinition", "kubevirts.kubevirt.io"),
        ] {
            assert_eq!(find(&objects, kind, name), None, "{kind} {name}");
        }
    }

    #[test]
    fn virt_operator_is_installed_by_the_user_and_is_not_managed_by_itself() {
        let objects = operator_objects(&images());
        let operator = find(&objects, "Deployment", "virt-operator").unwrap();
        let command = &operator["spec"]["template"]["spec"]["containers"][0]["command"];
        assert_eq!(command[2], "registry:5000/vireo/vireo:1");
        assert!(objects.iter().all(|one| one["metadata"]["labels"].get(INSTALLED_BY.0).is_none()));
        assert!(find(&objects, "CustomResourceDefinition", "kubevirts.kubevirt.io").is_some());
    }

    /// `vireo manifests >deploy/operator.yaml` makes it anew.
    #[test]
    fn deploy_has_the_manifests_of_this_release() {
        let committed = include_str!("../../deploy/operator.yaml");
        assert!(
            operator_manifests(&Images::default()).unwrap() == committed,
            "deploy/operator.yaml differs from what `vireo manifests` prints"
        );
    }

    /// The API server denies grants of rights that the grantor does not have.
    #[test]
    fn virt_operator_may_do_what_it_grants() {
        let operator = operator_objects(&images());
        let held = find(&operator, "ClusterRole", "kubevirt-operator").unwrap()["rules"].clone();
        let held = held.as_array().unwrap();
        let roles = objects(&installation(json!({}), 2));
        let roles = roles.iter().filter(|one| one["rules"].is_array());
        let mut count = 0;
        for role in roles {
            for rule in role["rules"].as_array().unwrap() {
                assert!(held.contains(rule), "{} {rule}", role["metadata"]["name"]);
                count += 1;
            }
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn roles_are_aggregated_unless_that_is_done_by_hand() {
        let aggregated = |spec: Value| {
            let objects = objects(&installation(spec, 1));
            let labels = objects.iter().filter_map(|one| one["metadata"]["labels"].as_object());
            labels.flat_map(|labels| labels.keys()).filter(|label| label.starts_with(AGGREGATE)).count()
        };
        assert_eq!(aggregated(json!({})), 3);
        assert_eq!(aggregated(json!({"configuration": {"roleAggregationStrategy": "Manual"}})), 0);
    }

    #[test]
    fn components_follow_the_installation() {
        let taint = json!({"key": "infra", "operator": "Exists"});
        let objects = objects(&installation(
            json!({
                "infra": {"nodePlacement": {"tolerations": [taint]}},
                "workloads": {"nodePlacement": {"nodeSelector": {"kvm": "yes"}}},
                "imagePullSecrets": [{"name": "key"}],
                "customizeComponents": {"flags": {"controller": {"x": "1"}}},
                "configuration": {"developerConfiguration": {"logVerbosity": {"virtHandler": 5}}},
            }),
            1,
        ));
        let pod = |kind, name| find(&objects, kind, name).unwrap()["spec"]["template"]["spec"].clone();
        let (api, controller) = (pod("Deployment", "virt-api"), pod("Deployment", "virt-controller"));
        let handler = pod("DaemonSet", "virt-handler");
        assert_eq!(api["tolerations"][1], taint);
        assert_eq!((api.get("nodeSelector"), &handler["nodeSelector"]), (None, &json!({"kvm": "yes"})));
        assert_eq!(handler["imagePullSecrets"], json!([{"name": "key"}]));
        let command = controller["containers"][0]["command"].as_array().unwrap();
        assert_eq!(command.last(), Some(&json!("--x=1")));
        let environment = &handler["containers"][0]["env"];
        assert_eq!(environment[1], json!({"name": "VIREO_LOG", "value": "debug"}));
        assert!(find(&objects, "PodDisruptionBudget", "virt-api-pdb").is_none(), "there is one replica");
    }
}
