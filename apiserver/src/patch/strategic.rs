//! Kubernetes' strategic merge patch.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;

/// Merges a patch into a target, which is at a dotted path of the object.
pub(super) fn apply(
    target: &mut Value,
    patch: &Value,
    at: &str,
    keys: &[(&str, &str)],
) -> Result<(), PatchError> {
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
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return Ok(()) };
    if let Some(kept) = changes.get("$retainKeys").and_then(Value::as_array) {
        let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
        fields.retain(|name, _| kept.contains(name.as_str()));
    }
    for (name, change) in changes {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(has)), Some(gone)) = (fields.get_mut(list), change.as_array()) {
                let gone: HashSet<&Value> = gone.iter().collect();
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
                if !list.is_array() {
                    *list = Value::Array(Vec::new());
                }
                let Some(list) = list.as_array_mut() else { continue };
                if key.is_empty() {
                    merge_words(list, changes);
                } else {
                    merge_list(list, changes, key, (&path, keys))?;
                }
            }
            (Value::Object(_), _) => {
                let field = fields.entry(name.clone()).or_insert(Value::Null);
                apply(field, change, &path, keys)?;
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

fn is_replacement(change: &Value) -> bool {
    change.get("$patch").is_some_and(|word| word == "replace")
}

/// Merges a list of words.
fn merge_words(list: &mut Vec<Value>, changes: &[Value]) {
    if changes.iter().any(is_replacement) {
        list.clear();
    }
    let mut has: HashSet<Value> = list.iter().cloned().collect();
    let words = changes.iter().filter(|change| !is_replacement(change));
    list.extend(words.filter(|word| has.insert((*word).clone())).cloned());
}

/// Merges a list of objects by their key.
fn merge_list(
    list: &mut Vec<Value>,
    changes: &[Value],
    key: &str,
    (path, keys): (&str, &[(&str, &str)]),
) -> Result<(), PatchError> {
    if changes.iter().any(is_replacement) {
        list.clear();
    }
    // Elements by their keys; of those with the same key, the first counts. What is deleted leaves a gap until the end.
    let mut elements: Vec<Option<Value>> = std::mem::take(list).into_iter().map(Some).collect();
    let mut indices: HashMap<Value, usize> = HashMap::new();
    for (index, element) in elements.iter().enumerate() {
        if let Some(id) = element.as_ref().and_then(|element| element.get(key)) {
            indices.entry(id.clone()).or_insert(index);
        }
    }
    for (index, change) in changes.iter().enumerate() {
        let directive = change.get("$patch").and_then(Value::as_str);
        let Some(id) = change.get(key) else {
            if directive == Some("replace") {
                continue;
            }
            return Err(PatchError::Malformed(format!(
                "{path}[{index}]: map does not contain declared merge key: {key}"
            )));
        };
        let found = indices.get(id).and_then(|index| elements.get_mut(*index));
        match (found, directive) {
            (Some(element), Some("delete")) => {
                *element = None;
                indices.remove(id);
            }
            (None, Some("delete")) => {}
            (Some(element), _) => {
                if let Some(element) = element {
                    apply(element, change, path, keys)?;
                }
            }
            (None, _) => {
                indices.insert(id.clone(), elements.len());
                // Also directives of what is in it are carried out, not stored.
                let mut element = Value::Null;
                apply(&mut element, change, path, keys)?;
                elements.push(Some(element));
            }
        }
    }
    list.extend(elements.into_iter().flatten());
    Ok(())
}

fn without_directives(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, value| !name.starts_with('$') && !value.is_null());
    }
    value
}
