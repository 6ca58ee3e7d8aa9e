//! Who may do what, as `rbac.authorization.k8s.io` says it.
//!
//! [`action`] is what somebody wants to do, [`rule`] what a rule allows, and [`roles`] who has which rules: an index that
//! is made anew when a role or a binding was written, never for a request. [`escalate`] keeps people from giving away
//! more than they have. [`defaults`] are the roles that every server has, and [`bootstrap`] creates them and aggregates
//! ClusterRoles.

pub mod action;
pub mod bootstrap;
pub mod defaults;
pub mod escalate;
pub mod roles;
pub mod rule;

use crate::resource::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, Row};

/// The group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

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
    fn resources_are_told_apart_by_their_group() {
        for plural in ["clusterrolebindings", "clusterroles", "rolebindings", "roles"] {
            assert!(is_ours(&row(plural).name()));
        }
        assert!(!is_ours("roles") && !is_ours("namespaces") && !is_ours("things.rbac.authorization.k8s.io"));
    }
}
