use serde_json::{Map, Value, json};

use super::limits::size_of;

/// What an object is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// `plural.group`, or the plural alone in the core group.
    pub resource: String,
    /// Empty for what has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// Puts a key together.
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self { resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Whether it names something of this resource, in this namespace if one is given.
    pub fn is_of(&self, resource: &str, namespace: Option<&str>) -> bool {
        self.resource == resource && namespace.is_none_or(|namespace| self.namespace == namespace)
    }
}

/// An object as a write left it.
#[derive(Debug)]
pub struct Object {
    /// What it is called.
    pub key: Key,
    /// The write.
    pub revision: u64,
    /// With the revision as its `metadata.resourceVersion`.
    pub value: Value,
    /// Bytes of JSON, as [`Limits`](super::Limits) count them.
    pub size: usize,
}

impl Object {
    /// Stamps a value with its revision.
    pub fn new(key: Key, revision: u64, value: Value) -> Self {
        let size = size_of(&value);
        Self::sized(key, revision, value, size)
    }

    /// Stamps a value of a known size with its revision.
    pub(super) fn sized(key: Key, revision: u64, mut value: Value, size: usize) -> Self {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), json!(revision.to_string()));
        }
        Self { key, revision, value, size }
    }

    /// Whether a value says the same, its revision aside.
    pub(super) fn is_same(&self, value: &Value) -> bool {
        let (Value::Object(has), Value::Object(new)) = (&self.value, value) else { return false };
        has.len() == new.len()
            && has.iter().all(|(name, has)| match (name.as_str(), new.get(name)) {
                ("metadata", Some(new)) => is_same_metadata(has, new),
                (_, new) => new == Some(has),
            })
    }
}

fn is_same_metadata(has: &Value, new: &Value) -> bool {
    let (Value::Object(has), Value::Object(new)) = (has, new) else { return has == new };
    fn fields(of: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
        of.iter().filter(|(name, _)| *name != "resourceVersion")
    }
    fields(has).eq(fields(new))
}
