//! Validation of a value against a structural schema.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::civil::Date;
use regex::Regex;
use serde_json::{Map, Value};

use super::{field, is};
use crate::cause::Cause;

/// Everything that is wrong with a value, by its field.
pub fn validate(schema: &Value, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    check(schema, value, "", &mut causes);
    causes
}

fn wrong(at: &str, value: &Value, why: &str) -> Cause {
    let shown = match value {
        Value::Object(_) => "\"object\"".to_owned(),
        Value::Array(_) => "\"array\"".to_owned(),
        other => other.to_string(),
    };
    Cause::invalid(at, format!("Invalid value: {shown}: {at} in body {why}"))
}

fn check(schema: &Value, value: &Value, at: &str, causes: &mut Vec<Cause>) {
    if schema.get("$ref").is_some() || (value.is_null() && is(schema, "nullable")) {
        return;
    }
    if !fits_type(schema, value) {
        let wanted = schema.get("type").and_then(Value::as_str).unwrap_or("integer or string");
        causes.push(wrong(at, value, &format!("must be of type {wanted}")));
        return;
    }
    let before = causes.len();
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array).filter(|all| !all.contains(value)) {
        let all: Vec<String> = allowed.iter().map(Value::to_string).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", all.join(", "));
        causes.push(Cause::unsupported(at, message));
    }
    match value {
        Value::Number(_) => number(schema, value, at, causes),
        Value::String(text) => string(schema, text, at, causes),
        Value::Array(values) => array(schema, values, at, causes),
        Value::Object(fields) => object(schema, fields, at, causes),
        Value::Null | Value::Bool(_) => {}
    }
    if causes.len() == before {
        combinations(schema, value, at, causes);
    }
}

fn fits_type(schema: &Value, value: &Value) -> bool {
    let whole =
        value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0);
    if is(schema, "x-kubernetes-int-or-string") {
        return whole || value.is_string();
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => whole,
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    }
}

/// A limit of a schema on a size.
fn size(schema: &Value, name: &str) -> Option<usize> {
    schema.get(name)?.as_u64().and_then(|size| usize::try_from(size).ok())
}

fn number(schema: &Value, value: &Value, at: &str, causes: &mut Vec<Cause>) {
    let Some(number) = value.as_f64() else { return };
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    if let Some(least) = bound("minimum") {
        let above = if is(schema, "exclusiveMinimum") { number > least } else { number >= least };
        if !above {
            causes.push(wrong(at, value, &format!("should be greater than or equal to {least}")));
        }
    }
    if let Some(most) = bound("maximum") {
        let below = if is(schema, "exclusiveMaximum") { number < most } else { number <= most };
        if !below {
            causes.push(wrong(at, value, &format!("should be less than or equal to {most}")));
        }
    }
    if let Some(step) = bound("multipleOf").filter(|step| *step > 0.0)
        && (number / step).fract() != 0.0
    {
        causes.push(wrong(at, value, &format!("should be a multiple of {step}")));
    }
    let fits = match schema.get("format").and_then(Value::as_str) {
        Some("int32") => value.as_i64().is_none_or(|number| i32::try_from(number).is_ok()),
        Some("int64") => !value.is_u64() || value.is_i64(),
        _ => true,
    };
    if !fits {
        causes.push(wrong(at, value, "does not fit its format"));
    }
}

fn string(schema: &Value, text: &str, at: &str, causes: &mut Vec<Cause>) {
    let value = Value::String(text.to_owned());
    let length = text.chars().count();
    if size(schema, "minLength").is_some_and(|least| length < least) {
        causes.push(wrong(at, &value, "is too short"));
    }
    if size(schema, "maxLength").is_some_and(|most| length > most) {
        causes.push(wrong(at, &value, "is too long"));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text))
    {
        causes.push(wrong(at, &value, &format!("should match '{pattern}'")));
    }
    if let Some(format) =
        schema.get("format").and_then(Value::as_str).filter(|format| !has_format(format, text))
    {
        causes.push(wrong(at, &value, &format!("must be of format {format}")));
    }
}

/// Whether a text has a format. As in Kubernetes, an unknown format allows every text.
fn has_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => text.parse::<Timestamp>().is_ok(),
        "date" => text.parse::<Date>().is_ok(),
        "byte" => STANDARD.decode(text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "uuid" => uuid::Uuid::try_parse(text).is_ok(),
        _ => true,
    }
}

fn array(schema: &Value, values: &[Value], at: &str, causes: &mut Vec<Cause>) {
    let whole = Value::Array(Vec::new());
    if size(schema, "minItems").is_some_and(|least| values.len() < least) {
        causes.push(wrong(at, &whole, "has too few items"));
    }
    if size(schema, "maxItems").is_some_and(|most| values.len() > most) {
        causes.push(wrong(at, &whole, "has too many items"));
    }
    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
    let identity = |value: &Value| -> Option<String> {
        match schema.get("x-kubernetes-list-type").and_then(Value::as_str)? {
            "set" => Some(value.to_string()),
            "map" => {
                let of = |key: &Value| value.get(key.as_str()?).map(Value::to_string);
                Some(keys?.iter().map(|key| of(key).unwrap_or_default()).collect::<Vec<_>>().join(","))
            }
            _ => None,
        }
    };
    let mut known = std::collections::BTreeSet::new();
    for (index, value) in values.iter().enumerate() {
        let at = format!("{at}[{index}]");
        if identity(value).is_some_and(|identity| !known.insert(identity)) {
            let message = format!("Duplicate value: {value}");
            causes.push(Cause { reason: "FieldValueDuplicate", ..Cause::invalid(at.clone(), message) });
        }
        if let Some(items) = schema.get("items") {
            check(items, value, &at, causes);
        }
    }
}

fn object(schema: &Value, fields: &Map<String, Value>, at: &str, causes: &mut Vec<Cause>) {
    for name in
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    {
        if !fields.contains_key(name) {
            causes.push(Cause::required(crate::schema::join(at, name), "Required value"));
        }
    }
    let whole = Value::Object(Map::new());
    if size(schema, "minProperties").is_some_and(|least| fields.len() < least) {
        causes.push(wrong(at, &whole, "has too few properties"));
    }
    if size(schema, "maxProperties").is_some_and(|most| fields.len() > most) {
        causes.push(wrong(at, &whole, "has too many properties"));
    }
    for (name, value) in fields {
        if let Some(schema) = field(schema, name) {
            check(schema, value, &crate::schema::join(at, name), causes);
        }
    }
}

fn combinations(schema: &Value, value: &Value, at: &str, causes: &mut Vec<Cause>) {
    let fits = |schema: &Value| {
        let mut causes = Vec::new();
        check(schema, value, at, &mut causes);
        causes.is_empty()
    };
    let all = |name: &str| schema.get(name).and_then(Value::as_array).cloned();
    for schema in all("allOf").into_iter().flatten() {
        check(&schema, value, at, causes);
    }
    if all("anyOf").is_some_and(|some| !some.iter().any(fits)) {
        causes.push(wrong(at, value, "must validate at least one schema (anyOf)"));
    }
    if all("oneOf").is_some_and(|some| some.iter().filter(|schema| fits(schema)).count() != 1) {
        causes.push(wrong(at, value, "must validate one and only one schema (oneOf)"));
    }
    if schema.get("not").is_some_and(fits) {
        causes.push(wrong(at, value, "must not validate the schema (not)"));
    }
}
