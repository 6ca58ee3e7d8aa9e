//! The documents that `kubectl` reads before it writes.

mod swagger;

use serde_json::{Map, Value, json};

use crate::resource::Resource;
use crate::schema::Definitions;
use crate::served_resources::ServedResources;

/// The title of the documents.
const TITLE: &str = "Vireo";

/// OpenAPI 2, as JSON.
pub fn v2(served: &ServedResources) -> Value {
    let paths: Map<String, Value> = served
        .all()
        .flat_map(|row| {
            [
                (collection(row), json!({ "post": operation(row, "post", &PARAMETERS_V2) })),
                (item(row), json!({ "patch": operation(row, "patch", &PARAMETERS_V2) })),
            ]
        })
        .collect();
    let definitions = definitions(served, "#/definitions/");
    json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "definitions": definitions,
    })
}

/// The same as protobuf, which is all that older clients read.
pub fn v2_protobuf(served: &ServedResources) -> Vec<u8> {
    swagger::encode(&v2(served))
}

/// The groups that have an OpenAPI 3 document, with its path.
pub fn v3_index(served: &ServedResources) -> Value {
    let mut paths = Map::new();
    for row in served.all() {
        let at = path(row);
        paths.insert(at.clone(), json!({ "serverRelativeURL": format!("/openapi/v3/{at}") }));
    }
    json!({ "paths": paths })
}

/// The OpenAPI 3 document of a group version such as `apis/kubevirt.io/v1`.
pub fn v3(served: &ServedResources, wanted: &str) -> Option<Value> {
    let rows: Vec<&Resource> = served.all().map(|row| &**row).filter(|row| path(row) == wanted).collect();
    if rows.is_empty() {
        return None;
    }
    let mut paths = Map::new();
    for row in &rows {
        paths.insert(collection(row), json!({ "post": operation_v3(row, "post") }));
        paths.insert(item(row), json!({ "patch": operation_v3(row, "patch") }));
    }
    let schemas = definitions(served, "#/components/schemas/");
    let schemas: Map<String, Value> =
        schemas.into_iter().map(|(name, schema)| (name, modern(schema))).collect();
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": TITLE, "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// `api/v1` or `apis/group/version`.
fn path(row: &Resource) -> String {
    match &*row.group {
        "" => format!("api/{}", row.version),
        group => format!("apis/{group}/{}", row.version),
    }
}

fn collection(row: &Resource) -> String {
    let inside = if row.namespaced { "namespaces/{namespace}/" } else { "" };
    format!("/{}/{inside}{}", path(row), row.plural)
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

/// All definitions as they are published; references lead to `home`.
fn definitions(served: &ServedResources, home: &str) -> Map<String, Value> {
    let mut families: Vec<&'static Definitions> = Vec::new();
    for row in served.all() {
        if !families.iter().any(|known| std::ptr::eq(*known, row.definitions)) {
            families.push(row.definitions);
        }
    }
    let known = families.into_iter().flat_map(|family| {
        family.iter().map(move |(name, schema)| {
            let kind = |row: &&std::sync::Arc<Resource>| row.custom.is_none() && row.kind == *name;
            let identities = served.all().filter(kind).map(|row| identity(row)).collect();
            (family.published(name), published(family, schema, identities, home))
        })
    });
    let custom = served.all().filter_map(|row| {
        let group: Vec<&str> = row.group.rsplit('.').collect();
        let name = format!("{}.{}.{}", group.join("."), row.version, row.kind);
        Some((name, published(row.definitions, &row.custom.as_ref()?.schema, vec![identity(row)], home)))
    });
    known.chain(custom).collect()
}

fn published(family: &Definitions, schema: &Value, identities: Vec<Value>, home: &str) -> Value {
    let mut schema = schema.clone();
    lead(family, &mut schema, home);
    if !identities.is_empty() {
        schema["x-kubernetes-group-version-kind"] = json!(identities);
    }
    schema
}

/// Makes references lead to where the definitions are.
fn lead(family: &Definitions, schema: &mut Value, home: &str) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(name)) = fields.get_mut("$ref") {
                *name = format!("{home}{}", family.published(name));
            }
            fields.values_mut().for_each(|value| lead(family, value, home));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| lead(family, value, home)),
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
        let document = v2(&ServedResources::default());
        let lease = &document["definitions"]["io.k8s.api.coordination.v1.Lease"];
        let identity = json!([{"group": "coordination.k8s.io", "version": "v1", "kind": "Lease"}]);
        assert_eq!(lease["x-kubernetes-group-version-kind"], identity);
        let metadata = &lease["properties"]["metadata"]["$ref"];
        assert_eq!(metadata, "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        let modern = v3(&ServedResources::default(), "apis/coordination.k8s.io/v1").unwrap();
        let schemas = &modern["components"]["schemas"];
        let metadata = &schemas["io.k8s.api.coordination.v1.Lease"]["properties"]["metadata"];
        assert_eq!(
            metadata["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert!(metadata["description"].is_string() && metadata.get("$ref").is_none());
        assert!(v3(&ServedResources::default(), "apis/none/v1").is_none());
    }
}
