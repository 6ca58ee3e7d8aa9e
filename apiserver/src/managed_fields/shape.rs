//! How the fields of an object hang together, by its schema: what is one value, and what has parts of its own.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::Step;
use crate::resource::Resource;
use crate::schema::Definitions;

/// The type of a field; unknown where no schema speaks of it.
#[derive(Debug, Clone, Copy)]
pub struct Type<'s> {
    definitions: &'static Definitions,
    schema: Option<&'s Value>,
    atomic: bool,
}

/// What a value is made of.
#[derive(Debug)]
pub(super) enum Shape<'s, 'v> {
    /// Itself.
    Leaf,
    /// Fields.
    Fields(&'v Map<String, Value>),
    /// Elements by key, or words.
    Elements(Elements<'s, 'v>),
}

/// The elements of a list that is merged by element.
#[derive(Debug)]
pub(super) struct Elements<'s, 'v> {
    /// In order, each with its step.
    pub(super) list: Vec<(Step, &'v Value)>,
    /// The same by their steps.
    by_step: BTreeMap<Step, &'v Value>,
    /// Their type.
    pub(super) of: Type<'s>,
}

impl<'v> Elements<'_, 'v> {
    /// The element of a step.
    pub(super) fn find(&self, step: &Step) -> Option<&'v Value> {
        self.by_step.get(step).copied()
    }
}

/// How a list is merged.
enum Listing<'s> {
    Whole,
    Words,
    Keyed(Vec<&'s str>),
}

#[cfg(test)]
impl Type<'static> {
    /// The type of a kind's objects, among Kubernetes'.
    pub(super) fn of_kind(kind: &str) -> Self {
        let definitions = &crate::resource::KUBERNETES;
        Type::of(definitions, definitions.get(kind))
    }
}

impl<'s> Type<'s> {
    /// The type of a resource's objects.
    pub fn of_resource(resource: &'s Resource) -> Self {
        let definitions = resource.definitions;
        match &resource.custom {
            Some(custom) => Type::of(definitions, Some(&custom.schema)),
            None => Type::of(definitions, definitions.get(&resource.kind)),
        }
    }
}

impl<'s> Type<'s> {
    fn of(definitions: &'static Definitions, schema: Option<&'s Value>) -> Self {
        let atomic =
            |schema: &Value| schema.get("x-kubernetes-map-type").is_some_and(|kind| kind == "atomic");
        let mut is_atomic = schema.is_some_and(atomic);
        let mut resolved = schema;
        // Definitions refer to others, but not in circles without a field between.
        while let Some(name) = resolved.and_then(|schema| schema.get("$ref")).and_then(Value::as_str) {
            resolved = definitions.get(name);
            is_atomic |= resolved.is_some_and(atomic);
        }
        Self { definitions, schema: resolved, atomic: is_atomic }
    }

    /// The type of a field, and whether the schema knows its name.
    pub(super) fn field(&self, name: &str) -> (Self, bool) {
        let of = |schema| Type::of(self.definitions, schema);
        let Some(schema) = self.schema else { return (of(None), false) };
        match schema.get("properties").and_then(|known| known.get(name)) {
            Some(known) => (of(Some(known)), true),
            None => (of(schema.get("additionalProperties")), false),
        }
    }

    /// The type of a list's elements.
    pub(super) fn items(&self) -> Self {
        Type::of(self.definitions, self.schema.and_then(|schema| schema.get("items")))
    }

    fn listing(&self) -> Listing<'s> {
        let text = |name: &str| self.schema?.get(name)?.as_str();
        match text("x-kubernetes-list-type") {
            Some("set") => Listing::Words,
            Some("map") => {
                let keys = self.schema.and_then(|schema| schema.get("x-kubernetes-list-map-keys"));
                let keys = keys.and_then(Value::as_array).into_iter().flatten();
                Listing::Keyed(keys.filter_map(Value::as_str).collect())
            }
            _ => Listing::Whole,
        }
    }

    /// What a value of this type is made of.
    ///
    /// # Errors
    /// When elements of a list have the same key; the text says which.
    pub(super) fn shape<'v>(&self, value: &'v Value) -> Result<Shape<'s, 'v>, String> {
        match value {
            Value::Object(fields) if !self.atomic => Ok(Shape::Fields(fields)),
            Value::Array(values) => {
                let listing = self.listing();
                let step = |(index, value): (usize, &'v Value)| match &listing {
                    Listing::Whole => Ok(None),
                    Listing::Words => Ok(Some((Step::Word(value.to_string()), value))),
                    Listing::Keyed(keys) => Ok(Some((self.keyed(keys, index, value)?, value))),
                };
                if matches!(listing, Listing::Whole) {
                    return Ok(Shape::Leaf);
                }
                let list = values.iter().enumerate().filter_map(|one| step(one).transpose());
                let list = list.collect::<Result<Vec<_>, String>>()?;
                let mut by_step = BTreeMap::new();
                let mut entries = list.iter();
                if let Some((twice, _)) =
                    entries.find(|(step, value)| by_step.insert(step.clone(), *value).is_some())
                {
                    return Err(format!("duplicate entries for key {twice}"));
                }
                Ok(Shape::Elements(Elements { list, by_step, of: self.items() }))
            }
            _ => Ok(Shape::Leaf),
        }
    }
}

impl Type<'_> {
    /// The step to an element of a list with keys. A key that the element leaves out has its default.
    fn keyed(&self, keys: &[&str], index: usize, value: &Value) -> Result<Step, String> {
        let mut found = Map::new();
        for key in keys {
            let default = || self.items().schema?.get("properties")?.get(key)?.get("default");
            match value.get(key).or_else(default) {
                Some(value) if !value.is_object() && !value.is_array() => {
                    found.insert((*key).to_owned(), value.clone())
                }
                _ => {
                    return Err(format!(
                        "element {index}: associative list with keys has an element that omits key field {key:?}"
                    ));
                }
            };
        }
        Ok(Step::Keyed(Value::Object(found).to_string()))
    }
}
