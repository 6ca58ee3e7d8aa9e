//! What Kubernetes' strategic merge patch depends on: the kind of the object.

use serde_json::Value;
use vireo_apiserver::resource::{METADATA_LISTS, PODS, SERVICE_ACCOUNTS};

/// A list that is merged by its elements, as a dotted path, and the key of those; empty for a list of words.
type MergedList = (String, &'static str);

/// The lists of an object that are merged.
///
/// # Errors
/// When Kubernetes does not merge objects of its kind so.
pub(super) fn merged_lists(object: &Value) -> Result<Vec<MergedList>, String> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let group = object["apiVersion"].as_str().and_then(|version| version.split_once('/'));
    let group = group.map_or("", |(group, _)| group);
    // Custom groups are domains, of which this one is reserved for Kubernetes.
    if group.contains('.') && !group.ends_with(".k8s.io") {
        return Err(format!(
            "must be of the type json or merge: Kubernetes has no strategic merge patch of the custom kind {kind}"
        ));
    }
    let given = |lists: &[(&str, &'static str)]| -> Vec<MergedList> {
        lists.iter().map(|(path, key)| ((*path).to_owned(), *key)).collect()
    };
    let of_kind = match kind {
        "DaemonSet" | "Deployment" | "Job" | "ReplicaSet" | "StatefulSet" => {
            let lists = PODS.merge.into_iter().flatten().filter(|(path, _)| path.starts_with("spec."));
            lists.map(|(path, key)| (format!("spec.template.{path}"), *key)).collect()
        }
        "Service" => given(&[("spec.ports", "port")]),
        "ServiceAccount" => given(SERVICE_ACCOUNTS.merge.unwrap_or_default()),
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => given(&[("webhooks", "name")]),
        _ => Vec::new(),
    };
    Ok([given(&METADATA_LISTS), of_kind].concat())
}

/// Whether all directives of a patch can be carried out.
///
/// # Errors
/// The first that cannot.
pub(super) fn check_directives(patch: &Value) -> Result<(), String> {
    const KNOWN: [&str; 2] = ["$patch", "$retainKeys"];
    match patch {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            let is_known = !name.starts_with('$')
                || KNOWN.contains(&name.as_str())
                || name.starts_with("$deleteFromPrimitiveList/");
            if is_known {
                check_directives(value)
            } else {
                Err(format!("the directive {name} is not supported"))
            }
        }),
        Value::Array(elements) => elements.iter().try_for_each(check_directives),
        _ => Ok(()),
    }
}
