//! Type checks and pruning of objects by their OpenAPI definitions.

use serde_json::Value;

use super::{Definitions, join};

/// What is found in an object that its definition does not foresee.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Values of a wrong type, for people.
    pub mistyped: Vec<String>,
    /// Paths of unknown fields.
    pub unknown: Vec<String>,
}

/// A walk through an object by its definition.
pub(crate) struct Walk {
    pub(crate) definitions: &'static Definitions,
    pub(crate) findings: Findings,
}

impl Walk {
    /// Checks a value at a path and removes its unknown fields.
    pub(crate) fn check(&mut self, schema: &Value, value: &mut Value, at: &str) {
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
