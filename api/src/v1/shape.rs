//! How a served object is declared: once, with everything that lenience and lossless round trips need.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// A field that this release does not know, found by [`Shape::strangers`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
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
    fn strangers(&self, at: &str, found: &mut Vec<Stranger>);
}

/// A name this similar is taken for a slip (Jaro-Winkler, 0 to 1).
const SIMILAR_ENOUGH: f64 = 0.85;

pub(crate) fn stranger(at: &str, name: &str, known: &[String]) -> Stranger {
    let lower = name.to_lowercase();
    let similar = known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(score, _)| *score >= SIMILAR_ENOUGH)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.clone());
    Stranger { field: join(at, name), name: name.to_owned(), similar }
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
    fn strangers(&self, at: &str, found: &mut Vec<Stranger>) {
        if let Some(value) = self {
            value.strangers(at, found);
        }
    }
}

impl<T: Shape> Shape for Vec<T> {
    fn strangers(&self, at: &str, found: &mut Vec<Stranger>) {
        for (index, value) in self.iter().enumerate() {
            value.strangers(&format!("{at}[{index}]"), found);
        }
    }
}

impl<T> Shape for BTreeMap<String, T> {
    fn strangers(&self, _: &str, _: &mut Vec<Stranger>) {}
}

macro_rules! leaves {
    ($($leaf:ty),*) => {$(
        impl Shape for $leaf {
            fn strangers(&self, _: &str, _: &mut Vec<Stranger>) {}
        }
    )*};
}
leaves!(bool, i32, i64, u32, u64, String, serde_json::Value);
pub(crate) use leaves;

/// Declares served objects. A field is `name: Type`, written in camel case on the wire unless `= "literal"` says
/// otherwise. Every field may be absent or null; what no field takes is kept in `extra`.
macro_rules! shapes {
    ($($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty $(= $wire:literal)?,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                $(#[$field_meta])*
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
            fn strangers(&self, at: &str, found: &mut Vec<crate::v1::shape::Stranger>) {
                if !self.extra.is_empty() {
                    let known = [$(crate::v1::shape::wire(stringify!($field), &[$($wire)?])),*];
                    found.extend(self.extra.keys().map(|name| crate::v1::shape::stranger(at, name, &known)));
                }
                $(
                    let name = crate::v1::shape::wire(stringify!($field), &[$($wire)?]);
                    self.$field.strangers(&crate::v1::shape::join(at, &name), found);
                )*
            }
        }
    )*};
}
pub(crate) use shapes;
