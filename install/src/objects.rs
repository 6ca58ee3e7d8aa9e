//! The objects of an installation: virt-operator with what it needs, which a user applies, and what virt-operator applies.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use vireo_api::names::{COMPONENT_LABEL, HEALTHZ, READYZ};
use vireo_client::Kind;
use vireo_operators::certificates::{self, Certificate, WEBHOOK_CONFIGURATION};
use vireo_operators::virt_api::{GROUP, VERSIONS, agents};
use vireo_operators::webhooks::{KINDS, Webhook};

use crate::installation::{Component, Images, Installation, place};
use crate::policy::{LOCAL_PROVISIONER, VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER, kubevirt_roles};
use crate::resource::crd::{custom_resource_definitions, kubevirt_definition};

/// The namespace of Vireo's components; KubeVirt's.
pub const NAMESPACE: &str = "kubevirt";

/// Namespace and name of virt-operator's ServiceAccount; KubeVirt's.
const VIRT_OPERATOR: (&str, &str) = (NAMESPACE, "kubevirt-operator");
/// The port at which virt-api listens.
const API_PORT: u16 = 8443;

/// The port of metrics and of what probes ask; KubeVirt's, and its name.
const METRICS_PORT: u16 = 8443;
const METRICS: &str = "metrics";
/// The environment variable with the filter of a program's log.
const LOG_FILTER: &str = "VIREO_LOG";
/// The label of Pods with metrics; KubeVirt's.
const PROMETHEUS_LABEL: (&str, &str) = ("prometheus.kubevirt.io", "true");

/// PodDisruptionBudgets, in the versions that clusters have: the newest first.
pub const DISRUPTION_BUDGETS: [Kind; 2] = [
    Kind::new(("policy", "v1"), "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind::new(("policy", "v1beta1"), "PodDisruptionBudget", "poddisruptionbudgets"),
];
/// The label of what virt-operator manages; Kubernetes'.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "virt-operator");
/// The PriorityClass of the components; KubeVirt's.
const PRIORITY_CLASS: &str = "kubevirt-cluster-critical";
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

fn account((namespace, name): (&str, &str)) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named(namespace, name)})
}

/// All that virt-operator applies, in the order in which it is to be created.
pub fn objects(installation: &Installation) -> Vec<Value> {
    let mut objects = custom_resource_definitions();
    objects.extend(cluster_roles());
    objects.extend([VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER].map(account));
    objects.extend(election(VIRT_CONTROLLER));
    objects.extend(virt_api_roles());
    let authority = STANDARD.encode(&installation.authority);
    objects.extend(aggregation(&authority));
    objects.push(metrics());
    objects.extend(webhooks(&authority));
    objects.extend([api(installation), controller(installation), handler(installation)]);
    objects.extend(disruption_budgets(installation));
    for object in &mut objects {
        let labels = &mut object["metadata"]["labels"];
        labels[MANAGED_BY.0] = json!(MANAGED_BY.1);
        for (name, value) in &installation.labels {
            labels[*name] = json!(value);
        }
    }
    objects
}

/// KubeVirt's roles in a cluster, where disks of claims are not this program's.
fn cluster_roles() -> impl Iterator<Item = Value> {
    let is_here =
        |role: &Value| role["metadata"]["name"].as_str().is_none_or(|name| name != LOCAL_PROVISIONER.1);
    kubevirt_roles().filter(is_here)
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

/// What the election of a leader needs.
fn election(account: (&str, &str)) -> [Value; 2] {
    let leases = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "verbs": ["create", "get", "list", "patch", "update", "watch"]}]);
    bound(&format!("{}-leader-election", account.1), Some(account.0), &leases, account)
}

