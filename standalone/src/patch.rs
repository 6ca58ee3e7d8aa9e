//! Changing an object by a patch.

use json_patch::PatchOperation;
use serde_json::Value;
use thiserror::Error;

/// The largest JSON patch, in operations; as a Kubernetes API server's.
const MOST_OPERATIONS: usize = 10_000;

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// Kubernetes' own: lists of objects are merged by a key.
    Strategic,
}

/// Why a patch does not apply.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PatchError {
    /// It is no patch at all.
    #[error("{0}")]
    Malformed(String),
    /// It does not fit the object.
    #[error("{0}")]
    Unfit(String),
}

/// Applies a patch. `keys` names, by dotted path, the lists that a strategic patch merges, and by which field; an empty
/// field is for lists of words.
///
/// # Errors
/// When it is no patch or does not fit; the object is then as it was.
pub fn apply(kind: Kind, object: &Value, patch: Value, keys: &[(&str, &str)]) -> Result<Value, PatchError> {
    let mut patched = object.clone();
    match kind {
        Kind::Merge if !patch.is_object() => {
            return Err(PatchError::Malformed("a merge patch is an object".to_owned()));
        }
        Kind::Merge => json_patch::merge(&mut patched, &patch),
        Kind::Json => {
            let operations: json_patch::Patch =
                serde_json::from_value(patch).map_err(|error| PatchError::Malformed(error.to_string()))?;
            if operations.0.len() > MOST_OPERATIONS {
                return Err(PatchError::Malformed(format!(
                    "the patch has {} operations, and at most {MOST_OPERATIONS} are allowed",
                    operations.0.len()
                )));
            }
            for (index, operation) in operations.0.iter().enumerate() {
                operate(&mut patched, operation).map_err(|error| {
                    PatchError::Unfit(format!("operation {index} at '{}': {}", error.path, error.kind))
                })?;
            }
        }
        Kind::Strategic if !patch.is_object() => {
            return Err(PatchError::Malformed("a strategic merge patch is an object".to_owned()));
        }
        Kind::Strategic => strategic(&mut patched, &patch, "", keys)?,
    }
    Ok(patched)
}

/// One operation of RFC 6902. API servers let a test for null hold where there is nothing, by which controllers see that
/// they may add a list.
fn operate(object: &mut Value, operation: &PatchOperation) -> Result<(), json_patch::PatchError> {
    if let PatchOperation::Test(test) = operation
        && test.value.is_null()
        && object.pointer(test.path.as_str()).is_none()
    {
        return Ok(());
    }
    json_patch::patch(object, std::slice::from_ref(operation))
}

fn strategic(target: &mut Value, patch: &Value, at: &str, keys: &[(&str, &str)]) -> Result<(), PatchError> {
    let Some(changes) = patch.as_object() else {
        *target = patch.clone();
        return Ok(());
    };
    match changes.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *target = without_directives(patch);
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Null;
            return Ok(());
        }
        Some(other) if other != "merge" => {
            return Err(PatchError::Malformed(format!("unknown $patch directive {other:?}")));
        }
        _ => {}
    }
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return Ok(()) };
    if let Some(kept) = changes.get("$retainKeys").and_then(Value::as_array) {
        fields.retain(|name, _| kept.iter().any(|kept| kept == name));
    }
    for (name, change) in changes {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(has)), Some(gone)) = (fields.get_mut(list), change.as_array()) {
                has.retain(|one| !gone.contains(one));
            }
            continue;
        }
        // The order of lists is not kept by this server's own choice: elements stay where they are.
        if name.starts_with('$') {
            continue;
        }
        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        let key = keys.iter().find(|(known, _)| *known == path).map(|(_, key)| *key);
        match (change, key) {
            (Value::Null, _) => {
                fields.remove(name);
            }
            (Value::Array(changes), Some(key)) => {
                let list = fields.entry(name.clone()).or_insert_with(|| Value::Array(Vec::new()));
                merge_list(list, changes, key, &path, keys)?;
            }
            (Value::Object(_), _) => {
                let field = fields.entry(name.clone()).or_insert(Value::Null);
                strategic(field, change, &path, keys)?;
                if field.is_null() {
                    fields.remove(name);
                }
            }
            _ => {
                fields.insert(name.clone(), change.clone());
            }
        }
    }
    Ok(())
}

