//! Roles and bindings, as tables.

use super::core::Definition;

/// Their definitions.
pub(crate) const DEFINITIONS: &[Definition] = &[
    (
        "Role",
        "A namespaced, logical grouping of PolicyRules that can be referenced as a unit by a RoleBinding.",
        &[("rules", "[]PolicyRule", "All the PolicyRules of the Role.")],
    ),
    (
        "ClusterRole",
        "A cluster level, logical grouping of PolicyRules that can be referenced as a unit by a RoleBinding or ClusterRoleBinding.",
        &[
            ("rules", "[]PolicyRule", "All the PolicyRules of the ClusterRole."),
            (
                "aggregationRule",
                "AggregationRule",
                "How to build the rules of the ClusterRole from others. If it is set, the server manages rules and overwrites direct changes to them.",
            ),
        ],
    ),
    (
        "AggregationRule",
        "Describes how to locate ClusterRoles to aggregate into a ClusterRole.",
        &[(
            "clusterRoleSelectors",
            "[]LabelSelector",
            "Selectors of ClusterRoles. If any of them matches, the permissions of the ClusterRole are added.",
        )],
    ),
    (
        "PolicyRule",
        "A rule that allows actions on resources or on non-resource URLs. Rules are purely additive.",
        &[
            (
                "verbs",
                "[]string",
                "Verbs that apply to all the resource kinds in the rule. '*' represents all verbs.",
            ),
            (
                "apiGroups",
                "[]string",
                "API groups that contain the resources. \"\" represents the core group and '*' all groups.",
            ),
            (
                "resources",
                "[]string",
                "Resources that the rule applies to, such as pods, pods/log and */scale. '*' represents all resources.",
            ),
            (
                "resourceNames",
                "[]string",
                "Names of the objects that the rule applies to. An empty list allows all.",
            ),
            (
                "nonResourceURLs",
                "[]string",
                "URL paths that the rule applies to; '*' is allowed as the full, final step of a path. Only in ClusterRoles that are referenced by ClusterRoleBindings.",
            ),
        ],
    ),
    (
        "RoleBinding",
        "References a Role in the same namespace or a ClusterRole, and grants its permissions in the namespace to the subjects.",
        BINDING,
    ),
    (
        "ClusterRoleBinding",
        "References a ClusterRole and grants its permissions in the whole cluster to the subjects.",
        BINDING,
    ),
    (
        "RoleRef",
        "Identifies the role that a binding refers to.",
        &[
            ("apiGroup", "string", "Group of the referenced role: rbac.authorization.k8s.io."),
            ("kind", "string", "Kind of the referenced role: Role or ClusterRole."),
            ("name", "string", "Name of the referenced role."),
        ],
    ),
    (
        "Subject",
        "Identifies the user, group or service account that a role binding applies to.",
        &[
            ("kind", "string", "Kind of the subject: User, Group or ServiceAccount."),
            (
                "apiGroup",
                "string",
                "API group of the subject. Defaults to \"\" for ServiceAccount subjects and to rbac.authorization.k8s.io for User and Group subjects.",
            ),
            ("name", "string", "Name of the subject."),
            (
                "namespace",
                "string",
                "Namespace of a ServiceAccount subject; must be empty for other kinds. In a RoleBinding it defaults to the binding's namespace.",
            ),
        ],
    ),
];

const BINDING: &[(&str, &str, &str)] = &[
    ("subjects", "[]Subject", "Users, groups and service accounts that the role applies to."),
    (
        "roleRef",
        "!RoleRef",
        "Role that is granted. It is immutable: to bind another role, create another binding.",
    ),
];
