//! Roles of a cluster's components, and their bindings.

use serde_json::{Value, json};
use vireo_api::names::COMPONENT_LABEL;

use super::{MONITORING, NAMESPACE, VIRT_OPERATOR, monitoring};
use crate::installation::Monitoring;
use crate::policy::{LOCAL_KUBELET, LOCAL_PROVISIONER, VIRT_API, VIRT_CONTROLLER, kubevirt_roles};

/// The roles of what has no place in a cluster.
const LOCAL: [&str; 2] = [LOCAL_KUBELET.1, LOCAL_PROVISIONER.1];

/// KubeVirt's roles in a cluster, where disks of claims and projected files are not this program's.
pub(super) fn cluster_roles() -> impl Iterator<Item = Value> {
    let is_here = |role: &Value| role["metadata"]["name"].as_str().is_none_or(|name| !LOCAL.contains(&name));
    kubevirt_roles().filter(is_here)
}

/// A role and its binding to ServiceAccounts. `in_namespace` is the namespace of a Role; without it, they are of the cluster.
pub(super) fn bound(
    name: &str,
    in_namespace: Option<&str>,
    rules: &Value,
    accounts: &[(&str, &str)],
) -> [Value; 2] {
    let rbac = "rbac.authorization.k8s.io";
    let prefix = if in_namespace.is_some() { "" } else { "Cluster" };
    let mut metadata = json!({"name": name, "labels": {COMPONENT_LABEL: ""}});
    if let Some(namespace) = in_namespace {
        metadata["namespace"] = json!(namespace);
    }
    let subject = |(namespace, name)| json!({"kind": "ServiceAccount", "namespace": namespace, "name": name});
    let subjects: Vec<Value> = accounts.iter().copied().map(subject).collect();
    [
        json!({"apiVersion": format!("{rbac}/v1"), "kind": format!("{prefix}Role"), "metadata": metadata,
            "rules": rules}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": format!("{prefix}RoleBinding"), "metadata": metadata,
            "subjects": subjects,
            "roleRef": {"apiGroup": rbac, "kind": format!("{prefix}Role"), "name": name}}),
    ]
}

/// What the election of a leader needs.
pub(super) fn election(account: (&str, &str)) -> [Value; 2] {
    let leases = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "verbs": ["create", "get", "list", "patch", "update", "watch"]}]);
    bound(&format!("{}-leader-election", account.1), Some(account.0), &leases, &[account])
}

/// What virt-operator needs: to write what it installs, and all that the components may do, because the API server denies
/// grants of rights that the grantor does not have.
pub(super) fn operator_roles() -> Vec<Value> {
    let all = ["create", "delete", "get", "list", "patch", "watch"];
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let rbac = "rbac.authorization.k8s.io";
    let in_namespace = json!([
        rule("", &["secrets", "serviceaccounts", "services"], &all),
        rule("apps", &["daemonsets", "deployments"], &all),
        rule("policy", &["poddisruptionbudgets"], &all),
        rule(MONITORING[0].group, &MONITORING.map(|kind| kind.plural), &all),
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
    let granted = granted.chain(monitoring::role(&Monitoring::default()));
    for role in granted {
        for rule in role["rules"].as_array().into_iter().flatten() {
            if !in_cluster.contains(rule) {
                in_cluster.push(rule.clone());
            }
        }
    }
    let name = VIRT_OPERATOR.1;
    let of_namespace = bound(name, Some(NAMESPACE), &in_namespace, &[VIRT_OPERATOR]);
    of_namespace.into_iter().chain(bound(name, None, &json!(in_cluster), &[VIRT_OPERATOR])).collect()
}

/// What virt-api needs in a cluster: to know the API server, to ask it who may do what, to find the node agents, and to see
/// whether an installation that is deleted has workloads.
pub(super) fn virt_api_roles() -> Vec<Value> {
    let pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]);
    let reviews = json!([
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": ["kubevirt.io"], "verbs": ["list"],
            "resources": ["virtualmachineinstances", "virtualmachines", "virtualmachineinstancereplicasets"]},
    ]);
    let name = "kubevirt-apiserver-aggregated";
    let mut roles: Vec<Value> = bound(name, Some(NAMESPACE), &pods, &[VIRT_API]).into();
    roles.extend(bound(name, None, &reviews, &[VIRT_API]));
    roles.push(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"namespace": "kube-system", "name": "kubevirt-apiserver-auth", "labels": {COMPONENT_LABEL: ""}},
        "subjects": [{"kind": "ServiceAccount", "namespace": VIRT_API.0, "name": VIRT_API.1}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
            "name": "extension-apiserver-authentication-reader"},
    }));
    roles
}
