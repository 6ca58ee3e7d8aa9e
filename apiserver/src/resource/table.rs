//! The resources of Kubernetes that are always served.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Column, METADATA_LISTS, Resource, Row, Source, admit, definition, pod, role, secret, texts, workload,
};
use crate::json_path;
use crate::meta::is_dns_label;

/// Namespaces.
pub static NAMESPACES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["ns"]),
        namespaced: false,
        status: true,
        columns: vec![
            Column::text("Status", ".status.phase").described("Life cycle phase of the namespace."),
            Column::age(),
        ],
        fields: texts(&["status.phase"]),
        admit: admit::namespace,
        name_fits: is_dns_label,
        ..Resource::kubernetes("", "Namespace")
    })
});

/// ConfigMaps.
pub static CONFIG_MAPS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["cm"]),
        columns: vec![
            Column::new("Data", "integer", Source::Made(data))
                .described("Number of entries in data and binaryData."),
            Column::age(),
        ],
        admit: admit::config_map,
        ..Resource::kubernetes("", "ConfigMap")
    })
});

/// Secrets.
pub static SECRETS: Row = Row::new(|| {
    Arc::new(Resource {
        columns: vec![
            Column::text("Type", ".type").described("Type of the secret."),
            Column::new("Data", "integer", Source::Made(data)).described("Number of entries in data."),
            Column::age(),
        ],
        fields: texts(&["type"]),
        admit: secret::secret,
        ..Resource::kubernetes("", "Secret")
    })
});

/// ServiceAccounts.
pub static SERVICE_ACCOUNTS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["sa"]),
        columns: vec![
            Column::new("Secrets", "integer", Source::Made(secrets))
                .described("Number of secrets that processes with this account may use."),
            Column::age(),
        ],
        merge: Some(&[
            METADATA_LISTS[0],
            METADATA_LISTS[1],
            ("secrets", "name"),
            ("imagePullSecrets", "name"),
        ]),
        ..Resource::kubernetes("", "ServiceAccount")
    })
});

/// Leases.
pub static LEASES: Row = Row::new(|| {
    Arc::new(Resource {
        columns: vec![
            Column::text("Holder", ".spec.holderIdentity")
                .described("Identity of the current holder of the lease."),
            Column::age(),
        ],
        admit: admit::lease,
        ..Resource::kubernetes("coordination.k8s.io", "Lease")
    })
});

/// Events.
pub static EVENTS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["ev"]),
        columns: vec![
            Column::new("Last Seen", "string", Source::Since(".lastTimestamp".into()))
                .described("Time since the most recent occurrence of the event."),
            Column::text("Type", ".type").described("Type of the event: Normal or Warning."),
            Column::text("Reason", ".reason").described(
                "Short, machine-readable reason for the transition into the object's current status.",
            ),
            Column::computed("Object", involved)
                .described("Kind and name of the object that the event is about."),
            Column::text("Message", ".message")
                .described("Human-readable description of the status of the operation."),
            Column::number("Count", ".count")
                .wide()
                .described("Number of times that the event has occurred."),
            Column::text("Name", ".metadata.name").wide().described("Name of the event."),
        ],
        fields: texts(&[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ]),
        admit: admit::event,
        ..Resource::kubernetes("", "Event")
    })
});

/// Nodes.
pub static NODES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["no"]),
        namespaced: false,
        status: true,
        columns: vec![
            Column::computed("Status", readiness)
                .described("Whether the node is ready, and whether scheduling to it is disabled."),
            Column::computed("Roles", |_| json!("<none>")).described("Roles of the node."),
            Column::age(),
            Column::text("Version", ".status.nodeInfo.kubeletVersion")
                .described("Version that the node agent reports."),
            Column::text("OS-Image", ".status.nodeInfo.osImage")
                .wide()
                .described("Operating system that the node reports from /etc/os-release."),
            Column::text("Kernel-Version", ".status.nodeInfo.kernelVersion")
                .wide()
                .described("Kernel version that the node reports from uname -r."),
        ],
        fields: texts(&["spec.unschedulable"]),
        merge: Some(&[
            METADATA_LISTS[0],
            METADATA_LISTS[1],
            ("spec.taints", "key"),
            ("status.addresses", "type"),
            ("status.conditions", "type"),
        ]),
        ..Resource::kubernetes("", "Node")
    })
});

/// CustomResourceDefinitions.
pub static CUSTOM_RESOURCE_DEFINITIONS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["crd", "crds"]),
        categories: texts(&["api-extensions"]),
        namespaced: false,
        status: true,
        columns: vec![
            Column::new("Created At", "date", Source::Path(".metadata.creationTimestamp".into()))
                .described("Time at which the object was created."),
        ],
        admit: definition::admit,
        ..Resource::kubernetes("apiextensions.k8s.io", "CustomResourceDefinition")
    })
});

/// ControllerRevisions.
pub static CONTROLLER_REVISIONS: Row = Row::new(|| {
    Arc::new(Resource {
        columns: vec![
            Column::text("Controller", ".metadata.ownerReferences[0].name")
                .described("Name of the object that owns the revision."),
            Column::number("Revision", ".revision")
                .described("Revision of the state that the object represents."),
            Column::age(),
        ],
        ..Resource::kubernetes("apps", "ControllerRevision")
    })
});

/// All of them.
pub fn kubernetes() -> Vec<Arc<Resource>> {
    let rows = [
        &NAMESPACES,
        &CONFIG_MAPS,
        &SECRETS,
        &SERVICE_ACCOUNTS,
        &LEASES,
        &EVENTS,
        &NODES,
        &CUSTOM_RESOURCE_DEFINITIONS,
        &CONTROLLER_REVISIONS,
        &pod::PODS,
        &role::CLUSTER_ROLES,
        &role::CLUSTER_ROLE_BINDINGS,
        &role::ROLES,
        &role::ROLE_BINDINGS,
    ];
    rows.into_iter().map(|row| Arc::clone(row)).chain(workload::rows().into_iter().map(Arc::new)).collect()
}

fn data(object: &Value) -> Value {
    let count = |field| object.get(field).and_then(Value::as_object).map_or(0, serde_json::Map::len);
    json!(count("data") + count("binaryData"))
}

fn secrets(object: &Value) -> Value {
    json!(object.get("secrets").and_then(Value::as_array).map_or(0, Vec::len))
}

fn involved(object: &Value) -> Value {
    let kind = json_path::text(object, ".involvedObject.kind").to_lowercase();
    json!(format!("{kind}/{}", json_path::text(object, ".involvedObject.name")))
}

fn readiness(object: &Value) -> Value {
    let ready = json_path::text(object, ".status.conditions[?(@.type=='Ready')].status") == "True";
    let word = if ready { "Ready" } else { "NotReady" };
    json!(match json_path::text(object, ".spec.unschedulable").as_str() {
        "true" => format!("{word},SchedulingDisabled"),
        _ => word.to_owned(),
    })
}
