//! What the fields of objects are: for `kubectl explain` and `apply`, and to check what clients send of core kinds.
//!
//! Definitions are OpenAPI schemas that refer to each other by short names: [`Definitions`].

mod container;
mod core;
mod extensions;
mod meta;
mod pod;
pub(crate) mod prune;
pub(crate) mod rbac;
pub mod rules;
mod storage;
pub mod structural;
mod workload;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};

pub(crate) use self::core::Definition;
pub use prune::Findings;

/// The tables of all definitions of Kubernetes' kinds.
pub(crate) const TABLES: [&[Definition]; 8] = [
    core::DEFINITIONS,
    meta::DEFINITIONS,
    extensions::DEFINITIONS,
    storage::DEFINITIONS,
    rbac::DEFINITIONS,
    workload::DEFINITIONS,
    pod::DEFINITIONS,
    container::DEFINITIONS,
];

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

pub(crate) fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// A reference to a definition.
pub(crate) fn reference(name: &str) -> Value {
    json!({ "$ref": name })
}
