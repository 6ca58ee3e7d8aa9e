//! How a served object is declared: once, with everything that lenience and lossless round trips need, and the
//! OpenAPI schema that clients get.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// A field that this release does not know, found by [`Shape::unknown_fields`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField {
    /// The whole path, `spec.domain.devices.disks[0].bootorder`.
    pub field: String,
    /// Its last part.
    pub name: String,
    /// The known field it looks like, where one is near enough.
    pub similar: Option<String>,
}

/// Knows its fields.
pub trait Shape {
    /// Adds every unknown field at or below `at`.
    fn unknown_fields(&self, at: &str, found: &mut Vec<UnknownField>);

    /// The OpenAPI schema of a field of this type. Objects are added to `definitions` by the name of their type and
    /// referred to by it: `{"$ref": "DomainSpec"}`.
    fn schema(definitions: &mut BTreeMap<String, Value>) -> Value;
}

/// The words of a doc comment.
pub(crate) fn words(lines: &[&str]) -> Value {
    json!(lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" "))
}

/// How server-side apply merges a list; one without is replaced as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListType {
    /// By element; its objects are distinguished by these fields.
    Map(&'static [&'static str]),
    /// By element; its elements are scalars.
    Set,
}

impl ListType {
    pub(crate) fn mark(self, schema: &mut Value) {
        match self {
            Self::Map(keys) => {
                schema["x-kubernetes-list-type"] = json!("map");
                schema["x-kubernetes-list-map-keys"] = json!(keys);
            }
            Self::Set => schema["x-kubernetes-list-type"] = json!("set"),
        }
    }
}

/// The schema of a field with its words, and with its list type if it is a list that has one.
pub(crate) fn field<T: Shape>(
    definitions: &mut BTreeMap<String, Value>,
    lines: &[&str],
    list_type: &[ListType],
) -> Value {
    let mut schema = T::schema(definitions);
    schema["description"] = words(lines);
    for list_type in list_type {
        list_type.mark(&mut schema);
    }
    schema
}

/// A number or a text, whichever the writer prefers.
pub(crate) fn int_or_string() -> Value {
    json!({ "x-kubernetes-int-or-string": true })
}

/// A name this similar is taken for a slip (Jaro-Winkler, 0 to 1).
const SIMILAR_ENOUGH: f64 = 0.85;

pub(crate) fn unknown_field(at: &str, name: &str, known: &[String]) -> UnknownField {
    let lower = name.to_lowercase();
    let similar = known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(score, _)| *score >= SIMILAR_ENOUGH)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.clone());
    UnknownField { field: join(at, name), name: name.to_owned(), similar }
}

/// The name of a field on the wire: the given literal, else the field's own in camel case.
pub(crate) fn wire(field: &str, literal: &[&str]) -> String {
    if let Some(literal) = literal.first() {
        return (*literal).to_owned();
    }
    let mut parts = field.split('_');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut letters = part.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(letters.as_str());
    }
    name
}

pub(crate) fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// A JSON `null` means "not given", as everywhere in Kubernetes.
pub(crate) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl<T: Shape> Shape for Option<T> {
    fn unknown_fields(&self, at: &str, found: &mut Vec<UnknownField>) {
        if let Some(value) = self {
            value.unknown_fields(at, found);
        }
    }

    fn schema(definitions: &mut BTreeMap<String, Value>) -> Value {
        T::schema(definitions)
    }
}

impl<T: Shape> Shape for Box<T> {
    fn unknown_fields(&self, at: &str, found: &mut Vec<UnknownField>) {
        (**self).unknown_fields(at, found);
    }

    fn schema(definitions: &mut BTreeMap<String, Value>) -> Value {
        T::schema(definitions)
    }
}

impl<T: Shape> Shape for Vec<T> {
    fn unknown_fields(&self, at: &str, found: &mut Vec<UnknownField>) {
        for (index, value) in self.iter().enumerate() {
            value.unknown_fields(&format!("{at}[{index}]"), found);
        }
    }

    fn schema(definitions: &mut BTreeMap<String, Value>) -> Value {
        json!({"type": "array", "items": T::schema(definitions)})
    }
}

