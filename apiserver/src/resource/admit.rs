//! Defaulting and validation of objects before they are stored.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::cause::Cause;
use crate::meta;

pub(super) fn nothing(_: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    Vec::new()
}

pub(super) fn namespace(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let name = meta::text(new, "name").to_owned();
    let metadata = meta::of(new);
    let labels = metadata.entry("labels").or_insert_with(|| json!({}));
    if let Some(labels) = labels.as_object_mut() {
        labels.insert("kubernetes.io/metadata.name".to_owned(), json!(name));
    }
    if old.is_none() {
        new["spec"] = json!({"finalizers": ["kubernetes"]});
        new["status"] = json!({"phase": "Active"});
    }
    Vec::new()
}

/// Keys of configmaps and secrets.
pub(super) fn data_keys(object: &Value, field: &str) -> Vec<Cause> {
    let fits = |key: &str| {
        !key.is_empty()
            && key.len() <= 253
            && key != "."
            && key != ".."
            && key.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
    };
    let keys = object.get(field).and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let wrong = keys.filter(|key| !fits(key));
    wrong
        .map(|key| {
            let message = format!("Invalid value: {key:?}: a valid config key must consist of alphanumeric characters, '-', '_' or '.'");
            Cause::invalid(format!("{field}[{key}]"), message)
        })
        .collect()
}

/// Fields in which text must be base64.
pub(super) fn base64(object: &Value, field: &str) -> Vec<Cause> {
    let entries = object.get(field).and_then(Value::as_object).into_iter().flatten();
    let wrong =
        entries.filter(|(_, value)| value.as_str().is_some_and(|text| STANDARD.decode(text).is_err()));
    wrong
        .map(|(key, _)| Cause::invalid(format!("{field}[{key}]"), "Invalid value: must be base64-encoded"))
        .collect()
}

/// Bytes of all values of a ConfigMap or Secret.
const MOST_DATA: usize = 1 << 20;

/// What a ConfigMap or Secret is refused for if its values have more bytes than allowed.
pub(super) fn too_long(bytes: usize) -> Option<Cause> {
    let message = format!("Too long: must have at most {MOST_DATA} bytes");
    (bytes > MOST_DATA).then(|| Cause { reason: "FieldValueTooLong", ..Cause::invalid("data", message) })
}

/// Bytes of the texts in a field.
fn bytes_of(object: &Value, field: &str) -> usize {
    let values = object.get(field).and_then(Value::as_object).into_iter().flat_map(Map::values);
    values.filter_map(Value::as_str).map(str::len).sum()
}

/// The same of what the texts stand for in base64.
pub(super) fn decoded_bytes_of(object: &Value, field: &str) -> usize {
    let values = object.get(field).and_then(Value::as_object).into_iter().flat_map(Map::values);
    let decoded = |text: &str| text.trim_end_matches('=').len() * 3 / 4;
    values.filter_map(Value::as_str).map(decoded).sum()
}

/// What was made immutable stays.
pub(super) fn immutable(new: &Value, old: Option<&Value>, fields: &[&str]) -> Vec<Cause> {
    let Some(old) = old.filter(|old| old.get("immutable") == Some(&json!(true))) else { return Vec::new() };
    let changed = fields.iter().filter(|field| new.get(**field) != old.get(**field));
    changed
        .map(|field| Cause::forbidden(*field, "Forbidden: field is immutable when `immutable` is set"))
        .collect()
}

pub(super) fn config_map(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = data_keys(new, "data");
    causes.extend(data_keys(new, "binaryData"));
    causes.extend(base64(new, "binaryData"));
    causes.extend(too_long(bytes_of(new, "data") + decoded_bytes_of(new, "binaryData")));
    let texts = new.get("data").and_then(Value::as_object);
    let twice =
        texts.into_iter().flat_map(Map::keys).filter(|key| new["binaryData"].get(key.as_str()).is_some());
    causes.extend(twice.map(|key| {
        Cause::invalid(
            format!("data[{key}]"),
            format!("Invalid value: {key:?}: duplicate of key present in binaryData"),
        )
    }));
    causes.extend(immutable(new, old, &["data", "binaryData", "immutable"]));
    causes
}