/// What virt-operator needs: to write what it installs, and, since nobody may grant what they lack, all that the components
/// may do.
fn operator_roles() -> Vec<Value> {
    let all = ["create", "delete", "get", "list", "patch", "watch"];
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let rbac = "rbac.authorization.k8s.io";
    let in_namespace = json!([
        rule("", &["secrets", "serviceaccounts", "services"], &all),
        rule("apps", &["daemonsets", "deployments"], &all),
        rule("policy", &["poddisruptionbudgets"], &all),
    ]);
    let mut in_cluster = vec![
        rule("kubevirt.io", &["kubevirts"], &["get", "list", "patch", "watch"]),
        rule("kubevirt.io", &["kubevirts/status", "kubevirts/finalizers"], &["patch", "update"]),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &all),
        rule("apiregistration.k8s.io", &["apiservices"], &all),
        rule(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            &all,
        ),
        rule(rbac, &["clusterroles", "clusterrolebindings", "roles", "rolebindings"], &all),
        // What virt-api's binding to the role extension-apiserver-authentication-reader grants.
        json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"],
            "resourceNames": ["extension-apiserver-authentication"]}),
    ];
    let granted = cluster_roles().chain(election(VIRT_CONTROLLER)).chain(virt_api_roles());
    for role in granted {
        for rule in role["rules"].as_array().into_iter().flatten() {
            if !in_cluster.contains(rule) {
                in_cluster.push(rule.clone());
            }
        }
    }
    let name = VIRT_OPERATOR.1;
    let of_namespace = bound(name, Some(NAMESPACE), &in_namespace, VIRT_OPERATOR);
    of_namespace.into_iter().chain(bound(name, None, &json!(in_cluster), VIRT_OPERATOR)).collect()
}

/// What virt-api needs in a cluster: to know the API server, to ask it who may do what, to find the node agents, and to see
/// whether an installation that is deleted has workloads.
fn virt_api_roles() -> Vec<Value> {
    let pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]);
    let reviews = json!([
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": ["kubevirt.io"], "verbs": ["list"],
            "resources": ["virtualmachineinstances", "virtualmachines", "virtualmachineinstancereplicasets"]},
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

/// What asks virt-api before objects are stored and Pods are evicted. Without virt-api, nothing is stored; evictions are not
/// held up.
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
                webhook("evict", Webhook::Evict, &evictions, ("Ignore", "NoneOnDryRun")),
                // A change may be what brings virt-api back.
                webhook("kubevirt", Webhook::ValidateInstallation, &written, ("Ignore", "None")),
                // virt-operator looks for workloads, too; what never got a virt-api must not stay forever.
                webhook("uninstall", Webhook::Uninstall, &deleted, ("Ignore", "None")),
            ],
        ),
    ]
}

/// An environment variable with a field of the Pod.
fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

fn controller(installation: &Installation) -> Value {
    let mut command = vec!["/usr/bin/virt-controller", "--launcher-image", &installation.images.launcher];
    command.extend(installation.use_emulation.then_some("--use-emulation"));
    let replicas = installation.controller_replicas;
    let workload =
        Workload { account: VIRT_CONTROLLER, replicas, component: &installation.controller, volumes: &[] };
    infra(installation, &workload, &json!({ "command": command }))
}

fn operator(images: &Images) -> Value {
    let mut command = vec!["/usr/bin/virt-operator".to_owned()];
    command.extend(images.words());
    let component = Component::default();
    let workload = Workload { account: VIRT_OPERATOR, replicas: 2, component: &component, volumes: &[] };
    deployment("virt-operator", images, &workload, &json!({ "command": command }))
}

fn api(installation: &Installation) -> Value {
    let (server, client) = ("/etc/virt-api/certificates", "/etc/virt-handler/clientcertificates");
    let container = json!({
        "command": ["/usr/bin/virt-api", "--listen", format!("0.0.0.0:{API_PORT}"), "--tls-dir", server,
            "--client-tls-dir", client],
        "ports": [{"name": "https", "protocol": "TCP", "containerPort": API_PORT}],
        "readinessProbe": readiness("/healthz", API_PORT),
        "livenessProbe": liveness("/healthz", API_PORT),
        "volumeMounts": [mount("server", server), mount("client", client)],
    });
    let volumes = [secret("server", certificates::VIRT_API), secret("client", certificates::VIRT_API_CLIENT)];
    let replicas = installation.api_replicas;
    let workload = Workload { account: VIRT_API, replicas, component: &installation.api, volumes: &volumes };
    infra(installation, &workload, &container)
}

