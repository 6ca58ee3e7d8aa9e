//! The kinds of Kubernetes' core group that are served, as tables.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Definitions, reference};
use crate::resource;

/// Name, what it is, and its fields: name, type, what it is.
pub(super) type Definition =
    (&'static str, &'static str, &'static [(&'static str, &'static str, &'static str)]);

/// A type is `string`, `integer`, `boolean`, `time`, `bytes`, `any` or a definition's name; `{}T` is a map and `[]T` a
/// list. A list that is merged by element is `[=]T` where elements are words, and `[key]T` where a key tells them apart;
/// `!T` is always written as a whole.
const DEFINITIONS: &[Definition] = &[
    (
        "ObjectMeta",
        "What every object says of itself.",
        &[
            ("name", "string", "Unique among the objects of its kind in its namespace."),
            ("generateName", "string", "Beginning of a name that the server makes up."),
            ("namespace", "string", "Where it lives."),
            ("uid", "string", "Unique in time and space; the server's."),
            ("resourceVersion", "string", "Changes with every write; the server's."),
            ("generation", "integer", "Counts the changes of what is wanted; the server's."),
            ("creationTimestamp", "time", "The server's."),
            ("deletionTimestamp", "time", "When deletion was asked for; the server's."),
            ("deletionGracePeriodSeconds", "integer", "The server's."),
            ("labels", "{}string", "For selection."),
            ("annotations", "{}string", "For everything else."),
            ("finalizers", "[=]string", "Who must let go before it is removed."),
            (
                "ownerReferences",
                "[uid]OwnerReference",
                "What it belongs to; it goes when all of them are gone.",
            ),
            ("managedFields", "[]ManagedFieldsEntry", "Who has set what; the server's."),
            ("selfLink", "string", "No longer used."),
        ],
    ),
    (
        "ManagedFieldsEntry",
        "What somebody has set.",
        &[
            ("manager", "string", "Who."),
            ("operation", "string", "Apply or Update."),
            ("apiVersion", "string", "Group and version in which it was written."),
            ("time", "time", "When last."),
            ("fieldsType", "string", "FieldsV1."),
            ("fieldsV1", "any", "Which fields."),
            ("subresource", "string", "By which subresource; empty for the object itself."),
        ],
    ),
    (
        "OwnerReference",
        "What an object belongs to.",
        &[
            ("apiVersion", "string", "Group and version of the owner."),
            ("kind", "string", "Kind of the owner."),
            ("name", "string", "Name of the owner."),
            ("uid", "string", "UID of the owner."),
            ("controller", "boolean", "Whether it manages this object."),
            ("blockOwnerDeletion", "boolean", "Whether its deletion waits for this object's."),
        ],
    ),
    (
        "LabelSelector",
        "Chooses objects by their labels: all that is said must hold.",
        &[
            ("matchLabels", "{}string", "Labels with exactly these values."),
            ("matchExpressions", "[]LabelSelectorRequirement", "Further demands."),
        ],
    ),
    (
        "LabelSelectorRequirement",
        "One demand on a label.",
        &[
            ("key", "string", "The label's name."),
            ("operator", "string", "`In`, `NotIn`, `Exists` or `DoesNotExist`."),
            ("values", "[]string", "For `In` and `NotIn`."),
        ],
    ),
    (
        "ListMeta",
        "What a list says of itself.",
        &[
            ("resourceVersion", "string", "The moment it shows."),
            ("continue", "string", "Where to read on; empty at the end."),
            ("remainingItemCount", "integer", "How many are left."),
        ],
    ),
    (
        "Namespace",
        "A room for names.",
        &[("spec", "NamespaceSpec", "How it goes."), ("status", "NamespaceStatus", "How it is.")],
    ),
    (
        "NamespaceSpec",
        "How a namespace goes.",
        &[("finalizers", "[]string", "Who must let go before it is removed.")],
    ),
    (
        "NamespaceStatus",
        "How a namespace is.",
        &[("phase", "string", "Active or Terminating."), ("conditions", "[type]any", "What keeps it.")],
    ),
    (
        "ConfigMap",
        "Text for programs to read.",
        &[
            ("data", "{}string", "Text by name."),
            ("binaryData", "{}bytes", "Bytes by name, in base64."),
            ("immutable", "boolean", "Whether it can never change."),
        ],
    ),
    (
        "Secret",
        "Text that not everybody may read.",
        &[
            ("data", "{}bytes", "Bytes by name, in base64."),
            ("stringData", "{}string", "Text by name; becomes data when written."),
            ("type", "string", "What it is for; Opaque when nothing else."),
            ("immutable", "boolean", "Whether it can never change."),
        ],
    ),
    (
        "ServiceAccount",
        "Who a program is.",
        &[
            ("secrets", "[name]ObjectReference", "Secrets that it may use."),
            (
                "imagePullSecrets",
                "[]LocalObjectReference",
                "Secrets for pulling images. Without effect here.",
            ),
            ("automountServiceAccountToken", "boolean", "Whether pods get its token. Without effect here."),
        ],
    ),
    ("LocalObjectReference", "Names an object in the same namespace.", &[("name", "string", "Its name.")]),
    ("Lease", "Who has the say for a while.", &[("spec", "LeaseSpec", "Who, and for how long.")]),
    (
        "LeaseSpec",
        "Who has the say, and for how long.",
        &[
            ("holderIdentity", "string", "Who holds it."),
            ("leaseDurationSeconds", "integer", "How long others wait, counted from renewTime."),
            ("acquireTime", "time", "When it changed hands."),
            ("renewTime", "time", "When its holder said so last."),
            ("leaseTransitions", "integer", "How often it changed hands."),
            ("strategy", "string", "How it is given to others."),
            ("preferredHolder", "string", "Who should have it."),
        ],
    ),
    (
        "Event",
        "Something that happened to an object.",
        &[
            ("involvedObject", "!ObjectReference", "To what."),
            ("reason", "string", "One word, for programs."),
            ("message", "string", "For people."),
            ("source", "EventSource", "Who says so."),
            ("firstTimestamp", "time", "When it happened first."),
            ("lastTimestamp", "time", "When it happened last."),
            ("eventTime", "time", "When it happened, in microseconds."),
            ("count", "integer", "How often it happened."),
            ("type", "string", "Normal or Warning."),
            ("action", "string", "What was done about it."),
            ("related", "!ObjectReference", "Another object that has to do with it."),
            ("series", "any", "How it goes on happening."),
            ("reportingComponent", "string", "Who says so."),
            ("reportingInstance", "string", "Which of them."),
        ],
    ),
    (
        "EventSource",
        "Who says so.",
        &[("component", "string", "The program."), ("host", "string", "The node.")],
    ),
    (
        "ObjectReference",
        "Names an object.",
        &[
            ("apiVersion", "string", "Its group and version."),
            ("kind", "string", "Its kind."),
            ("namespace", "string", "Its namespace."),
            ("name", "string", "Its name."),
            ("uid", "string", "Its UID."),
            ("resourceVersion", "string", "One state of it."),
            ("fieldPath", "string", "A part of it."),
        ],
    ),
    (
        "ControllerRevision",
        "What something was made from.",
        &[("data", "any", "It, as it was."), ("revision", "integer", "The generation it had.")],
    ),
    (
        "CustomResourceDefinition",
        "Another kind of objects.",
        &[("spec", "CrdSpec", "What they are."), ("status", "CrdStatus", "Whether they are served.")],
    ),
    (
        "CrdSpec",
        "What objects of another kind are.",
        &[
            ("group", "string", "Their group."),
            ("names", "CrdNames", "What they are called."),
            ("scope", "string", "Namespaced or Cluster."),
            ("versions", "[]CrdVersion", "Their versions; the one that is stored is served."),
            ("conversion", "any", "How versions become each other: only None."),
            ("preserveUnknownFields", "boolean", "No longer used."),
        ],
    ),
    (
        "CrdNames",
        "What objects are called.",
        &[
            ("plural", "string", "As in paths."),
            ("singular", "string", "For people."),
            ("kind", "string", "As in manifests."),
            ("listKind", "string", "Of lists of them."),
            ("shortNames", "[]string", "For hasty people."),
            ("categories", "[]string", "Words for several kinds at once."),
        ],
    ),
    (
        "CrdVersion",
        "One version of objects.",
        &[
            ("name", "string", "Its name."),
            ("served", "boolean", "Whether it is there for clients."),
            ("storage", "boolean", "Whether it is what is stored."),
            ("deprecated", "boolean", "Whether it will go."),
            ("deprecationWarning", "string", "What is said then."),
            ("schema", "any", "openAPIV3Schema: its fields."),
            ("subresources", "any", "status and scale."),
            ("additionalPrinterColumns", "[]any", "What tables show."),
            ("selectableFields", "[]any", "Not available."),
        ],
    ),
    (
        "CrdStatus",
        "Whether objects of another kind are served.",
        &[
            ("conditions", "[type]any", "NamesAccepted and Established."),
            ("acceptedNames", "CrdNames", "What they are called now."),
            ("storedVersions", "[]string", "Versions that may be stored."),
        ],
    ),
    (
        "PersistentVolumeClaim",
        "A disk that outlives the machines that use it.",
        &[("spec", "ClaimSpec", "What is wanted."), ("status", "ClaimStatus", "What there is.")],
    ),
    (
        "ClaimSpec",
        "What is wanted of a disk.",
        &[
            (
                "accessModes",
                "[]string",
                "ReadWriteOnce, ReadOnlyMany or ReadWriteMany: without a difference on one node.",
            ),
            ("resources", "ClaimResources", "How large it is."),
            ("storageClassName", "string", "Who makes it; local unless said."),
            ("volumeMode", "string", "Filesystem or Block: without a difference to a guest."),
            ("volumeName", "string", "What it is called; the server's."),
            ("volumeAttributesClassName", "string", "Not available."),
            ("selector", "any", "Not available."),
            ("dataSource", "any", "Not available."),
            ("dataSourceRef", "any", "Not available."),
        ],
    ),
    (
        "ClaimResources",
        "How large a disk is.",
        &[("requests", "{}any", "At least; storage may grow later."), ("limits", "{}any", "At most.")],
    ),
    (
        "ClaimStatus",
        "What there is of a disk.",
        &[
            ("phase", "string", "Pending or Bound."),
            ("accessModes", "[]string", "How it may be used."),
            ("capacity", "{}any", "How large it is."),
            ("conditions", "[type]any", "What keeps it."),
            ("allocatedResources", "{}any", "Not used."),
            ("allocatedResourceStatuses", "{}string", "Not used."),
            ("currentVolumeAttributesClassName", "string", "Not used."),
            ("modifyVolumeStatus", "any", "Not used."),
        ],
    ),
    (
        "PersistentVolume",
        "The disk of a claim. The server makes it.",
        &[
            ("spec", "PersistentVolumeSpec", "What it is."),
            ("status", "PersistentVolumeStatus", "Whether it is there."),
        ],
    ),
    (
        "PersistentVolumeSpec",
        "What a volume is.",
        &[
            ("capacity", "{}any", "How large it is."),
            ("accessModes", "[]string", "Those of its claim."),
            ("claimRef", "!ObjectReference", "The claim that has it."),
            ("persistentVolumeReclaimPolicy", "string", "Delete: it goes with its claim."),
            ("storageClassName", "string", "Who made it."),
            ("volumeMode", "string", "That of its claim."),
            ("local", "any", "The directory that has it."),
            ("nodeAffinity", "any", "The node that has it."),
            ("mountOptions", "[]string", "Not used."),
        ],
    ),
    (
        "PersistentVolumeStatus",
        "Whether a volume is there.",
        &[
            ("phase", "string", "Bound, or Failed when its disk is gone."),
            ("reason", "string", "Why, in one word."),
            ("message", "string", "Why, for people."),
            ("lastPhaseTransitionTime", "time", "Not used."),
        ],
    ),
    (
        "StorageClass",
        "Who makes volumes. There is one.",
        &[
            ("provisioner", "string", "Which program: vireo.io/local."),
            ("parameters", "{}string", "Not available."),
            ("reclaimPolicy", "string", "Delete: volumes go with their claims."),
            ("mountOptions", "[]string", "Not available."),
            ("allowVolumeExpansion", "boolean", "Whether claims may grow."),
            ("volumeBindingMode", "string", "Immediate: a claim gets its volume at once."),
            ("allowedTopologies", "[]any", "Not available."),
        ],
    ),
    (
        "Node",
        "A machine that runs guests: this one.",
        &[("spec", "NodeSpec", "What is wanted of it."), ("status", "NodeStatus", "How it is.")],
    ),
    (
        "NodeSpec",
        "What is wanted of a node.",
        &[
            ("unschedulable", "boolean", "Whether it takes nothing new."),
            ("taints", "[]any", "What keeps new instances away that do not tolerate it."),
            ("podCIDR", "string", "Not used."),
            ("podCIDRs", "[]string", "Not used."),
            ("providerID", "string", "Not used."),
        ],
    ),
    (
        "NodeStatus",
        "How a node is.",
        &[
            ("capacity", "{}any", "What it has."),
            ("allocatable", "{}any", "What guests may have of it."),
            ("conditions", "[type]any", "Whether it works."),
            ("addresses", "[type]any", "How it is called."),
            ("nodeInfo", "any", "What runs on it."),
            ("phase", "string", "No longer used."),
            ("daemonEndpoints", "any", "Not used."),
            ("images", "[]any", "Not used."),
        ],
    ),
];

