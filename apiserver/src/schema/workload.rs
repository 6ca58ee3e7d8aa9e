//! The kinds of Kubernetes that have a schema but no objects here.

use super::core::Definition;

const FIELDS: &[(&str, &str, &str)] = &[
    ("spec", "any", "Desired state of the object."),
    ("status", "any", "Most recently observed state of the object. Read-only."),
];

pub(crate) const DEFINITIONS: &[Definition] = &[
    (
        "ReplicationController",
        "Ensures that a specified number of pod replicas run. Deployments supersede it. This server has none.",
        FIELDS,
    ),
    ("DaemonSet", "Ensures that every selected node runs a copy of a pod. This server has none.", FIELDS),
    ("Deployment", "Enables declarative updates for pods and ReplicaSets. This server has none.", FIELDS),
    (
        "ReplicaSet",
        "Ensures that a specified number of pod replicas run at any given time. This server has none.",
        FIELDS,
    ),
    (
        "StatefulSet",
        "Represents a set of pods with consistent identities: stable network names and storage. This server has none.",
        FIELDS,
    ),
    ("CronJob", "Creates Jobs on a schedule. This server has none.", FIELDS),
    (
        "Job",
        "Runs pods until a specified number of them complete successfully. This server has none.",
        FIELDS,
    ),
    (
        "Service",
        "A named abstraction of a network service: the port it listens on, and the selector of the pods that answer. This server has none.",
        FIELDS,
    ),
    (
        "Ingress",
        "Rules by which inbound HTTP connections reach the endpoints of services. This server has none.",
        FIELDS,
    ),
    (
        "Endpoints",
        "The endpoints that implement a service. This server has none.",
        &[("subsets", "[]any", "Sets of addresses that share the same ports.")],
    ),
];
