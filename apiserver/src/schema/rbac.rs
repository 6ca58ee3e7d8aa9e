//! Roles and bindings, as tables.

use super::core::Definition;

/// Their definitions.
pub(super) const DEFINITIONS: &[Definition] = &[
    (
        "Role",
        "What may be done in a namespace.",
        &[("rules", "[]PolicyRule", "Each adds to what may be done.")],
    ),
    (
        "ClusterRole",
        "What may be done, everywhere or where a binding says.",
        &[
            ("rules", "[]PolicyRule", "Each adds to what may be done."),
            (
                "aggregationRule",
                "AggregationRule",
                "Of which others it is made; rules are the server's then.",
            ),
        ],
    ),
    (
        "AggregationRule",
        "Of which roles a role is made.",
        &[("clusterRoleSelectors", "[]LabelSelector", "Roles that one of them chooses.")],
    ),
    (
        "PolicyRule",
        "What may be done, and to what.",
        &[
            ("verbs", "[]string", "What may be done; * is everything."),
            ("apiGroups", "[]string", "In which groups; empty is the core's, * is every one."),
            ("resources", "[]string", "To which resources, or parts of such: pods, pods/log, */scale, *."),
            ("resourceNames", "[]string", "To which objects; none means all."),
            ("nonResourceURLs", "[]string", "To which paths; * may end them. In ClusterRoles alone."),
        ],
    ),
    ("RoleBinding", "Who may do in a namespace what a role says.", BINDING),
    ("ClusterRoleBinding", "Who may do everywhere what a role says.", BINDING),
    (
        "RoleRef",
        "Names a role.",
        &[
            ("apiGroup", "string", "rbac.authorization.k8s.io."),
            ("kind", "string", "Role or ClusterRole."),
            ("name", "string", "Its name."),
        ],
    ),
    (
        "Subject",
        "Names somebody.",
        &[
            ("kind", "string", "User, Group or ServiceAccount."),
            ("apiGroup", "string", "rbac.authorization.k8s.io; empty for ServiceAccounts."),
            ("name", "string", "The name."),
            ("namespace", "string", "Where a ServiceAccount is."),
        ],
    ),
];

const BINDING: &[(&str, &str, &str)] = &[
    ("subjects", "[]Subject", "Who."),
    ("roleRef", "!RoleRef", "Which role. It cannot change: make another binding."),
];
