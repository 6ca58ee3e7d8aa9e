//! Kubernetes' own.

use serde_json::{Value, json};

use super::{Default, READ, UNKNOWN, WRITE, aggregate, all_verbs, bind, bind_to_known, paths, role, rule};
use crate::auth::{ADMINISTRATORS, KNOWN, PUBLIC};
use crate::rbac::GROUP;

/// What all of them are marked with.
const OURS: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");
const LABELS: [(&str, &str); 1] = [OURS];

/// Which of the three user-facing roles has a role's rules.
/// A role so labelled becomes part of it.
pub const TO_ADMIN: &str = "rbac.authorization.k8s.io/aggregate-to-admin";
/// A role so labelled becomes part of it.
pub const TO_EDIT: &str = "rbac.authorization.k8s.io/aggregate-to-edit";
/// A role so labelled becomes part of it.
pub const TO_VIEW: &str = "rbac.authorization.k8s.io/aggregate-to-view";

const KEPT: [&str; 4] = ["configmaps", "events", "persistentvolumeclaims", "serviceaccounts"];

/// What leads into pods.
const ENTERED: [&str; 4] = ["pods/attach", "pods/exec", "pods/portforward", "pods/proxy"];

/// Kinds without objects: requests for them must not fail with 403.
const WORKLOADS: [(&str, &[&str]); 5] = [
    ("", &["endpoints", "replicationcontrollers", "services"]),
    ("apps", &["daemonsets", "deployments", "replicasets", "statefulsets"]),
    ("batch", &["cronjobs", "jobs"]),
    ("extensions", &["ingresses"]),
    ("networking.k8s.io", &["ingresses"]),
];

/// Rules about them.
fn workloads<'a>(verbs: &'a [&'a str]) -> impl Iterator<Item = Value> + 'a {
    WORKLOADS.iter().map(|(group, plurals)| rule(verbs, group, plurals))
}

pub(super) fn all() -> Vec<Default> {
    let everything = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
    let every_path = json!({"verbs": ["*"], "nonResourceURLs": ["*"]});
    let reviews = |group, resources: &[&str]| rule(&["create"], group, resources);
    vec![
        role("cluster-admin", &LABELS, &[everything, every_path]),
        bind("cluster-admin", &LABELS, &[ADMINISTRATORS]),
        role(
            "system:discovery",
            &LABELS,
            &[paths(&[
                "/api",
                "/api/*",
                "/apis",
                "/apis/*",
                "/healthz",
                "/livez",
                "/openapi",
                "/openapi/*",
                "/readyz",
                "/version",
                "/version/",
            ])],
        ),
        bind_to_known("system:discovery", &LABELS),
        role(
            "system:basic-user",
            &LABELS,
            &[
                reviews("authentication.k8s.io", &["selfsubjectreviews"]),
                reviews("authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
            ],
        ),
        bind_to_known("system:basic-user", &LABELS),
        role("system:public-info-viewer", &LABELS, &[paths(&PUBLIC)]),
        bind("system:public-info-viewer", &LABELS, &[KNOWN, UNKNOWN]),
        role(
            "system:monitoring",
            &LABELS,
            &[paths(&[
                "/healthz",
                "/healthz/*",
                "/livez",
                "/livez/*",
                "/metrics",
                "/metrics/slis",
                "/readyz",
                "/readyz/*",
            ])],
        ),
        bind("system:monitoring", &LABELS, &["system:monitoring"]),
        role(
            "system:auth-delegator",
            &LABELS,
            &[
                reviews("authentication.k8s.io", &["tokenreviews"]),
                reviews("authorization.k8s.io", &["subjectaccessreviews"]),
            ],
        ),
        aggregate("admin", &LABELS, TO_ADMIN),
        aggregate("edit", &[OURS, (TO_ADMIN, "true")], TO_EDIT),
        aggregate("view", &[OURS, (TO_EDIT, "true")], TO_VIEW),
        role(
            "system:aggregate-to-admin",
            &[OURS, (TO_ADMIN, "true")],
            &[
                reviews("authorization.k8s.io", &["localsubjectaccessreviews"]),
                rule(&all_verbs(), GROUP, &["rolebindings", "roles"]),
            ],
        ),
        role(
            "system:aggregate-to-edit",
            &[OURS, (TO_EDIT, "true")],
            &[
                rule(&READ, "", &[&ENTERED[..], &["secrets"]].concat()),
                rule(&["impersonate"], "", &["serviceaccounts"]),
                rule(&WRITE, "", &[&KEPT[..], &ENTERED, &["pods", "secrets"]].concat()),
                rule(&["create"], "", &["pods/eviction", "serviceaccounts/token"]),
                rule(&all_verbs(), "coordination.k8s.io", &["leases"]),
            ]
            .into_iter()
            .chain(workloads(&WRITE))
            .collect::<Vec<_>>(),
        ),
        role(
            "system:aggregate-to-view",
            &[OURS, (TO_VIEW, "true")],
            &[
                rule(
                    &READ,
                    "",
                    &[&KEPT[..], &["namespaces", "persistentvolumeclaims/status", "pods"]].concat(),
                ),
                rule(&READ, "", &["bindings", "pods/log", "pods/status"]),
                rule(&READ, "apps", &["controllerrevisions"]),
            ]
            .into_iter()
            .chain(workloads(&READ))
            .collect::<Vec<_>>(),
        ),
    ]
}
