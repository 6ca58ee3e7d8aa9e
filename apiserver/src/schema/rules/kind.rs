//! The types of values in a rule, as far as a schema determines them.

use std::fmt;

use serde_json::Value;

use super::name;
use crate::schema::structural::{is, properties};

/// What a value is.
#[derive(Debug, Clone)]
pub(super) enum Kind<'s> {
    /// Nothing is known before a rule runs.
    Any,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Duration,
    Timestamp,
    /// The name of a type.
    Type,
    /// An object with fields of its own, and whether it has what every object has, too.
    Object(&'s Value, bool),
    /// What rules may know of an object's metadata.
    Metadata,
    List(Box<Kind<'s>>),
    /// Its keys are texts.
    Map(Box<Kind<'s>>),
    Optional(Box<Kind<'s>>),
}

impl<'s> Kind<'s> {
    /// What a schema makes of a value; `root` for that of a whole object.
    pub(super) fn of(schema: &'s Value, root: bool) -> Self {
        if schema.get("$ref").is_some() {
            return Kind::Metadata;
        }
        if is(schema, "x-kubernetes-int-or-string") {
            return Kind::Any;
        }
        let text = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default();
        match text("type") {
            "boolean" => Kind::Bool,
            "integer" => Kind::Int,
            "number" => Kind::Double,
            "string" => match text("format") {
                "date" | "date-time" => Kind::Timestamp,
                "duration" => Kind::Duration,
                "byte" => Kind::Bytes,
                _ => Kind::Text,
            },
            "array" => {
                Kind::List(Box::new(schema.get("items").map_or(Kind::Any, |items| Kind::of(items, false))))
            }
            "object" => match schema.get("additionalProperties").filter(|more| more.is_object()) {
                Some(more) if properties(schema).is_none() => Kind::Map(Box::new(Kind::of(more, false))),
                _ => Kind::Object(schema, root || is(schema, "x-kubernetes-embedded-resource")),
            },
            _ => Kind::Any,
        }
    }

    /// The type of a field, by its name in a rule. None if the field does not exist.
    pub(super) fn field(&self, written: &str) -> Option<Self> {
        match self {
            Kind::Any => Some(Kind::Any),
            Kind::Map(of) => Some((**of).clone()),
            Kind::Metadata => ["name", "generateName"].contains(&written).then_some(Kind::Text),
            Kind::Object(_, true) if ["apiVersion", "kind"].contains(&written) => Some(Kind::Text),
            Kind::Object(_, true) if written == "metadata" => Some(Kind::Metadata),
            Kind::Object(schema, _) => {
                let mut fields = properties(schema).into_iter().flatten();
                let found = fields.find(|(known, _)| name::escaped(known).as_deref() == Some(written));
                found.map(|(_, schema)| Kind::of(schema, false))
            }
            Kind::Optional(of) => of.field(written).map(|field| Kind::Optional(Box::new(field))),
            _ => None,
        }
    }

    /// What a macro goes through: elements of lists and keys of maps.
    pub(super) fn each(&self) -> Option<Self> {
        match self {
            Kind::Any => Some(Kind::Any),
            Kind::List(of) => Some((**of).clone()),
            Kind::Map(_) => Some(Kind::Text),
            _ => None,
        }
    }

    /// Whether a value of one kind can equal, or stand for, one of another.
    pub(super) fn fits(&self, other: &Self) -> bool {
        use Kind::{Any, List, Map, Metadata, Null, Object, Optional};
        match (self, other) {
            (Any, _) | (_, Any) | (Null, _) | (_, Null) => true,
            (List(one), List(other)) | (Map(one), Map(other)) | (Optional(one), Optional(other)) => {
                one.fits(other)
            }
            (Object(..) | Map(_) | Metadata, Object(..) | Map(_) | Metadata) => true,
            (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
        }
    }

    /// The more specific one of two types that fit.
    pub(super) fn or(self, other: Self) -> Self {
        match (&self, &other) {
            (Kind::Any | Kind::Null, _) => other,
            (Kind::List(of), Kind::List(_)) if matches!(**of, Kind::Any) => other,
            _ => self,
        }
    }
}

impl fmt::Display for Kind<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Kind::Any => "dyn",
            Kind::Null => "null",
            Kind::Bool => "bool",
            Kind::Int => "int",
            Kind::Uint => "uint",
            Kind::Double => "double",
            Kind::Text => "string",
            Kind::Bytes => "bytes",
            Kind::Duration => "duration",
            Kind::Timestamp => "timestamp",
            Kind::Type => "type",
            Kind::Object(..) | Kind::Metadata => "object",
            Kind::List(of) => return write!(to, "list({of})"),
            Kind::Map(of) => return write!(to, "map(string, {of})"),
            Kind::Optional(of) => return write!(to, "optional({of})"),
        };
        to.write_str(word)
    }
}
