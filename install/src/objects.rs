//! The objects that install Vireo in a cluster.

use serde_json::{Value, json};
use vireo_api::names::{COMPONENT_LABEL, HEALTHZ, READYZ};
use vireo_operators::certificates::{self, Certificate, WEBHOOK_CONFIGURATION};
use vireo_operators::virt_api::{GROUP, VERSIONS, agents};
use vireo_operators::webhooks::{KINDS, Webhook};

use crate::policy::{VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER, kubevirt_roles};
use crate::resource::crd::custom_resource_definitions;

/// The namespace of Vireo's components; KubeVirt's.
pub const NAMESPACE: &str = "kubevirt";

/// Namespace and name of virt-operator's ServiceAccount; KubeVirt's.
const VIRT_OPERATOR: (&str, &str) = (NAMESPACE, "kubevirt-operator");
/// The port at which virt-api listens.
const API_PORT: u16 = 8443;

/// The port of metrics and of what probes ask; KubeVirt's, and its name.
const METRICS_PORT: u16 = 8443;
const METRICS: &str = "metrics";
/// The label of Pods with metrics; KubeVirt's.
const PROMETHEUS_LABEL: (&str, &str) = ("prometheus.kubevirt.io", "true");

/// What differs between installations.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The image of virt-controller, virt-api and virt-handler.
    pub image: String,
    /// The image of virt-launcher.
    pub launcher_image: String,
    /// `IfNotPresent`, `Always` or `Never`.
    pub pull_policy: String,
    /// Whether VMIs run on nodes without KVM too.
    pub use_emulation: bool,
}

/// Everything, in the order in which it is to be created.
pub fn objects(installation: &Installation) -> Vec<Value> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let accounts = [VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER, VIRT_OPERATOR].map(|(namespace, name)| {
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named(namespace, name)})
    });
    let mut objects = vec![namespace];
    objects.extend(custom_resource_definitions());
    objects.extend(kubevirt_roles());
    objects.extend(accounts);
    objects.extend(elections());
    objects.extend(operator_roles());
    objects.extend(virt_api_roles());
    objects.extend([
        operator(installation),
        controller(installation),
        api(installation),
        handler(installation),
    ]);
    objects.extend(aggregation());
    objects.push(metrics());
    objects.extend(webhooks());
    objects
}

fn named(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "labels": {COMPONENT_LABEL: name}})
}

/// A role and its binding to a ServiceAccount. `in_namespace` is the namespace of a Role; without it, they are of the cluster.
fn bound(name: &str, in_namespace: Option<&str>, rules: &Value, account: (&str, &str)) -> [Value; 2] {
    let rbac = "rbac.authorization.k8s.io";
    let prefix = if in_namespace.is_some() { "" } else { "Cluster" };
    let mut metadata = json!({"name": name, "labels": {COMPONENT_LABEL: ""}});
    if let Some(namespace) = in_namespace {
        metadata["namespace"] = json!(namespace);
    }
    let subject = json!({"kind": "ServiceAccount", "namespace": account.0, "name": account.1});
    [
        json!({"apiVersion": format!("{rbac}/v1"), "kind": format!("{prefix}Role"), "metadata": metadata,
            "rules": rules}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": format!("{prefix}RoleBinding"), "metadata": metadata,
            "subjects": [subject],
            "roleRef": {"apiGroup": rbac, "kind": format!("{prefix}Role"), "name": name}}),
    ]
}

/// What the elections of leaders need.
fn elections() -> impl Iterator<Item = Value> {
    let leases = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "verbs": ["create", "get", "list", "patch", "update", "watch"]}]);
    let of = move |account: (&str, &str)| {
        bound(&format!("{}-leader-election", account.1), Some(account.0), &leases, account)
    };
    [VIRT_CONTROLLER, VIRT_OPERATOR].into_iter().flat_map(of)
}

/// What virt-operator needs: the Secrets of the certificates, and the objects that name their authority.
fn operator_roles() -> Vec<Value> {
    let secrets = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "get", "patch"]}]);
    let authority = json!([
        {"apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"], "verbs": ["get", "patch"]},
        {"apiGroups": ["admissionregistration.k8s.io"], "verbs": ["get", "patch"],
            "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]},
    ]);
    let of_namespace = bound(VIRT_OPERATOR.1, Some(NAMESPACE), &secrets, VIRT_OPERATOR);
    of_namespace.into_iter().chain(bound(VIRT_OPERATOR.1, None, &authority, VIRT_OPERATOR)).collect()
}

