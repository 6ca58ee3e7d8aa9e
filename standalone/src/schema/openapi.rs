//! The documents that `kubectl` reads before it writes.

use serde_json::{Map, Value, json};

use super::DEFINITIONS;
use crate::resource::{ALL, Resource};

/// What is said of the server.
const TITLE: &str = "Vireo";

/// OpenAPI 2, as JSON.
pub fn v2() -> Value {
    let paths: Map<String, Value> = ALL
        .iter()
        .flat_map(|row| {
            [
                (collection(row), json!({ "post": operation(row, "post", &PARAMETERS_V2) })),
                (item(row), json!({ "patch": operation(row, "patch", &PARAMETERS_V2) })),
            ]
        })
        .collect();
    let definitions: Map<String, Value> = DEFINITIONS
        .iter()
        .map(|(name, schema)| (full(name), published(name, schema, "#/definitions/")))
        .collect();
    json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "definitions": definitions,
    })
}

/// The same as protobuf, which is all that older clients read.
pub fn v2_protobuf() -> Vec<u8> {
    super::swagger::encode(&v2())
}

/// The groups that have an OpenAPI 3 document, with its place.
pub fn v3_index() -> Value {
    let mut paths = Map::new();
    for row in ALL {
        let at = place(row);
        paths.insert(at.clone(), json!({ "serverRelativeURL": format!("/openapi/v3/{at}") }));
    }
    json!({ "paths": paths })
}

/// The OpenAPI 3 document of a place such as `apis/kubevirt.io/v1`.
pub fn v3(wanted: &str) -> Option<Value> {
    let rows: Vec<&Resource> = ALL.iter().filter(|row| place(row) == wanted).collect();
    if rows.is_empty() {
        return None;
    }
    let mut paths = Map::new();
    for row in &rows {
        paths.insert(collection(row), json!({ "post": operation_v3(row, "post") }));
        paths.insert(item(row), json!({ "patch": operation_v3(row, "patch") }));
    }
    let schemas: Map<String, Value> = DEFINITIONS
        .iter()
        .map(|(name, schema)| (full(name), modern(published(name, schema, "#/components/schemas/"))))
        .collect();
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": TITLE, "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// `api/v1` or `apis/group/version`.
fn place(row: &Resource) -> String {
    match row.group {
        "" => format!("api/{}", row.version),
        group => format!("apis/{group}/{}", row.version),
    }
}

fn collection(row: &Resource) -> String {
    let inside = if row.namespaced { "namespaces/{namespace}/" } else { "" };
    format!("/{}/{inside}{}", place(row), row.plural)
}

fn item(row: &Resource) -> String {
    format!("{}/{{name}}", collection(row))
}

const PARAMETERS: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];

static PARAMETERS_V2: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| {
    json!(PARAMETERS.map(|name| json!({"name": name, "in": "query", "type": "string", "uniqueItems": true})))
});

fn identity(row: &Resource) -> Value {
    json!({"group": row.group, "version": row.version, "kind": row.kind})
}

fn operation(row: &Resource, action: &str, parameters: &Value) -> Value {
    json!({
        "operationId": format!("{action}{}", row.kind),
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": identity(row),
    })
}

fn operation_v3(row: &Resource, action: &str) -> Value {
    let parameters =
        PARAMETERS.map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}));
    operation(row, action, &json!(parameters))
}

/// The name under which a definition is published.
fn full(name: &str) -> String {
    let home = match name {
        "ObjectMeta" | "ListMeta" | "OwnerReference" | "ManagedFieldsEntry" => {
            "io.k8s.apimachinery.pkg.apis.meta.v1"
        }
        "ControllerRevision" => "io.k8s.api.apps.v1",
        "Lease" | "LeaseSpec" => "io.k8s.api.coordination.v1",
        name if super::core::has(name) => "io.k8s.api.core.v1",
        _ => "io.kubevirt.v1",
    };
    format!("{home}.{name}")
}

fn published(name: &str, schema: &Value, home: &str) -> Value {
    let mut schema = schema.clone();
    lead(&mut schema, home);
    let rows: Vec<Value> = ALL.iter().filter(|row| row.kind == name).map(identity).collect();
    if !rows.is_empty() {
        schema["x-kubernetes-group-version-kind"] = json!(rows);
    }
    schema
}

/// Makes references lead to where the definitions are.
fn lead(schema: &mut Value, home: &str) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(name)) = fields.get_mut("$ref") {
                *name = format!("{home}{}", full(name));
            }
            fields.values_mut().for_each(|value| lead(value, home));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| lead(value, home)),
        _ => {}
    }
}

/// OpenAPI 3.0 ignores what stands beside a reference: such references go one level down.
fn modern(mut schema: Value) -> Value {
    match &mut schema {
        Value::Object(fields) => {
            for (_, value) in fields.iter_mut() {
                *value = modern(value.take());
            }
            if fields.len() > 1
                && let Some(target) = fields.remove("$ref")
            {
                fields.insert("allOf".to_owned(), json!([{ "$ref": target }]));
            }
        }
        Value::Array(values) => {
            for value in values.iter_mut() {
                *value = modern(value.take());
            }
        }
        _ => {}
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_find_a_kind_by_its_identity() {
        let document = v2();
        let vmi = &document["definitions"]["io.kubevirt.v1.VirtualMachineInstance"];
        let identity = json!([{"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachineInstance"}]);
        assert_eq!(vmi["x-kubernetes-group-version-kind"], identity);
        let metadata = &vmi["properties"]["metadata"]["$ref"];
        assert_eq!(metadata, "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        let modern = v3("apis/kubevirt.io/v1").unwrap();
        let metadata = &modern["components"]["schemas"]["io.kubevirt.v1.VirtualMachineInstance"]["properties"]
            ["metadata"];
        assert_eq!(
            metadata["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert!(metadata["description"].is_string() && metadata.get("$ref").is_none());
        assert!(v3("apis/none/v1").is_none());
    }
}
