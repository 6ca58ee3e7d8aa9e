//! Whether a schema is structural, and uses only supported keywords.

use regex::Regex;
use serde_json::Value;

use super::{is, list, text};
use crate::resource::Cause;
use crate::schema::rules::{RULES, Rules};
use crate::schema::structural;

/// Schemas in schemas.
const DEEPEST: usize = 48;
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Supported keywords, and those that do not constrain values.
const KNOWN: [&str; 37] = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "description",
    "enum",
    "example",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "externalDocs",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "nullable",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
    "uniqueItems",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    RULES,
];

/// What the values of words are, where it matters.
type Fits = fn(&Value) -> bool;
const WORDS: [(&[&str], Fits, &str); 6] = [
    (
        &["allOf", "anyOf", "enum", "oneOf", "required", "x-kubernetes-list-map-keys", RULES],
        Value::is_array,
        "a list",
    ),
    (&["not", "properties", "items"], Value::is_object, "an object"),
    (&["additionalProperties"], |value| value.is_object() || value.is_boolean(), "an object or a boolean"),
    (
        &["format", "pattern", "type", "x-kubernetes-list-type", "x-kubernetes-map-type"],
        Value::is_string,
        "a text",
    ),
    (&["maximum", "minimum", "multipleOf"], Value::is_number, "a number"),
    (
        &["maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"],
        Value::is_u64,
        "a number that is not negative",
    ),
];

/// What keeps a schema at a path from being used.
pub(super) fn check(schema: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    if text(schema, "/type") != "object" {
        causes.push(Cause::invalid(format!("{at}.type"), "Invalid value: must be object at the root"));
    }
    whole(schema, at, 0, &mut causes);
    if causes.is_empty() {
        causes = Rules::read(schema, at).1;
    }
    causes
}

/// A schema that stands for itself: it has a type.
fn whole(schema: &Value, at: &str, depth: usize, causes: &mut Vec<Cause>) {
    if !part(schema, at, depth, causes) {
        return;
    }
    let kind = text(schema, "/type");
    let free = is(schema, "x-kubernetes-int-or-string") || is(schema, "x-kubernetes-preserve-unknown-fields");
    let typed = TYPES.contains(&kind) || (kind.is_empty() && free);
    if !typed {
        causes.push(Cause::required(
            format!("{at}.type"),
            "Required value: must not be empty for specified object fields",
        ));
    }
    if kind == "array" && schema.get("items").is_none() {
        causes.push(Cause::required(format!("{at}.items"), "Required value: must be specified"));
    }
    let more = schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false));
    if more && schema.get("properties").is_some() {
        let message = "Forbidden: additionalProperties and properties are mutual exclusive";
        causes.push(Cause {
            reason: "FieldValueForbidden",
            ..Cause::invalid(format!("{at}.additionalProperties"), message)
        });
    }
    keyed(schema, at, causes);
    if let Some(presumed) = schema.get("default") {
        let (mut pruned, mut unknown) = (presumed.clone(), Vec::new());
        structural::prune(schema, &mut pruned, "", &mut unknown);
        if !unknown.is_empty() || !structural::validate(schema, presumed).is_empty() {
            causes.push(Cause::invalid(
                format!("{at}.default"),
                "Invalid value: must validate against its own schema",
            ));
        }
    }
}

/// The elements of a list with map keys have these keys.
fn keyed(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let kind = text(schema, "/x-kubernetes-list-type");
    if !["", "atomic", "set", "map"].contains(&kind) {
        causes.push(Cause::unsupported(
            format!("{at}.x-kubernetes-list-type"),
            format!("Unsupported value: {kind:?}: supported values: \"atomic\", \"map\", \"set\""),
        ));
    }
    let keys = list(schema, "/x-kubernetes-list-map-keys");
    if (kind == "map") == keys.is_empty() {
        let message = "Invalid value: must be given with x-kubernetes-list-type map, and only then";
        causes.push(Cause::invalid(format!("{at}.x-kubernetes-list-map-keys"), message));
    }
    let known = |key: &Value| {
        let fields = schema.pointer("/items/properties").and_then(Value::as_object);
        key.as_str().zip(fields).is_some_and(|(key, fields)| fields.contains_key(key))
    };
    if !keys.iter().all(known) {
        let message = "Invalid value: must name properties of the items";
        causes.push(Cause::invalid(format!("{at}.x-kubernetes-list-map-keys"), message));
    }
}

/// Whether to look at the rest of a schema.
fn part(schema: &Value, at: &str, depth: usize, causes: &mut Vec<Cause>) -> bool {
    let Some(fields) = schema.as_object() else {
        causes.push(Cause::invalid(at, "Invalid value: a schema is an object"));
        return false;
    };
    if depth > DEEPEST {
        causes.push(Cause::invalid(at, "Invalid value: schemas are nested too deeply"));
        return false;
    }
    for name in fields.keys().filter(|name| !KNOWN.contains(&name.as_str())) {
        causes.push(Cause::invalid(
            format!("{at}.{name}"),
            "Invalid value: unknown, or not allowed in a structural schema",
        ));
    }
    for (names, fits, what) in WORDS {
        for name in names {
            if fields.get(*name).is_some_and(|value| !fits(value)) {
                causes.push(Cause::invalid(format!("{at}.{name}"), format!("Invalid value: must be {what}")));
            }
        }
    }
    if is(schema, "uniqueItems") {
        causes.push(Cause::invalid(
            format!("{at}.uniqueItems"),
            "Invalid value: use x-kubernetes-list-type set",
        ));
    }
    if Regex::new(text(schema, "/pattern")).is_err() {
        causes.push(Cause::invalid(
            format!("{at}.pattern"),
            "Invalid value: must be a valid regular expression",
        ));
    }
    for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        whole(schema, &format!("{at}.properties[{name}]"), depth + 1, causes);
    }
    if let Some(items) = schema.get("items") {
        whole(items, &format!("{at}.items"), depth + 1, causes);
    }
    if let Some(more) = schema.get("additionalProperties").filter(|more| !more.is_boolean()) {
        whole(more, &format!("{at}.additionalProperties"), depth + 1, causes);
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for (index, schema) in list(schema, &format!("/{name}")).iter().enumerate() {
            logical(schema, &format!("{at}.{name}[{index}]"), depth + 1, causes);
        }
    }
    if let Some(not) = schema.get("not") {
        logical(not, &format!("{at}.not"), depth + 1, causes);
    }
    true
}

/// A schema that only adds constraints: it and its parts need no type.
fn logical(schema: &Value, at: &str, depth: usize, causes: &mut Vec<Cause>) {
    let mut found = Vec::new();
    part(schema, at, depth, &mut found);
    let typeless = |cause: &Cause| cause.reason == "FieldValueRequired" && cause.field.ends_with(".type");
    causes.extend(found.into_iter().filter(|cause| !typeless(cause)));
    for name in ["default", RULES] {
        if schema.get(name).is_some() {
            causes.push(Cause::invalid(
                format!("{at}.{name}"),
                "Invalid value: not allowed inside of a logical junctor",
            ));
        }
    }
}
