//! The objects that install Vireo in a cluster.

use serde_json::{Value, json};
use vireo_api::names::COMPONENT_LABEL;

use crate::policy::{VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER, kubevirt_roles};
use crate::resource::crd::custom_resource_definitions;

/// The namespace of Vireo's components; KubeVirt's.
pub const NAMESPACE: &str = "kubevirt";

/// What differs between installations.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The image of virt-controller, virt-api and virt-handler.
    pub image: String,
    /// The image of virt-launcher.
    pub launcher_image: String,
    /// `IfNotPresent`, `Always` or `Never`.
    pub pull_policy: String,
}

/// Everything, in the order in which it is to be created.
pub fn objects(installation: &Installation) -> Vec<Value> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let accounts = [VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER].map(|(namespace, name)| {
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named(namespace, name)})
    });
    let mut objects = vec![namespace];
    objects.extend(custom_resource_definitions());
    objects.extend(kubevirt_roles());
    objects.extend(accounts);
    objects.extend(leases());
    objects.push(controller(installation));
    objects.push(handler(installation));
    objects
}

fn named(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "labels": {COMPONENT_LABEL: name}})
}

/// What the election of a leader needs.
fn leases() -> [Value; 2] {
    let (namespace, account) = VIRT_CONTROLLER;
    let rbac = "rbac.authorization.k8s.io";
    let rule = json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "verbs": ["create", "get", "list", "patch", "update", "watch"]});
    let subject = json!({"kind": "ServiceAccount", "namespace": namespace, "name": account});
    let role = json!({"apiGroup": rbac, "kind": "Role", "name": account});
    [
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": named(namespace, account),
            "rules": [rule]}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": named(namespace, account),
            "subjects": [subject], "roleRef": role}),
    ]
}

/// An environment variable with a field of the Pod.
fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

fn controller(installation: &Installation) -> Value {
    let (namespace, name) = VIRT_CONTROLLER;
    let container = json!({
        "name": name, "image": installation.image, "imagePullPolicy": installation.pull_policy,
        "command": ["/usr/bin/virt-controller", "--launcher-image", installation.launcher_image],
        "env": [field("POD_NAMESPACE", "metadata.namespace")],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true, "runAsNonRoot": true, "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"}},
    });
    let labels = json!({COMPONENT_LABEL: name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": named(namespace, name),
        "spec": {
            "replicas": 2, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"serviceAccountName": name, "containers": [container],
                    "priorityClassName": "system-cluster-critical",
                    "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}]},
            },
        },
    })
}

/// The node agent. It enters the network namespaces of launcher Pods and opens devices, for which it is privileged; it sees
/// the processes of the node, to watch launchers that outlive it.
fn handler(installation: &Installation) -> Value {
    let (namespace, name) = VIRT_HANDLER;
    let (state, pods) = ("/var/lib/vireo", "/var/lib/kubelet/pods");
    let container = json!({
        "name": name, "image": installation.image, "imagePullPolicy": installation.pull_policy,
        "command": ["/usr/bin/virt-handler", "--cluster", pods, "--state-dir", state,
            "--node-name", "$(NODE_NAME)"],
        "env": [field("NODE_NAME", "spec.nodeName")],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {"privileged": true},
        "volumeMounts": [
            {"name": "state", "mountPath": state},
            {"name": "pods", "mountPath": pods, "mountPropagation": "HostToContainer"},
        ],
    });
    let labels = json!({COMPONENT_LABEL: name});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": named(namespace, name),
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": name, "hostPID": true, "containers": [container],
                    "priorityClassName": "system-node-critical",
                    "tolerations": [{"operator": "Exists"}],
                    "volumes": [
                        {"name": "state", "hostPath": {"path": state, "type": "DirectoryOrCreate"}},
                        {"name": "pods", "hostPath": {"path": pods, "type": "Directory"}},
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
            ("Deployment", "virt-controller"),
            ("DaemonSet", "virt-handler"),
        ] {
            assert!(has(kind, name), "{kind} {name}");
        }
        let scheduler = |one: &&Value| one["metadata"]["name"] == "system:kube-scheduler";
        assert_eq!(objects.iter().find(scheduler), None, "a cluster has its own");
    }
}