/// What virt-api needs in a cluster: to know the API server, to ask it who may do what, and to find the node agents.
fn virt_api_roles() -> Vec<Value> {
    let pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]);
    let reviews = json!([
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]);
    let name = "kubevirt-apiserver-aggregated";
    let mut roles: Vec<Value> = bound(name, Some(NAMESPACE), &pods, VIRT_API).into();
    roles.extend(bound(name, None, &reviews, VIRT_API));
    roles.push(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"namespace": "kube-system", "name": "kubevirt-apiserver-auth", "labels": {COMPONENT_LABEL: ""}},
        "subjects": [{"kind": "ServiceAccount", "namespace": VIRT_API.0, "name": VIRT_API.1}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
            "name": "extension-apiserver-authentication-reader"},
    }));
    roles
}

/// The group of the subresources, which virt-api serves.
fn aggregation() -> Vec<Value> {
    let (namespace, name) = VIRT_API;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": named(namespace, name),
        "spec": {"selector": {COMPONENT_LABEL: name}, "ports": [{"port": 443, "targetPort": API_PORT}]},
    });
    let group = |version: &&str| {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{GROUP}"), "labels": {COMPONENT_LABEL: name}},
            "spec": {"group": GROUP, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 15,
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
            "ports": [{"name": METRICS, "port": 443, "targetPort": METRICS}]},
    })
}

/// What asks virt-api before objects are stored and Pods are evicted. Without virt-api, nothing is stored; evictions are not
/// held up.
fn webhooks() -> [Value; 2] {
    let rules: Vec<Value> = KINDS
        .iter()
        .map(|kind| {
            json!({"apiGroups": [kind.group], "apiVersions": [kind.version], "resources": [kind.plural],
                "operations": ["CREATE", "UPDATE"], "scope": "*"})
        })
        .collect();
    let evictions = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"],
        "operations": ["CREATE"], "scope": "*"}]);
    let webhook = |name: &str, webhook: Webhook, rules: &Value, (policy, effects): (&str, &str)| {
        let service =
            json!({"namespace": VIRT_API.0, "name": VIRT_API.1, "path": webhook.path(), "port": 443});
        json!({
            "name": format!("{name}.kubevirt.io"), "admissionReviewVersions": ["v1"], "sideEffects": effects,
            "failurePolicy": policy, "timeoutSeconds": 10, "rules": rules, "clientConfig": {"service": service},
        })
    };
    let configuration = |kind: &str, webhooks: &[Value]| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": WEBHOOK_CONFIGURATION, "labels": {COMPONENT_LABEL: VIRT_API.1}},
            "webhooks": webhooks,
        })
    };
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
                webhook("evict", Webhook::Evict, &evictions, ("Ignore", "NoneOnDryRun")),
            ],
        ),
    ]
}

/// An environment variable with a field of the Pod.
fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

fn controller(installation: &Installation) -> Value {
    let mut command = vec!["/usr/bin/virt-controller", "--launcher-image", &installation.launcher_image];
    command.extend(installation.use_emulation.then_some("--use-emulation"));
    deployment(installation, "virt-controller", VIRT_CONTROLLER, &json!({"command": command}), &[])
}

fn operator(installation: &Installation) -> Value {
    let container = json!({"command": ["/usr/bin/virt-operator"]});
    deployment(installation, "virt-operator", VIRT_OPERATOR, &container, &[])
}

fn api(installation: &Installation) -> Value {
    let (server, client) = ("/etc/virt-api/certificates", "/etc/virt-handler/clientcertificates");
    let container = json!({
        "command": ["/usr/bin/virt-api", "--listen", format!("0.0.0.0:{API_PORT}"), "--tls-dir", server,
            "--client-tls-dir", client],
        "ports": [{"name": "https", "containerPort": API_PORT}],
        "readinessProbe": readiness("/healthz", API_PORT),
        "livenessProbe": liveness("/healthz", API_PORT),
        "volumeMounts": [mount("server", server), mount("client", client)],
    });
    let volumes = [secret("server", certificates::VIRT_API), secret("client", certificates::VIRT_API_CLIENT)];
    deployment(installation, "virt-api", VIRT_API, &container, &volumes)
}

fn asks(path: &str, port: u16) -> Value {
    json!({"scheme": "HTTPS", "path": path, "port": port})
}

fn readiness(path: &str, port: u16) -> Value {
    json!({"httpGet": asks(path, port), "periodSeconds": 2, "timeoutSeconds": 5})
}

/// The kubelet starts a component again that has not answered for a minute.
fn liveness(path: &str, port: u16) -> Value {
    json!({"httpGet": asks(path, port), "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6})
}

fn mount(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path, "readOnly": true})
}

