//! The definitions of Kubernetes' kinds, made of the tables.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::schema::{Definition, Definitions, TABLES, rbac, reference};

/// Kinds whose resources the composing program serves, if it provides storage.
const STORAGE: [&str; 3] = ["PersistentVolume", "PersistentVolumeClaim", "StorageClass"];

/// All of them, as OpenAPI schemas.
pub static KUBERNETES: Definitions = Definitions::new(definitions, package);

fn definitions() -> BTreeMap<String, Value> {
    let rows = super::kubernetes();
    let is_kind = |name: &str| STORAGE.contains(&name) || rows.iter().any(|row| row.kind == name);
    let mut definitions: BTreeMap<String, Value> =
        TABLES.into_iter().flatten().map(|row| (row.0.to_owned(), definition(row, is_kind(row.0)))).collect();
    if let Some(selector) = definitions.get_mut("LabelSelector") {
        selector["x-kubernetes-map-type"] = json!("atomic");
    }
    // A key of the list of ports, which manifests may leave out.
    if let Some(port) = definitions.get_mut("ContainerPort") {
        port["properties"]["protocol"]["default"] = json!("TCP");
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
        name if rbac::DEFINITIONS.iter().any(|(known, ..)| *known == name) => "io.k8s.api.rbac.v1",
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
        let metadata = ("metadata", "ObjectMeta", "Standard object metadata.");
        let version = (
            "apiVersion",
            "string",
            "Versioned schema of this representation of the object: group and version.",
        );
        let kind = (
            "kind",
            "string",
            "REST resource that this object represents, in CamelCase. It cannot be updated.",
        );
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
                list["x-kubernetes-list-map-keys"] = key.split(',').collect();
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
