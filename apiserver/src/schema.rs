//! What the fields of objects are: for `kubectl explain` and `apply`, and to check what clients send of core kinds.
//!
//! Definitions are OpenAPI schemas that refer to each other by short names: [`Definitions`].

mod container;
mod core;
mod extensions;
mod kubernetes;
mod meta;
pub mod openapi;
mod pod;
mod rbac;
pub mod rules;
mod storage;
pub mod structural;
mod swagger;
mod workload;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::resource::Resource;

pub use kubernetes::KUBERNETES;

/// OpenAPI definitions that refer to each other by short names.
#[derive(Debug)]
pub struct Definitions {
    by_name: LazyLock<BTreeMap<String, Value>>,
    package: fn(&str) -> &'static str,
}

impl Definitions {
    /// Definitions that are made when they are first used. `package` is the one under whose name each is published.
    pub const fn new(make: fn() -> BTreeMap<String, Value>, package: fn(&str) -> &'static str) -> Self {
        Self { by_name: LazyLock::new(make), package }
    }

    /// The definition of a name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.by_name.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.by_name.iter()
    }

    /// Names that definitions refer to and that have none.
    pub fn undefined(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.by_name.values().for_each(|definition| references(definition, &mut names));
        names.retain(|name| self.get(name).is_none());
        names
    }

    /// Definitions and their fields that have no description, `Definition.field`.
    pub fn undescribed(&self) -> Vec<String> {
        let lacks = |schema: &Value| {
            schema.get("description").and_then(Value::as_str).is_none_or(|words| words.is_empty())
        };
        let mut found = Vec::new();
        for (name, definition) in self.iter() {
            found.extend(lacks(definition).then(|| name.clone()));
            let fields = definition.get("properties").and_then(Value::as_object).into_iter().flatten();
            found.extend(
                fields.filter(|(_, schema)| lacks(schema)).map(|(field, _)| format!("{name}.{field}")),
            );
        }
        found
    }

    /// The package under whose name a definition is published.
    pub fn package(&self, name: &str) -> &'static str {
        (self.package)(name)
    }

    /// The name under which a definition is published.
    pub fn published(&self, name: &str) -> String {
        format!("{}.{name}", (self.package)(name))
    }
}

/// The names that a schema refers to.
fn references<'a>(schema: &'a Value, names: &mut Vec<&'a str>) {
    match schema {
        Value::Object(fields) => {
            names.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| references(value, names));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, names)),
        _ => {}
    }
}

/// What is found in an object that its definition does not foresee.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Values of a wrong type, for people.
    pub mistyped: Vec<String>,
    /// Paths of unknown fields.
    pub unknown: Vec<String>,
}

/// Checks an object of a core kind or of a CustomResourceDefinition's, and takes out of it what is unknown. Other
/// kinds keep what is unknown and are validated when they are admitted.
pub fn check(resource: &Resource, object: &mut Value) -> Findings {
    let mut findings = Findings::default();
    let definitions = resource.definitions;
    if let Some(custom) = &resource.custom {
        structural::prune(&custom.schema, object, "", &mut findings.unknown);
    }
    let mut walk = Walk { definitions, findings };
    match definitions.get(&resource.kind) {
        Some(definition) if resource.is_kubernetes() => walk.check(definition, object, ""),
        _ => {
            if let (Some(definition), Some(metadata)) =
                (definitions.get("ObjectMeta"), object.get_mut("metadata"))
            {
                walk.check(definition, metadata, "metadata");
            }
        }
    }
    walk.findings
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// A walk through an object by its definition.
struct Walk {
    definitions: &'static Definitions,
    findings: Findings,
}

impl Walk {
    fn check(&mut self, schema: &Value, value: &mut Value, at: &str) {
        if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            if let Some(definition) = self.definitions.get(name) {
                self.check(definition, value, at);
            }
            return;
        }
        if value.is_null() {
            return;
        }
        let expected = schema.get("type").and_then(Value::as_str).unwrap_or_default();
        let fits = match expected {
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            _ => true,
        };
        if !fits {
            self.findings.mistyped.push(format!("{at}: must be of type {expected}"));
            return;
        }
        match value {
            Value::Array(values) => {
                if let Some(items) = schema.get("items") {
                    for (index, value) in values.iter_mut().enumerate() {
                        self.check(items, value, &format!("{at}[{index}]"));
                    }
                }
            }
            Value::Object(fields) => {
                if let Some(known) = schema.get("properties").and_then(Value::as_object) {
                    let unknown: Vec<String> =
                        fields.keys().filter(|name| !known.contains_key(*name)).cloned().collect();
                    for name in unknown {
                        fields.remove(&name);
                        self.findings.unknown.push(join(at, &name));
                    }
                    for (name, value) in fields.iter_mut() {
                        if let Some(schema) = known.get(name) {
                            self.check(schema, value, &join(at, name));
                        }
                    }
                    // As a decoder that knows the type: null means "not given".
                    fields.retain(|_, value| !value.is_null());
                } else if let Some(values) = schema.get("additionalProperties") {
                    for (name, value) in fields.iter_mut() {
                        self.check(values, value, &join(at, name));
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

/// A reference to a definition.
fn reference(name: &str) -> Value {
    json!({ "$ref": name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_kinds_are_checked_and_pruned() {
        let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "odd": 1, "data": {"a": "b", "c": 1},
            "metadata": {"name": "x", "labels": {"a": true}, "strange": {}, "generation": null}});
        let findings = check(&crate::resource::CONFIG_MAPS, &mut map);
        assert_eq!(
            findings.mistyped,
            ["data.c: must be of type string", "metadata.labels.a: must be of type string"]
        );
        assert_eq!(findings.unknown, ["odd", "metadata.strange"]);
        assert_eq!(map["metadata"], json!({"name": "x", "labels": {"a": true}}));
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_kind_has_a_definition() {
        assert_eq!(KUBERNETES.undefined(), [""; 0]);
        for row in crate::resource::kubernetes() {
            assert!(KUBERNETES.get(&row.kind).is_some(), "{}", row.kind);
        }
    }

    #[test]
    fn every_definition_field_and_column_has_a_description() {
        assert_eq!(KUBERNETES.undescribed(), [""; 0]);
        for row in crate::resource::kubernetes() {
            assert_eq!(row.undescribed_columns(), [""; 0], "{}", row.kind);
        }
    }
}
