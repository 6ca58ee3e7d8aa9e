//! What is wrong with the metadata of an object.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{CLEANUP, FOREGROUND, ORPHAN, finalizers, is_dns_name, is_label_word};

/// What is wrong with the labels, annotations and owners: field and message each.
pub fn problems(object: &Value) -> Vec<(String, String)> {
    let mut problems = odd_owners(object);
    let map = |field: &str| -> Result<BTreeMap<String, String>, String> {
        match object.get("metadata").and_then(|metadata| metadata.get(field)) {
            None | Some(Value::Null) => Ok(BTreeMap::new()),
            Some(value) => serde_json::from_value(value.clone()).map_err(|error| error.to_string()),
        }
    };
    for field in ["labels", "annotations"] {
        match map(field) {
            Err(error) => problems.push((format!("metadata.{field}"), format!("Invalid value: {error}"))),
            Ok(entries) => {
                for (name, value) in entries {
                    let word = name.rsplit('/').next().unwrap_or_default();
                    let prefix_fits = name.split_once('/').is_none_or(|(prefix, _)| is_dns_name(prefix));
                    if word.is_empty() || !is_label_word(word) || !prefix_fits {
                        let message = format!(
                            "Invalid value: {name:?}: name part must consist of alphanumeric characters, '-', '_' or '.', after an optional DNS subdomain prefix and '/'"
                        );
                        problems.push((format!("metadata.{field}"), message));
                    }
                    if field == "labels" && !is_label_word(&value) {
                        let message = format!(
                            "Invalid value: {value:?}: a valid label must be an empty string or consist of at most 63 alphanumeric characters, '-', '_' or '.'"
                        );
                        problems.push((format!("metadata.{field}"), message));
                    }
                }
            }
        }
    }
    problems
}

/// Finalizers that are neither Kubernetes' own nor qualified: field and message each.
pub fn odd_finalizers(object: &Value) -> Vec<(String, String)> {
    let own = [ORPHAN, FOREGROUND, CLEANUP, "kubernetes"];
    let odd = finalizers(object).into_iter().enumerate();
    let odd = odd.filter(|(_, name)| !own.contains(&name.as_str()) && !name.contains('/'));
    odd.map(|(index, name)| {
        let message = format!(
            "Invalid value: {name:?}: name is neither a standard finalizer name nor is it fully qualified"
        );
        (format!("metadata.finalizers[{index}]"), message)
    })
    .collect()
}

/// Invalid owner references.
fn odd_owners(object: &Value) -> Vec<(String, String)> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let owners = owners.map(Vec::as_slice).unwrap_or_default();
    let mut problems = Vec::new();
    for owner in owners {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner.get(field).and_then(Value::as_str).is_none_or(str::is_empty) {
                let at = format!("metadata.ownerReferences.{field}");
                problems.push((at, format!("Invalid value: \"\": {field} must not be empty")));
            }
        }
    }
    if owners.iter().filter(|owner| owner.get("controller") == Some(&json!(true))).count() > 1 {
        let message = "Invalid value: only one reference can have controller set to true";
        problems.push(("metadata.ownerReferences".to_owned(), message.to_owned()));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(problems: &[(String, String)]) -> Vec<&str> {
        problems.iter().map(|(field, _)| field.as_str()).collect()
    }

    #[test]
    fn owners_are_distinct() {
        let owner = |uid: &str, controller: bool| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": uid, "controller": controller});
        for (owners, wrong) in [
            (json!([owner("1", true), owner("2", false)]), vec![]),
            (json!([owner("1", true), owner("2", true)]), vec!["metadata.ownerReferences"]),
            (json!([owner("", false)]), vec!["metadata.ownerReferences.uid"]),
            (
                json!([{"uid": "1"}]),
                vec![
                    "metadata.ownerReferences.apiVersion",
                    "metadata.ownerReferences.kind",
                    "metadata.ownerReferences.name",
                ],
            ),
        ] {
            let object = json!({"metadata": {"ownerReferences": owners}});
            assert_eq!(fields(&problems(&object)), wrong, "{object}");
        }
    }

    #[test]
    fn finalizers_are_qualified() {
        let object = json!({"metadata": {"finalizers": ["orphan", "example.com/x", "mine"]}});
        assert_eq!(fields(&odd_finalizers(&object)), ["metadata.finalizers[2]"]);
    }
}