/// virt-api or virt-controller: where the installation has them.
fn infra(installation: &Installation, workload: &Workload<'_>, container: &Value) -> Value {
    let mut made = deployment(workload.account.1, &installation.images, workload, container);
    let pod = &mut made["spec"]["template"]["spec"];
    place(pod, &installation.infra);
    pull_secrets(pod, installation);
    made
}

fn pull_secrets(pod: &mut Value, installation: &Installation) {
    if !installation.pull_secrets.is_empty() {
        let secrets: Vec<Value> =
            installation.pull_secrets.iter().map(|name| json!({ "name": name })).collect();
        pod["imagePullSecrets"] = json!(secrets);
    }
}

/// A container with what the installation says of its component.
fn customize(container: &mut Value, component: &Component) {
    if let Some(command) = container["command"].as_array_mut() {
        command.extend(component.flags.iter().map(|flag| json!(flag)));
    }
    if let (Some(filter), Some(environment)) = (component.log, container["env"].as_array_mut()) {
        environment.push(json!({"name": LOG_FILTER, "value": filter}));
    }
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

/// A Deployment, without its container.
struct Workload<'a> {
    account: (&'a str, &'a str),
    replicas: usize,
    component: &'a Component,
    volumes: &'a [Value],
}

/// A Deployment of a component that needs no privilege.
fn deployment(name: &str, images: &Images, workload: &Workload<'_>, container: &Value) -> Value {
    let mut container = container.clone();
    for (field, value) in [
        ("name", json!(name)),
        ("image", json!(images.components)),
        ("imagePullPolicy", json!(images.pull_policy)),
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
    customize(&mut container, workload.component);
    let labels = json!({COMPONENT_LABEL: name});
    let (namespace, account) = workload.account;
    let mut pod = json!({"serviceAccountName": account, "containers": [container],
        "priorityClassName": PRIORITY_CLASS,
        "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}]});
    if !workload.volumes.is_empty() {
        pod["volumes"] = json!(workload.volumes);
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": named(namespace, name),
        "spec": {
            "replicas": workload.replicas, "selector": {"matchLabels": labels},
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
    let mut container = json!({
        "name": name, "image": installation.images.components,
        "imagePullPolicy": installation.images.pull_policy,
        "command": ["/usr/bin/virt-handler", "--cluster", pods, "--state-dir", state,
            "--node-name", "$(NODE_NAME)", "--listen", format!("0.0.0.0:{}", agents::PORT), "--tls-dir", tls,
            "--metrics-listen", format!("0.0.0.0:{METRICS_PORT}")],
        "ports": [{"name": METRICS, "protocol": "TCP", "containerPort": METRICS_PORT}],
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
    customize(&mut container, &installation.handler);
    let labels = json!({COMPONENT_LABEL: name});
    let pod_labels = json!({COMPONENT_LABEL: name, PROMETHEUS_LABEL.0: PROMETHEUS_LABEL.1});
    let mut made = json!({
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
    });
    let pod = &mut made["spec"]["template"]["spec"];
    place(pod, &installation.workloads);
    pull_secrets(pod, installation);
    made
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
        ] {
            let object = find(&objects, kind, name).unwrap_or_else(|| panic!("{kind} {name}"));
            assert_eq!(object["metadata"]["labels"][MANAGED_BY.0], MANAGED_BY.1, "{kind} {name}");
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
        assert!(objects.iter().all(|one| one["metadata"]["labels"].get(MANAGED_BY.0).is_none()));
        assert!(find(&objects, "CustomResourceDefinition", "kubevirts.kubevirt.io").is_some());
    }

    /// The API server lets nobody grant what they lack.
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
    fn components_are_where_and_as_the_installation_says() {
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
