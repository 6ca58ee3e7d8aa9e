//! The Deployments and the DaemonSet of the components.

use serde_json::{Value, json};
use vireo_api::names::{COMPONENT_LABEL, HEALTHZ, READYZ};
use vireo_operators::certificates::{self, Certificate};
use vireo_operators::virt_api::agents;

use super::{API_PORT, METRICS, METRICS_PORT, PRIORITY_CLASS, PROMETHEUS_LABEL, VIRT_OPERATOR, named};
use crate::installation::{Component, Images, Installation, apply_placement};
use crate::policy::{VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER};

/// The environment variable with the filter of a program's log.
const LOG_FILTER: &str = "VIREO_LOG";

/// An environment variable with a field of the Pod.
fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

/// virt-controller.
pub(super) fn controller(installation: &Installation) -> Value {
    let tls = "/etc/virt-controller/certificates";
    let mut container = json!({"command":
        ["/usr/bin/virt-controller", "--launcher-image", installation.images.launcher]});
    monitor(&mut container, tls);
    let replicas = installation.controller_replicas;
    let volumes = [secret("server", certificates::VIRT_CONTROLLER)];
    let component = &installation.controller;
    infra(
        installation,
        &Workload { account: VIRT_CONTROLLER, replicas, component, volumes: &volumes },
        &container,
    )
}

/// Has a container serve metrics, and answer probes, with the certificate in a directory.
fn monitor(container: &mut Value, tls: &str) {
    if let Some(command) = container["command"].as_array_mut() {
        let listen = format!("0.0.0.0:{METRICS_PORT}");
        command.extend(["--metrics-listen", &listen, "--tls-dir", tls].map(|word| json!(word)));
    }
    container["ports"] = json!([{"name": METRICS, "protocol": "TCP", "containerPort": METRICS_PORT}]);
    container["readinessProbe"] = readiness(HEALTHZ, METRICS_PORT);
    container["livenessProbe"] = liveness(HEALTHZ, METRICS_PORT);
    container["volumeMounts"] = json!([mount("server", tls)]);
}

/// virt-operator.
pub(super) fn operator(images: &Images) -> Value {
    let mut command = vec!["/usr/bin/virt-operator".to_owned()];
    command.extend(images.words());
    let mut container = json!({ "command": command });
    monitor(&mut container, "/etc/virt-operator/certificates");
    // It makes the Secret itself, when there is a KubeVirt object.
    let mut server = secret("server", certificates::VIRT_OPERATOR);
    server["secret"]["optional"] = json!(true);
    let (component, volumes) = (Component::default(), [server]);
    let workload = Workload { account: VIRT_OPERATOR, replicas: 2, component: &component, volumes: &volumes };
    deployment("virt-operator", images, &workload, &container)
}

/// virt-api.
pub(super) fn api(installation: &Installation) -> Value {
    let (server, client) = ("/etc/virt-api/certificates", "/etc/virt-handler/clientcertificates");
    let container = json!({
        "command": ["/usr/bin/virt-api", "--listen", format!("0.0.0.0:{API_PORT}"), "--tls-dir", server,
            "--client-tls-dir", client],
        "ports": [{"name": METRICS, "protocol": "TCP", "containerPort": API_PORT}],
        "readinessProbe": readiness(HEALTHZ, API_PORT),
        "livenessProbe": liveness(HEALTHZ, API_PORT),
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
    apply_placement(pod, &installation.infra);
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

/// A container with the settings of its component.
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
    let pod_labels = json!({COMPONENT_LABEL: name, PROMETHEUS_LABEL.0: PROMETHEUS_LABEL.1});
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
            "template": {"metadata": {"labels": pod_labels}, "spec": pod},
        },
    })
}

/// The node agent. It enters the network namespaces of launcher Pods and opens devices, for which it is privileged; it sees
/// the processes of the node, to watch launchers that outlive it.
pub(super) fn handler(installation: &Installation) -> Value {
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
    apply_placement(pod, &installation.workloads);
    pull_secrets(pod, installation);
    made
}
