//! Who may do what, as `rbac.authorization.k8s.io` says it.
//!
//! [`action`] is what somebody wants to do, [`rule`] what a rule allows, and [`roles`] who has which rules: an index that
//! is made anew when a role or a binding was written, never for a request. [`escalate`] keeps people from giving away
//! more than they have. [`defaults`] are the roles that every server has, and [`keep`] sees that they are there, and that
//! roles which are made of others are.

pub mod action;
pub mod defaults;
pub mod escalate;
pub mod keep;
pub mod roles;
pub mod rule;

use crate::resource::{self, Resource};

/// The group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The plurals of its kinds.
const PLURALS: [&str; 4] = ["clusterrolebindings", "clusterroles", "rolebindings", "roles"];

/// The row of one of its kinds, by its plural.
pub fn row(plural: &str) -> &'static Resource {
    // The first row stands in for one that the table does not have; a test sees that it has these.
    resource::named(&format!("{plural}.{GROUP}")).unwrap_or(&resource::ALL[0])
}

/// Whether a resource, by its name in keys, is one of them.
fn is_ours(resource: &str) -> bool {
    resource.split_once('.').is_some_and(|(plural, group)| group == GROUP && PLURALS.contains(&plural))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_are_there() {
        for plural in PLURALS {
            assert_eq!(row(plural).plural, plural);
            assert!(is_ours(&row(plural).name()));
        }
        assert!(!is_ours("roles") && !is_ours("namespaces") && !is_ours("things.rbac.authorization.k8s.io"));
    }
}
