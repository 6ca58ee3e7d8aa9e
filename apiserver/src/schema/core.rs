//! The kinds of Kubernetes' core group that are served, as tables.

/// Name, description, and fields: name, type, description.
pub(crate) type Definition =
    (&'static str, &'static str, &'static [(&'static str, &'static str, &'static str)]);

/// A type is `string`, `integer`, `boolean`, `time`, `bytes`, `any` or a definition's name; `{}T` is a map and `[]T` a
/// list. A list that is merged by element is `[=]T` where elements are scalars, and `[key]T` or `[key,key]T` where keys
/// are their map keys; `!T` is always replaced as a whole.
pub(crate) const DEFINITIONS: &[Definition] = &[
    (
        "Namespace",
        "Provides a scope for names.",
        &[
            ("spec", "NamespaceSpec", "Desired behavior of the namespace."),
            ("status", "NamespaceStatus", "Current status of the namespace. Read-only."),
        ],
    ),
    (
        "NamespaceSpec",
        "Describes the attributes of a namespace.",
        &[(
            "finalizers",
            "[]string",
            "Identifiers that must be removed before the namespace is permanently removed from storage.",
        )],
    ),
    (
        "NamespaceStatus",
        "Current status of a namespace.",
        &[
            ("phase", "string", "Life cycle phase of the namespace: Active or Terminating."),
            (
                "conditions",
                "[type]any",
                "Latest observations of the namespace, such as what remains in it while it is being terminated.",
            ),
        ],
    ),
    (
        "ConfigMap",
        "Holds configuration data for workloads and other clients to consume.",
        &[
            (
                "data",
                "{}string",
                "Configuration data. Values are UTF-8 text; keys consist of alphanumeric characters, '-', '_' and '.', and cannot overlap with those of binaryData.",
            ),
            (
                "binaryData",
                "{}bytes",
                "Binary configuration data, base64-encoded. Keys cannot overlap with those of data.",
            ),
            (
                "immutable",
                "boolean",
                "If true, data and binaryData cannot be updated; only the metadata can. It cannot be unset.",
            ),
        ],
    ),
    (
        "Secret",
        "Holds secret data of a certain type. The values in data total at most 1 MiB.",
        &[
            (
                "data",
                "{}bytes",
                "Secret data, base64-encoded. Keys consist of alphanumeric characters, '-', '_' and '.'.",
            ),
            (
                "stringData",
                "{}string",
                "Secret data as plain text. Write-only: it is merged into data on write, overwrites existing values, and is never returned.",
            ),
            (
                "type",
                "string",
                "Type of the secret, which determines the keys that data must have. Defaults to Opaque.",
            ),
            (
                "immutable",
                "boolean",
                "If true, data cannot be updated; only the metadata can. It cannot be unset.",
            ),
        ],
    ),
    (
        "ServiceAccount",
        "Identity of a process, to which tokens are issued and roles are bound.",
        &[
            (
                "secrets",
                "[name]ObjectReference",
                "Secrets in the same namespace that processes with this account may use.",
            ),
            (
                "imagePullSecrets",
                "[]LocalObjectReference",
                "Secrets in the same namespace for pulling images. Has no effect on this server.",
            ),
            (
                "automountServiceAccountToken",
                "boolean",
                "Whether pods with this account have its API token mounted. Has no effect on this server.",
            ),
        ],
    ),
    (
        "LocalObjectReference",
        "Locates the referenced object in the same namespace.",
        &[("name", "string", "Name of the referent.")],
    ),
    (
        "Lease",
        "Defines a lease concept: a lock that its holder renews, for leader election and heartbeats.",
        &[("spec", "LeaseSpec", "Specification of the lease.")],
    ),
    (
        "LeaseSpec",
        "Specification of a lease.",
        &[
            ("holderIdentity", "string", "Identity of the current holder of the lease."),
            (
                "leaseDurationSeconds",
                "integer",
                "Seconds that candidates wait before they force acquisition of the lease, measured from renewTime.",
            ),
            ("acquireTime", "time", "Time at which the current holder acquired the lease."),
            ("renewTime", "time", "Time at which the current holder last renewed the lease."),
            ("leaseTransitions", "integer", "Number of transitions of the lease between holders."),
            ("strategy", "string", "Strategy for picking the leader in coordinated leader election."),
            (
                "preferredHolder",
                "string",
                "Identity of a more optimal holder, to which the current holder should release the lease. Only valid with strategy.",
            ),
        ],
    ),
    (
        "Event",
        "Report of an event somewhere in the cluster. Events are informative, best-effort and retained for a limited time.",
        &[
            ("involvedObject", "!ObjectReference", "Object that the event is about."),
            (
                "reason",
                "string",
                "Short, machine-readable reason for the transition into the object's current status.",
            ),
            ("message", "string", "Human-readable description of the status of the operation."),
            ("source", "EventSource", "Component that reports the event."),
            ("firstTimestamp", "time", "Time at which the event was first recorded."),
            ("lastTimestamp", "time", "Time at which the most recent occurrence of the event was recorded."),
            ("eventTime", "time", "Time at which the event was first observed, with microsecond precision."),
            ("count", "integer", "Number of times that the event has occurred."),
            ("type", "string", "Type of the event: Normal or Warning."),
            ("action", "string", "Action that was taken or failed regarding the involved object."),
            ("related", "!ObjectReference", "Secondary object, for actions that involve two."),
            (
                "series",
                "any",
                "Data about the series of events that this event represents; absent for a single event.",
            ),
            (
                "reportingComponent",
                "string",
                "Name of the controller that emitted the event, such as kubernetes.io/kubelet.",
            ),
            ("reportingInstance", "string", "ID of the instance of the controller."),
        ],
    ),
    (
        "EventSource",
        "Source of an event.",
        &[
            ("component", "string", "Component from which the event is generated."),
            ("host", "string", "Name of the node on which the event is generated."),
        ],
    ),
    (
        "ObjectReference",
        "Contains enough information to identify the referred object.",
        &[
            ("apiVersion", "string", "API version of the referent."),
            ("kind", "string", "Kind of the referent."),
            ("namespace", "string", "Namespace of the referent."),
            ("name", "string", "Name of the referent."),
            ("uid", "string", "UID of the referent."),
            ("resourceVersion", "string", "Specific resourceVersion to which the reference is made."),
            (
                "fieldPath",
                "string",
                "Part of the referent that the reference is about, as a JSON path such as spec.containers{name}.",
            ),
        ],
    ),
    (
        "ControllerRevision",
        "An immutable snapshot of state data, by which controllers record the revisions of an object.",
        &[
            ("data", "any", "Serialized representation of the state."),
            ("revision", "integer", "Revision of the state represented by data."),
        ],
    ),
    (
        "Node",
        "A worker node, on which workloads run.",
        &[
            ("spec", "NodeSpec", "Desired behavior of the node."),
            ("status", "NodeStatus", "Most recently observed status of the node. Read-only."),
        ],
    ),
    (
        "NodeSpec",
        "Describes the attributes of a node.",
        &[
            (
                "unschedulable",
                "boolean",
                "If true, no new workloads are scheduled to the node; those that run there stay. Set by kubectl cordon.",
            ),
            ("taints", "[]any", "Taints of the node: only workloads that tolerate them are scheduled to it."),
            ("podCIDR", "string", "IP range for the pods of the node. Not used by this server."),
            ("podCIDRs", "[]string", "IP ranges for the pods of the node. Not used by this server."),
            (
                "providerID",
                "string",
                "ID of the node that the cloud provider assigned. Not used by this server.",
            ),
        ],
    ),
    (
        "NodeStatus",
        "Current status of a node.",
        &[
            ("capacity", "{}any", "Total resources of the node."),
            ("allocatable", "{}any", "Resources of the node that are available for scheduling."),
            ("conditions", "[type]any", "Latest observations of the node, such as Ready."),
            (
                "addresses",
                "[type]any",
                "Addresses at which the node is reachable, such as its Hostname and InternalIP.",
            ),
            (
                "nodeInfo",
                "any",
                "IDs and versions that identify the node, such as its kernel and its operating system.",
            ),
            ("phase", "string", "Deprecated: never set."),
            (
                "daemonEndpoints",
                "any",
                "Endpoints of the daemons that run on the node. Not used by this server.",
            ),
            ("images", "[]any", "Container images on the node. Not used by this server."),
        ],
    ),
];
