//! The bootstrap policy: the roles and bindings that every server has. Kubernetes' own are here, for the kinds that are
//! served; the composing program adds more.

mod kubernetes;

use std::sync::Arc;

use serde_json::{Value, json};

use super::GROUP;
use crate::auth::KNOWN;
use crate::resource::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Resource};

/// Verbs that read.
pub const READ: [&str; 3] = ["get", "list", "watch"];
/// Verbs that write.
pub const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];
pub use kubernetes::{TO_ADMIN, TO_EDIT, TO_VIEW};

/// The group of unauthenticated users.
const UNKNOWN: &str = "system:unauthenticated";
/// Set to `false`, it keeps an object as its users left it.
pub const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// An object that is to be there.
#[derive(Debug)]
pub struct Default {
    /// `clusterroles` or `clusterrolebindings`.
    pub resource: &'static Resource,
    /// Its name.
    pub name: &'static str,
    /// The object without fields that a server sets.
    pub value: Value,
}

/// The roles and bindings that a server has.
#[derive(Debug, Clone)]
pub struct Policy(Arc<[Default]>);

impl Policy {
    /// Kubernetes' own, and more.
    pub fn new(more: impl IntoIterator<Item = Default>) -> Self {
        Self(kubernetes::all().into_iter().chain(more).collect())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Default> {
        self.0.iter()
    }
}

impl std::default::Default for Policy {
    /// Kubernetes' own alone.
    fn default() -> Self {
        Self::new([])
    }
}

/// One rule.
pub fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

/// One rule about paths.
fn paths(paths: &[&str]) -> Value {
    json!({"verbs": ["get"], "nonResourceURLs": paths})
}

/// Everything that may be done to objects.
pub fn all_verbs() -> Vec<&'static str> {
    [&WRITE[..], &READ].concat()
}

fn object(
    resource: &'static Resource,
    name: &'static str,
    labels: &[(&str, &str)],
    mut value: Value,
) -> Default {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    value["apiVersion"] = json!(resource.api_version());
    value["kind"] = json!(resource.kind);
    value["metadata"] = json!({"name": name, "labels": labels, "annotations": {AUTO_UPDATE: "true"}});
    Default { resource, name, value }
}

/// A ClusterRole.
pub fn role(name: &'static str, labels: &[(&str, &str)], rules: &[Value]) -> Default {
    object(&CLUSTER_ROLES, name, labels, json!({ "rules": rules }))
}

/// A role that is made of those with a label.
fn aggregate(name: &'static str, labels: &[(&str, &str)], label: &str) -> Default {
    let selectors = json!([{"matchLabels": {label: "true"}}]);
    object(
        &CLUSTER_ROLES,
        name,
        labels,
        json!({"aggregationRule": {"clusterRoleSelectors": selectors}, "rules": []}),
    )
}

/// Binds a role to groups, under its own name.
fn bind(role: &'static str, labels: &[(&str, &str)], groups: &[&str]) -> Default {
    let subject = |group: &&str| json!({"kind": "Group", "apiGroup": GROUP, "name": group});
    let subjects: Vec<Value> = groups.iter().map(subject).collect();
    let role_ref = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": role});
    object(&CLUSTER_ROLE_BINDINGS, role, labels, json!({"subjects": subjects, "roleRef": role_ref}))
}

/// Binds a role to a ServiceAccount, under the role's name.
pub fn bind_to_service_account(
    role: &'static str,
    labels: &[(&str, &str)],
    (namespace, name): (&str, &str),
) -> Default {
    let subjects = json!([{"kind": "ServiceAccount", "namespace": namespace, "name": name}]);
    let role_ref = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": role});
    object(&CLUSTER_ROLE_BINDINGS, role, labels, json!({"subjects": subjects, "roleRef": role_ref}))
}

/// Binds a role to a user, under the role's name.
pub fn bind_to_user(role: &'static str, labels: &[(&str, &str)], user: &str) -> Default {
    let subjects = json!([{"kind": "User", "apiGroup": GROUP, "name": user}]);
    let role_ref = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": role});
    object(&CLUSTER_ROLE_BINDINGS, role, labels, json!({"subjects": subjects, "roleRef": role_ref}))
}

/// Binds a role to all authenticated users.
pub fn bind_to_known(role: &'static str, labels: &[(&str, &str)]) -> Default {
    bind(role, labels, &[KNOWN])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta;

    #[test]
    fn defaults_are_what_users_could_write_themselves() {
        let all = Policy::default();
        for Default { resource, name, value } in all.iter() {
            let mut given = value.clone();
            let findings = resource.check(&mut given);
            assert_eq!(findings, crate::schema::Findings::default(), "{name}");
            assert_eq!((resource.admit)(&mut given, None), [], "{name}");
            assert_eq!(&given, value, "{name} needs no completion");
            assert!((resource.name_fits)(name) && meta::problems(value).is_empty(), "{name}");
        }
        let bound = all.iter().filter_map(|one| one.value.pointer("/roleRef/name")?.as_str());
        for name in bound {
            assert!(
                all.iter().any(|one| one.resource.plural == "clusterroles" && one.name == name),
                "{name}"
            );
        }
        let mut names: Vec<_> = all.iter().map(|one| (&one.resource.plural, one.name)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.iter().count(), "each is there once");
    }
}