/// Kinds whose resources the composing program serves, if it provides storage.
const STORAGE: [&str; 3] = ["PersistentVolume", "PersistentVolumeClaim", "StorageClass"];

fn all() -> impl Iterator<Item = &'static Definition> {
    DEFINITIONS.iter().chain(super::rbac::DEFINITIONS).chain(super::workload::DEFINITIONS)
}

/// All of them, as OpenAPI schemas.
pub static KUBERNETES: Definitions = Definitions::new(definitions, package);

fn definitions() -> BTreeMap<String, Value> {
    let rows = resource::kubernetes();
    let is_kind = |name: &str| STORAGE.contains(&name) || rows.iter().any(|row| row.kind == name);
    let mut definitions: BTreeMap<String, Value> =
        all().map(|row| (row.0.to_owned(), definition(row, is_kind(row.0)))).collect();
    if let Some(selector) = definitions.get_mut("LabelSelector") {
        selector["x-kubernetes-map-type"] = json!("atomic");
    }
    definitions
}

/// The package under whose name a definition is published.
fn package(name: &str) -> &'static str {
    match name {
        "ObjectMeta"
        | "ListMeta"
        | "OwnerReference"
        | "ManagedFieldsEntry"
        | "LabelSelector"
        | "LabelSelectorRequirement" => "io.k8s.apimachinery.pkg.apis.meta.v1",
        "ControllerRevision" | "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet" => {
            "io.k8s.api.apps.v1"
        }
        "CronJob" | "Job" => "io.k8s.api.batch.v1",
        "Ingress" => "io.k8s.api.networking.v1",
        "CustomResourceDefinition" | "CrdSpec" | "CrdNames" | "CrdVersion" | "CrdStatus" => {
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
        }
        name if super::rbac::DEFINITIONS.iter().any(|(known, ..)| *known == name) => "io.k8s.api.rbac.v1",
        "StorageClass" => "io.k8s.api.storage.v1",
        "Lease" | "LeaseSpec" => "io.k8s.api.coordination.v1",
        _ => "io.k8s.api.core.v1",
    }
}