fn merge_list(
    list: &mut Value,
    changes: &[Value],
    key: &str,
    path: &str,
    keys: &[(&str, &str)],
) -> Result<(), PatchError> {
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let Some(list) = list.as_array_mut() else { return Ok(()) };
    if changes.iter().any(|change| change.get("$patch").is_some_and(|word| word == "replace")) {
        list.clear();
    }
    for change in changes {
        if key.is_empty() {
            if !list.contains(change) {
                list.push(change.clone());
            }
            continue;
        }
        let directive = change.get("$patch").and_then(Value::as_str);
        let Some(id) = change.get(key) else {
            if directive == Some("replace") {
                continue;
            }
            return Err(PatchError::Malformed(format!(
                "map: {change} does not contain declared merge key: {key}, in {path}"
            )));
        };
        let place = list.iter().position(|one| one.get(key) == Some(id));
        match (place, directive) {
            (Some(place), Some("delete")) => drop(list.remove(place)),
            (None, Some("delete")) => {}
            (Some(place), _) => {
                if let Some(one) = list.get_mut(place) {
                    strategic(one, change, path, keys)?;
                }
            }
            (None, _) => list.push(without_directives(change)),
        }
    }
    Ok(())
}

fn without_directives(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, value| !name.starts_with('$') && !value.is_null());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_changes_as_its_standard_says() {
        let object = json!({"a": {"b": 1, "c": 2}, "list": [1, 2]});
        let rows = [
            (Kind::Merge, json!({"a": {"b": null}, "list": [3]}), json!({"a": {"c": 2}, "list": [3]})),
            (Kind::Strategic, json!({"a": {"b": null}, "list": [3]}), json!({"a": {"c": 2}, "list": [3]})),
            (
                Kind::Strategic,
                json!({"a": {"$patch": "replace", "d": 1}}),
                json!({"a": {"d": 1}, "list": [1, 2]}),
            ),
            (Kind::Strategic, json!({"a": {"$patch": "delete"}}), json!({"list": [1, 2]})),
            (
                Kind::Json,
                json!([{"op": "test", "path": "/a/b", "value": 1}, {"op": "add", "path": "/list/-", "value": 3}]),
                json!({"a": {"b": 1, "c": 2}, "list": [1, 2, 3]}),
            ),
        ];
        for (kind, patch, expected) in rows {
            assert_eq!(apply(kind, &object, patch, &[]).unwrap(), expected);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let object = json!({"a": 1});
        let failing = json!([{"op": "remove", "path": "/a"}, {"op": "test", "path": "/b", "value": 1}]);
        assert!(matches!(apply(Kind::Json, &object, failing, &[]), Err(PatchError::Unfit(_))));
        for kind in [Kind::Json, Kind::Merge, Kind::Strategic] {
            assert!(
                matches!(apply(kind, &object, json!("a"), &[]), Err(PatchError::Malformed(_))),
                "{kind:?}"
            );
        }
        assert!(matches!(
            apply(Kind::Json, &object, json!([{"op": "invent"}]), &[]),
            Err(PatchError::Malformed(_))
        ));
        let strange = json!({"a": {"$patch": "invent"}});
        assert!(matches!(apply(Kind::Strategic, &object, strange, &[]), Err(PatchError::Malformed(_))));
    }

    #[test]
    fn lists_of_a_strategic_patch_are_merged_by_their_key() {
        let keys = [("metadata.finalizers", ""), ("status.conditions", "type")];
        let object = json!({"metadata": {"finalizers": ["a"]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "x": 1}, {"type": "Old"}]}});
        let patch = json!({"metadata": {"finalizers": ["b", "a"]}, "status": {"conditions": [
            {"type": "Ready", "status": "False"}, {"type": "New"}, {"type": "Old", "$patch": "delete"}]}});
        let expected = json!({"metadata": {"finalizers": ["a", "b"]},
            "status": {"conditions": [{"type": "Ready", "status": "False", "x": 1}, {"type": "New"}]}});
        assert_eq!(apply(Kind::Strategic, &object, patch, &keys).unwrap(), expected);
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
        let patched = apply(Kind::Strategic, &object, patch, &keys).unwrap();
        assert_eq!(patched["metadata"]["finalizers"], json!([]));
        let keyless = json!({"status": {"conditions": [{"status": "True"}]}});
        assert!(apply(Kind::Strategic, &object, keyless, &keys).is_err());
    }

    #[test]
    fn a_test_for_null_holds_where_there_is_nothing() {
        let adding = json!([
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": ["one"]},
        ]);
        let bare = json!({"metadata": {}});
        let held = apply(Kind::Json, &bare, adding.clone(), &[]).unwrap();
        assert_eq!(held, json!({"metadata": {"finalizers": ["one"]}}));
        assert!(matches!(apply(Kind::Json, &held, adding, &[]), Err(PatchError::Unfit(_))));
        let other = json!([{"op": "test", "path": "/metadata/name", "value": "x"}]);
        let told = apply(Kind::Json, &bare, other, &[]).unwrap_err().to_string();
        assert!(told.contains("operation 0 at '/metadata/name'"), "{told}");
    }
}
