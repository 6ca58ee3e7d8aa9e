//! Structural schemas of CustomResourceDefinitions applied to objects: unknown fields are pruned, defaults are added, and
//! values are validated.

mod validation;

use serde_json::{Map, Value};

pub use validation::validate;

/// Fields of an embedded object that its schema may omit.
const EMBEDDED: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Whether a boolean keyword of a schema is true.
pub(super) fn is(schema: &Value, question: &str) -> bool {
    schema.get(question).and_then(Value::as_bool).unwrap_or_default()
}

/// The schemas of fields with names of their own.
pub(super) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// The schema of a field; nothing where there is none, or where anything goes.
pub(super) fn field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let known = properties(schema).and_then(|known| known.get(name));
    known.or_else(|| schema.get("additionalProperties").filter(|more| more.is_object()))
}

/// Takes out what a schema does not know, and returns its paths; and nulls where nothing may be null.
pub fn prune(schema: &Value, value: &mut Value, at: &str, unknown: &mut Vec<String>) {
    // Metadata is looked at elsewhere.
    if schema.get("$ref").is_some() {
        return;
    }
    match value {
        Value::Object(fields) => {
            let keeps = is(schema, "x-kubernetes-preserve-unknown-fields")
                || schema.get("additionalProperties").is_some_and(|more| *more == Value::Bool(true));
            let embedded = is(schema, "x-kubernetes-embedded-resource");
            let stays =
                |name: &str| keeps || field(schema, name).is_some() || (embedded && EMBEDDED.contains(&name));
            let undeclared: Vec<String> = fields.keys().filter(|name| !stays(name)).cloned().collect();
            for name in undeclared {
                fields.remove(&name);
                unknown.push(super::join(at, &name));
            }
            fields.retain(|name, value| {
                !value.is_null() || field(schema, name).is_none_or(|schema| is(schema, "nullable"))
            });
            for (name, value) in fields.iter_mut() {
                if let Some(schema) = field(schema, name) {
                    prune(schema, value, &super::join(at, name), unknown);
                }
            }
        }
        Value::Array(values) => {
            if let Some(items) = schema.get("items") {
                for (index, value) in values.iter_mut().enumerate() {
                    prune(items, value, &format!("{at}[{index}]"), unknown);
                }
            }
        }
        _ => {}
    }
}

/// Adds defaults of absent fields.
pub fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, schema) in properties(schema).into_iter().flatten() {
                if let Some(presumed) = schema.get("default").filter(|_| !fields.contains_key(name)) {
                    fields.insert(name.clone(), presumed.clone());
                }
            }
            for (name, value) in fields.iter_mut() {
                if let Some(schema) = field(schema, name) {
                    default(schema, value);
                }
            }
        }
        Value::Array(values) => {
            if let Some(items) = schema.get("items") {
                values.iter_mut().for_each(|value| default(items, value));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
