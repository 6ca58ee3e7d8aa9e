//! The kinds of Kubernetes of which there are no objects.

use super::core::Definition;

const FIELDS: &[(&str, &str, &str)] =
    &[("spec", "any", "The desired state."), ("status", "any", "The observed state.")];

pub(super) const DEFINITIONS: &[Definition] = &[
    ("Pod", "Containers that run together on a node. There are none here.", FIELDS),
    (
        "ReplicationController",
        "A number of equal pods; Deployments took its place. There are none here.",
        FIELDS,
    ),
    ("DaemonSet", "A pod on every node. There are none here.", FIELDS),
    (
        "Deployment",
        "A number of equal pods, and how they are replaced by others. There are none here.",
        FIELDS,
    ),
    ("ReplicaSet", "A number of equal pods. There are none here.", FIELDS),
    ("StatefulSet", "A number of pods with names and volumes of their own. There are none here.", FIELDS),
    ("CronJob", "Jobs by a calendar. There are none here.", FIELDS),
    ("Job", "Pods that run until they have succeeded. There are none here.", FIELDS),
    ("Service", "A stable address of pods. There are none here.", FIELDS),
    ("Ingress", "Rules by which HTTP from outside reaches services. There are none here.", FIELDS),
    (
        "Endpoints",
        "The addresses behind a service. There are none here.",
        &[("subsets", "[]any", "Addresses with their ports.")],
    ),
];