fn definition((_, about, fields): &Definition, is_kind: bool) -> Value {
    let field = |(name, kind, about): &(&str, &str, &str)| {
        let mut schema = schema(kind);
        schema["description"] = json!(about);
        ((*name).to_owned(), schema)
    };
    let mut properties: serde_json::Map<String, Value> = fields.iter().map(field).collect();
    if is_kind {
        let metadata = ("metadata", "ObjectMeta", "What every object says of itself.");
        let version = ("apiVersion", "string", "Group and version.");
        let kind = ("kind", "string", "Which kind of object this is.");
        properties.extend([metadata, version, kind].iter().map(field));
    }
    json!({"type": "object", "description": about, "properties": properties})
}

fn schema(kind: &str) -> Value {
    if let Some((key, items)) = kind.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let mut list = json!({"type": "array", "items": schema(items)});
        let merged = match key {
            "" => "atomic",
            "=" => "set",
            key => {
                list["x-kubernetes-list-map-keys"] = json!([key]);
                "map"
            }
        };
        list["x-kubernetes-list-type"] = json!(merged);
        return list;
    }
    if let Some(whole) = kind.strip_prefix('!') {
        let mut schema = schema(whole);
        schema["x-kubernetes-map-type"] = json!("atomic");
        return schema;
    }
    if let Some(values) = kind.strip_prefix("{}") {
        return json!({"type": "object", "additionalProperties": schema(values)});
    }
    match kind {
        "string" | "boolean" => json!({ "type": kind }),
        "integer" => json!({"type": "integer", "format": "int64"}),
        "time" => json!({"type": "string", "format": "date-time"}),
        "bytes" => json!({"type": "string", "format": "byte"}),
        "any" => json!({"x-kubernetes-preserve-unknown-fields": true}),
        name => reference(name),
    }
}