impl<T: Shape> Shape for BTreeMap<String, T> {
    fn unknown_fields(&self, _: &str, _: &mut Vec<UnknownField>) {}

    fn schema(definitions: &mut BTreeMap<String, Value>) -> Value {
        json!({"type": "object", "additionalProperties": T::schema(definitions)})
    }
}

/// Types without fields, with their schemas.
macro_rules! leaves {
    ($($leaf:ty => $schema:expr),* $(,)?) => {$(
        impl Shape for $leaf {
            fn unknown_fields(&self, _: &str, _: &mut Vec<UnknownField>) {}

            fn schema(_: &mut std::collections::BTreeMap<String, serde_json::Value>) -> serde_json::Value {
                $schema
            }
        }
    )*};
}
leaves!(
    bool => json!({"type": "boolean"}),
    i32 => json!({"type": "integer", "format": "int32"}),
    i64 => json!({"type": "integer", "format": "int64"}),
    u32 => json!({"type": "integer", "format": "int64"}),
    u64 => json!({"type": "integer", "format": "int64"}),
    f64 => json!({"type": "number"}),
    String => json!({"type": "string"}),
    Value => json!({"x-kubernetes-preserve-unknown-fields": true}),
);
pub(crate) use leaves;

/// Declares served objects. A field is `name: Type`, written in camel case on the wire unless `= "literal"` says
/// otherwise; `=> ListType` follows where server-side apply merges the list by element. `struct Name: atomic` is always
/// replaced as a whole. Every field may be absent or null; what no field takes is kept in `extra`.
macro_rules! shapes {
    ($($(#[doc = $doc:literal])* pub struct $name:ident $(: $map_type:ident)? {
        $($(#[doc = $field_doc:literal])* pub $field:ident: $type:ty $(= $wire:literal)? $(=> $list_type:expr)?,)*
    })*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                $(#[doc = $field_doc])*
                $(#[serde(rename = $wire)])?
                #[serde(
                    default,
                    deserialize_with = "crate::v1::shape::null_is_default",
                    skip_serializing_if = "crate::v1::shape::is_default"
                )]
                pub $field: $type,
            )*
            /// Fields unknown to this release, kept as they came.
            #[serde(flatten)]
            pub extra: std::collections::BTreeMap<String, serde_json::Value>,
        }

        impl crate::v1::shape::Shape for $name {
            fn unknown_fields(&self, at: &str, found: &mut Vec<crate::v1::shape::UnknownField>) {
                if !self.extra.is_empty() {
                    let known = [$(crate::v1::shape::wire(stringify!($field), &[$($wire)?])),*];
                    found.extend(self.extra.keys().map(|name| crate::v1::shape::unknown_field(at, name, &known)));
                }
                $(
                    let name = crate::v1::shape::wire(stringify!($field), &[$($wire)?]);
                    self.$field.unknown_fields(&crate::v1::shape::join(at, &name), found);
                )*
            }

            fn schema(
                definitions: &mut std::collections::BTreeMap<String, serde_json::Value>,
            ) -> serde_json::Value {
                use crate::v1::shape;
                let name = stringify!($name);
                if !definitions.contains_key(name) {
                    // Before its fields, which may lead back here.
                    definitions.insert(name.to_owned(), serde_json::Value::Null);
                    let properties: serde_json::Map<_, _> = [$((
                        shape::wire(stringify!($field), &[$($wire)?]),
                        shape::field::<$type>(definitions, &[$($field_doc),*], &[$($list_type)?]),
                    )),*]
                    .into_iter()
                    .collect();
                    let about = shape::words(&[$($doc),*]);
                    let mut object = serde_json::json!({
                        "type": "object", "description": about, "properties": properties,
                    });
                    for map_type in <[&str]>::iter(&[$(stringify!($map_type))?]) {
                        object["x-kubernetes-map-type"] = serde_json::json!(map_type);
                    }
                    definitions.insert(name.to_owned(), object);
                }
                serde_json::json!({ "$ref": name })
            }
        }
    )*};
}
pub(crate) use shapes;
