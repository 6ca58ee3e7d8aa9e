//! Authorization by `rbac.authorization.k8s.io`.
//!
//! [`action`] is the requested action, [`rule`] what a rule allows, and [`roles`] the rules of each subject: an index that
//! is rebuilt when a role or a binding is written, never for a request. [`escalate`] prevents users from granting
//! more than they have. [`defaults`] are the roles that every server has, and [`bootstrap`] creates them and aggregates
//! ClusterRoles.

pub mod action;
pub mod bootstrap;
pub mod defaults;
pub mod escalate;
pub mod roles;
pub mod rule;

use crate::resource::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, RBAC_GROUP, ROLE_BINDINGS, ROLES, Row};

/// The group of roles and bindings.
pub const GROUP: &str = RBAC_GROUP;

/// Its kinds.
static KINDS: [&Row; 4] = [&CLUSTER_ROLE_BINDINGS, &CLUSTER_ROLES, &ROLE_BINDINGS, &ROLES];

/// Whether a resource, by its name in keys, is one of them.
fn is_ours(resource: &str) -> bool {
    let is = |plural: &str| KINDS.iter().any(|row| row.plural == plural);
    resource.split_once('.').is_some_and(|(plural, group)| group == GROUP && is(plural))
}

/// For tests: the resource of a plural, one of ours or another.
#[cfg(test)]
fn row(plural: &str) -> &'static Row {
    use crate::resource::{CONFIG_MAPS, NAMESPACES, SECRETS};
    KINDS.into_iter().chain([&CONFIG_MAPS, &NAMESPACES, &SECRETS]).find(|row| row.plural == plural).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_distinguished_by_group() {
        for plural in ["clusterrolebindings", "clusterroles", "rolebindings", "roles"] {
            assert!(is_ours(&row(plural).name()));
        }
        assert!(!is_ours("roles") && !is_ours("namespaces") && !is_ours("things.rbac.authorization.k8s.io"));
    }
}