pub(super) fn event(new: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    let about = new.pointer("/involvedObject/namespace").and_then(Value::as_str).unwrap_or_default();
    let lives = meta::text(new, "namespace");
    let fits = about == lives || (about.is_empty() && lives == "default");
    if fits {
        return Vec::new();
    }
    let message = format!("Invalid value: {about:?}: does not match event.namespace");
    vec![Cause::invalid("involvedObject.namespace", message)]
}

/// What makes pods.
pub(super) fn pod(_: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    let message = "Forbidden: no pods run here";
    vec![Cause::forbidden("spec", message)]
}

/// What leads to pods.
pub(super) fn service(_: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    let message = "Forbidden: services are not supported here";
    vec![Cause::forbidden("spec", message)]
}

pub(super) fn lease(new: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    let least = [
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ];
    let wrong = least.into_iter().filter_map(|(field, least, why)| {
        let has = new.get("spec")?.get(field)?.as_i64().filter(|has| *has < least)?;
        Some(Cause::invalid(format!("spec.{field}"), format!("Invalid value: {has}: {why}")))
    });
    let times = ["acquireTime", "renewTime"].into_iter().filter_map(|field| {
        let has = new.get("spec")?.get(field)?.as_str()?;
        let why = has.parse::<Timestamp>().err()?;
        Some(Cause::invalid(format!("spec.{field}"), format!("Invalid value: {has:?}: {why}")))
    });
    wrong.chain(times).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_maps_are_valid_and_unique() {
        let mut odd = json!({"metadata": {}, "data": {"../x": "y"}});
        assert_eq!(config_map(&mut odd, None)[0].field, "data[../x]");
        let mut twice = json!({"metadata": {}, "data": {"a": "b"}, "binaryData": {"a": "aGk="}});
        assert_eq!(config_map(&mut twice, None)[0].field, "data[a]");
        let mut fixed = json!({"immutable": true, "data": {"a": "1"}});
        let old = json!({"immutable": true, "data": {"a": "2"}});
        assert_eq!(config_map(&mut fixed, Some(&old))[0].field, "data");
    }

    #[test]
    fn a_map_has_at_most_a_mebibyte() {
        for (data, binary, fits) in [
            ("x".repeat(MOST_DATA), String::new(), true),
            ("\n".repeat(MOST_DATA), String::new(), true),
            ("x".repeat(MOST_DATA + 1), String::new(), false),
            ("x".to_owned(), STANDARD.encode(vec![0; MOST_DATA - 1]), true),
            ("x".to_owned(), STANDARD.encode(vec![0; MOST_DATA]), false),
        ] {
            let mut map = json!({"data": {"a": data}, "binaryData": {"b": binary}});
            let causes = config_map(&mut map, None);
            let found = causes.iter().map(|cause| (cause.field.as_str(), cause.message.as_str()));
            let expected = ("data", "Too long: must have at most 1048576 bytes");
            assert_eq!(found.collect::<Vec<_>>(), if fits { vec![] } else { vec![expected] });
        }
    }

    #[test]
    fn leases_have_durations_and_times() {
        for (spec, wrong) in [
            (json!({"leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.123456Z"}), vec![]),
            (
                json!({"leaseDurationSeconds": 0, "leaseTransitions": -1}),
                vec!["spec.leaseDurationSeconds", "spec.leaseTransitions"],
            ),
            (json!({"acquireTime": "yesterday"}), vec!["spec.acquireTime"]),
        ] {
            let causes = lease(&mut json!({ "spec": spec }), None);
            assert_eq!(causes.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(), wrong);
        }
    }
}