fn secret(name: &str, certificate: Certificate) -> Value {
    json!({"name": name, "secret": {"secretName": certificate.secret}})
}

/// A Deployment of a component that needs no privilege.
fn deployment(
    installation: &Installation,
    name: &str,
    (namespace, account): (&str, &str),
    container: &Value,
    volumes: &[Value],
) -> Value {
    let mut container = container.clone();
    for (field, value) in [
        ("name", json!(name)),
        ("image", json!(installation.image)),
        ("imagePullPolicy", json!(installation.pull_policy)),
        ("env", json!([field("POD_NAMESPACE", "metadata.namespace")])),
        ("resources", json!({"requests": {"cpu": "10m", "memory": "64Mi"}})),
        (
            "securityContext",
            json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": true, "runAsNonRoot": true, "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"}}),
        ),
    ] {
        container[field] = value;
    }
    let labels = json!({COMPONENT_LABEL: name});
    let mut pod = json!({"serviceAccountName": account, "containers": [container],
        "priorityClassName": "system-cluster-critical",
        "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}]});
    if !volumes.is_empty() {
        pod["volumes"] = json!(volumes);
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": named(namespace, name),
        "spec": {
            "replicas": 2, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}

/// The node agent. It enters the network namespaces of launcher Pods and opens devices, for which it is privileged; it sees
/// the processes of the node, to watch launchers that outlive it.
fn handler(installation: &Installation) -> Value {
    let (namespace, name) = VIRT_HANDLER;
    let (state, pods) = ("/var/lib/vireo", "/var/lib/kubelet/pods");
    let plugins = "/var/lib/kubelet/device-plugins";
    let tls = "/etc/virt-handler/servercertificates";
    let container = json!({
        "name": name, "image": installation.image, "imagePullPolicy": installation.pull_policy,
        "command": ["/usr/bin/virt-handler", "--cluster", pods, "--state-dir", state,
            "--node-name", "$(NODE_NAME)", "--listen", format!("0.0.0.0:{}", agents::PORT), "--tls-dir", tls,
            "--metrics-listen", format!("0.0.0.0:{METRICS_PORT}")],
        "ports": [{"name": METRICS, "containerPort": METRICS_PORT}],
        "readinessProbe": readiness(READYZ, METRICS_PORT),
        "livenessProbe": liveness(HEALTHZ, METRICS_PORT),
        "env": [field("NODE_NAME", "spec.nodeName")],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {"privileged": true},
        "volumeMounts": [
            {"name": "state", "mountPath": state},
            {"name": "pods", "mountPath": pods, "mountPropagation": "HostToContainer"},
            {"name": "device-plugins", "mountPath": plugins},
            mount("server", tls),
        ],
    });
    let labels = json!({COMPONENT_LABEL: name});
    let pod_labels = json!({COMPONENT_LABEL: name, PROMETHEUS_LABEL.0: PROMETHEUS_LABEL.1});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": named(namespace, name),
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": pod_labels},
                "spec": {
                    "serviceAccountName": name, "hostPID": true, "containers": [container],
                    "priorityClassName": "system-node-critical",
                    "tolerations": [{"operator": "Exists"}],
                    "volumes": [
                        {"name": "state", "hostPath": {"path": state, "type": "DirectoryOrCreate"}},
                        {"name": "pods", "hostPath": {"path": pods, "type": "Directory"}},
                        {"name": "device-plugins", "hostPath": {"path": plugins, "type": "Directory"}},
                        secret("server", certificates::VIRT_HANDLER),
                    ],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_component_has_an_account_a_role_and_a_workload() {
        let installation = Installation {
            image: "i".to_owned(),
            launcher_image: "l".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            use_emulation: false,
        };
        let objects = objects(&installation);
        let has = |kind: &str, name: &str| {
            objects.iter().any(|one| one["kind"] == kind && one["metadata"]["name"] == name)
        };
        for (kind, name) in [
            ("ServiceAccount", "virt-controller"),
            ("ServiceAccount", "virt-handler"),
            ("ClusterRole", "kubevirt-controller"),
            ("ClusterRoleBinding", "kubevirt-handler"),
            ("Deployment", "virt-api"),
            ("Deployment", "virt-controller"),
            ("Deployment", "virt-operator"),
            ("APIService", "v1.subresources.kubevirt.io"),
            ("DaemonSet", "virt-handler"),
        ] {
            assert!(has(kind, name), "{kind} {name}");
        }
        let scheduler = |one: &&Value| one["metadata"]["name"] == "system:kube-scheduler";
        assert_eq!(objects.iter().find(scheduler), None, "a cluster has its own");
    }
}
