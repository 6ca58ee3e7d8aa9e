//! What the fields of objects are: for `kubectl explain` and `apply`, and to check what clients send of core kinds.
//!
//! Definitions are OpenAPI schemas that refer to each other by short names; KubeVirt's come from the very types that
//! read them, with their comments as the words of `kubectl explain`.

mod core;
pub mod openapi;
#[cfg(test)]
mod parity;
mod rbac;
pub mod rules;
pub mod structural;
mod swagger;
mod workload;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};
use vireo_api::v1::{
    Shape as _, VirtualMachine, VirtualMachineClusterInstancetype, VirtualMachineClusterPreference,
    VirtualMachineInstance, VirtualMachineInstanceReplicaSet, VirtualMachineInstancetype, VirtualMachinePool,
    VirtualMachinePreference,
};

use crate::resource::Resource;

/// All definitions by short name.
pub static DEFINITIONS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let mut definitions = BTreeMap::new();
    VirtualMachineInstance::schema(&mut definitions);
    VirtualMachine::schema(&mut definitions);
    VirtualMachineInstanceReplicaSet::schema(&mut definitions);
    VirtualMachinePool::schema(&mut definitions);
    VirtualMachineInstancetype::schema(&mut definitions);
    VirtualMachineClusterInstancetype::schema(&mut definitions);
    VirtualMachinePreference::schema(&mut definitions);
    VirtualMachineClusterPreference::schema(&mut definitions);
    // What every kind has is described once, and more fully than the part that the machine looks at.
    definitions.extend(core::definitions());
    definitions
});

/// What is found in an object that its definition does not foresee.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Values of a wrong type, for people.
    pub mistyped: Vec<String>,
    /// Paths of unknown fields.
    pub unknown: Vec<String>,
}

/// Checks an object of a core kind or of a CustomResourceDefinition's, and takes out of it what is unknown. KubeVirt's
/// kinds keep what is unknown and are judged when they are admitted.
pub fn check(resource: &Resource, object: &mut Value) -> Findings {
    let mut findings = Findings::default();
    let kind = &*resource.kind;
    if let Some(custom) = &resource.custom {
        structural::prune(&custom.schema, object, "", &mut findings.unknown);
    }
    match DEFINITIONS.get(kind) {
        Some(definition) if core::has(kind) && resource.custom.is_none() => {
            walk(definition, object, "", &mut findings)
        }
        _ => {
            if let (Some(definition), Some(metadata)) =
                (DEFINITIONS.get("ObjectMeta"), object.get_mut("metadata"))
            {
                walk(definition, metadata, "metadata", &mut findings);
            }
        }
    }
    findings
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

fn walk(schema: &Value, value: &mut Value, at: &str, findings: &mut Findings) {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        if let Some(definition) = DEFINITIONS.get(name) {
            walk(definition, value, at, findings);
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
        findings.mistyped.push(format!("{at}: this is no {expected}"));
        return;
    }
    match value {
        Value::Array(values) => {
            if let Some(items) = schema.get("items") {
                for (index, value) in values.iter_mut().enumerate() {
                    walk(items, value, &format!("{at}[{index}]"), findings);
                }
            }
        }
        Value::Object(fields) => {
            if let Some(known) = schema.get("properties").and_then(Value::as_object) {
                let unknown: Vec<String> =
                    fields.keys().filter(|name| !known.contains_key(*name)).cloned().collect();
                for name in unknown {
                    fields.remove(&name);
                    findings.unknown.push(join(at, &name));
                }
                for (name, value) in fields.iter_mut() {
                    if let Some(schema) = known.get(name) {
                        walk(schema, value, &join(at, name), findings);
                    }
                }
                // As a decoder that knows the type: null means "not given".
                fields.retain(|_, value| !value.is_null());
            } else if let Some(values) = schema.get("additionalProperties") {
                for (name, value) in fields.iter_mut() {
                    walk(values, value, &join(at, name), findings);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
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
        let findings = check(crate::resource::named("configmaps").unwrap(), &mut map);
        assert_eq!(findings.mistyped, ["data.c: this is no string", "metadata.labels.a: this is no string"]);
        assert_eq!(findings.unknown, ["odd", "metadata.strange"]);
        assert_eq!(map["metadata"], json!({"name": "x", "labels": {"a": true}}));
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_kind_has_a_definition() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(values) => values.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        DEFINITIONS.values().for_each(|definition| references(definition, &mut found));
        assert!(found.len() > 100, "KubeVirt's types are among them");
        for name in found.iter().map(String::as_str).chain(crate::resource::ALL.iter().map(|row| &*row.kind))
        {
            assert!(DEFINITIONS.contains_key(name), "{name}");
        }
    }
}
