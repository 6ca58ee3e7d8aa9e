//! What the server does to every object's `metadata`, and the rules of names.

mod problems;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

pub use problems::{odd_finalizers, problems};

/// The finalizer of a foreground deletion, which waits for dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of a deletion that orphans dependents.
pub const ORPHAN: &str = "orphan";
/// The finalizer of a CustomResourceDefinition until all objects of its kind are deleted.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Letters and digits of generated names; as Kubernetes' without vowels and look-alikes.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
/// RFC 1123.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// The current time as the API writes it: RFC 3339, in seconds.
pub fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// The time in so many seconds, in the same form.
pub fn after_now(seconds: i64) -> String {
    let then = Timestamp::now().as_second().saturating_add(seconds);
    Timestamp::from_second(then).unwrap_or(Timestamp::MAX).to_string()
}

/// The current time in microseconds, as `MicroTime` has it.
pub fn now_micro() -> String {
    format!("{:.6}", Timestamp::now())
}

/// The value of an annotation, unless it is empty.
pub fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    let text = object.get("metadata")?.get("annotations")?.get(name)?.as_str()?;
    (!text.is_empty()).then_some(text)
}

/// The `metadata` of an object, made where it is absent.
pub fn of(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let fields = match object {
        Value::Object(fields) => fields,
        _ => unreachable!("it was just made an object"),
    };
    let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
    if !metadata.is_object() {
        *metadata = json!({});
    }
    match metadata {
        Value::Object(metadata) => metadata,
        _ => unreachable!("it was just made an object"),
    }
}

/// A text in `metadata`; empty where it is absent.
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<String> {
    let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Takes one finalizer away.
pub fn remove_finalizer(object: &mut Value, finalizer: &str) {
    let kept: Vec<String> = finalizers(object).into_iter().filter(|one| one != finalizer).collect();
    let metadata = of(object);
    if kept.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), json!(kept));
    }
}

/// Whether its deletion was asked for.
pub fn is_being_deleted(object: &Value) -> bool {
    !text(object, "deletionTimestamp").is_empty()
}

/// A name from a prefix.
pub fn made_up(prefix: &str) -> String {
    let most = LONGEST_LABEL - SUFFIX;
    let prefix: String = prefix.chars().take(most).collect();
    let bytes = Uuid::new_v4().into_bytes();
    let letter = |byte: &u8| LETTERS.get(usize::from(*byte) % LETTERS.len()).copied().unwrap_or(b'x');
    let tail: String = bytes.iter().take(SUFFIX).map(letter).map(char::from).collect();
    prefix + &tail
}

/// Sets the fields that only the server sets in a new object.
pub fn create(object: &mut Value, namespace: &str, name: &str) {
    let metadata = of(object);
    for field in ["resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        metadata.remove(field);
    }
    metadata.insert("name".to_owned(), json!(name));
    if namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".to_owned(), json!(namespace));
    }
    metadata.insert("uid".to_owned(), json!(Uuid::new_v4().to_string()));
    metadata.insert("creationTimestamp".to_owned(), json!(now()));
    metadata.insert("generation".to_owned(), json!(1));
    tidy(metadata);
}

/// Keeps what no update changes.
pub fn update(object: &mut Value, before: &Value) {
    let metadata = of(object);
    let fixed = [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
    ];
    for field in fixed {
        match before.get("metadata").and_then(|metadata| metadata.get(field)) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
    metadata.remove("selfLink");
    tidy(metadata);
}

/// Counts a change of what is wanted: of everything but `metadata` and `status`.
pub fn count_generation(object: &mut Value, before: &Value) {
    let wanted = |object: &Value| {
        let mut wanted = object.clone();
        if let Some(fields) = wanted.as_object_mut() {
            fields.remove("metadata");
            fields.remove("status");
        }
        wanted
    };
    if wanted(object) != wanted(before) {
        let generation = before.pointer("/metadata/generation").cloned();
        of(object).insert("generation".to_owned(), generation.unwrap_or_else(|| json!(1)));
        increment_generation(object);
    }
}

/// Counts one more change of an object.
pub fn increment_generation(object: &mut Value) {
    let generation = object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(1);
    of(object).insert("generation".to_owned(), json!(generation + 1));
}

/// Whether a text may be a label's value, or the last part of its name.
pub fn is_label_word(text: &str) -> bool {
    let ends = |letter: Option<char>| letter.is_none_or(|letter| letter.is_ascii_alphanumeric());
    text.len() <= LONGEST_LABEL
        && ends(text.chars().next())
        && ends(text.chars().last())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
}

/// Whether a text is an RFC 1123 label: lower case letters, digits and inner dashes.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    !text.is_empty()
        && text.len() <= LONGEST_LABEL
        && text.starts_with(inner)
        && text.ends_with(inner)
        && text.chars().all(|letter| inner(letter) || letter == '-')
}

/// Whether a text is an RFC 1123 subdomain.
pub fn is_dns_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST_NAME && text.split('.').all(is_dns_part)
}

fn is_dns_part(text: &str) -> bool {
    let inner = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    text.starts_with(inner)
        && text.ends_with(inner)
        && text.chars().all(|letter| inner(letter) || letter == '-')
}

/// Removes empty fields.
fn tidy(metadata: &mut Map<String, Value>) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let empty = match metadata.get(field) {
            Some(Value::Null) => true,
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            _ => false,
        };
        if empty {
            metadata.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_rfc_1123() {
        for (text, label, name) in [
            ("a", true, true),
            ("a-1", true, true),
            ("a.b", false, true),
            ("", false, false),
            ("A", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("a..b", false, false),
            ("a/b", false, false),
            ("..", false, false),
            (&"x".repeat(64), false, true),
            (&"x".repeat(254), false, false),
        ] {
            assert_eq!((is_dns_label(text), is_dns_name(text)), (label, name), "{text}");
        }
        let long = made_up(&"x".repeat(100));
        assert!(is_dns_label(&long) && long.len() == 63, "{long}");
        assert_ne!(made_up("a-"), made_up("a-"));
    }

    #[test]
    fn only_a_change_of_what_is_wanted_counts() {
        let before = json!({"metadata": {"generation": 3}, "spec": {"a": 1}, "status": {}});
        let after = |change: Value| {
            let mut after = before.clone();
            json_patch::merge(&mut after, &change);
            count_generation(&mut after, &before);
            after["metadata"]["generation"].clone()
        };
        assert_eq!(after(json!({"spec": {"a": 2}})), 4);
        assert_eq!(after(json!({"status": {"a": 2}})), 3);
        assert_eq!(after(json!({"metadata": {"labels": {"a": "b"}}})), 3);
    }

    #[test]
    fn an_update_cannot_take_an_identity() {
        let mut object = json!({"metadata": {"name": "other", "uid": "other", "labels": {"a": "b"}, "deletionTimestamp": "x"}});
        update(&mut object, &json!({"metadata": {"name": "n", "uid": "u", "generation": 1}}));
        assert_eq!(
            object,
            json!({"metadata": {"name": "n", "uid": "u", "generation": 1, "labels": {"a": "b"}}})
        );
    }
}
