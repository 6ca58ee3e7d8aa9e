//! Changes of installed objects that a KubeVirt object asks for.

use serde_json::Value;
use vireo_api::v1::CustomizeComponentsPatch;
use vireo_operators::Problem;

/// What identifies an object, which no patch may change: the last is [`crate::objects::INSTALLED_BY`].
const IDENTITY: [&str; 5] = [
    "/apiVersion",
    "/kind",
    "/metadata/name",
    "/metadata/namespace",
    "/metadata/labels/vireo.io~1installed-by",
];

/// Applies patches to the objects that they are for.
///
/// # Errors
/// The first patch that cannot be applied.
pub(super) fn customize(objects: &mut [Value], patches: &[CustomizeComponentsPatch]) -> Result<(), Problem> {
    for (index, patch) in patches.iter().enumerate() {
        let field = format!("spec.customizeComponents.patches[{index}]");
        let CustomizeComponentsPatch { resource_type, resource_name, .. } = patch;
        let is_it = |object: &&mut Value| {
            object["kind"] == **resource_type && object["metadata"]["name"] == **resource_name
        };
        let object = objects.iter_mut().find(is_it).ok_or_else(|| {
            let message = format!("virt-operator installs no {resource_type} {resource_name:?}");
            Problem::not_found(format!("{field}.resourceName"), message)
        })?;
        let patched = apply(object, patch);
        *object = patched.map_err(|message| Problem::invalid(format!("{field}.patch"), message))?;
    }
    Ok(())
}

fn apply(object: &Value, patch: &CustomizeComponentsPatch) -> Result<Value, String> {
    let given: Value = serde_json::from_str(&patch.patch).map_err(|error| error.to_string())?;
    let mut patched = object.clone();
    match patch.r#type.as_str() {
        "json" => {
            let operations: json_patch::Patch =
                serde_json::from_value(given).map_err(|error| error.to_string())?;
            json_patch::patch(&mut patched, &operations).map_err(|error| error.to_string())?;
        }
        _ => json_patch::merge(&mut patched, &given),
    }
    match IDENTITY.iter().find(|field| patched.pointer(field) != object.pointer(field)) {
        Some(field) => Err(format!(
            "must not change {}",
            field.trim_start_matches('/').replace('/', ".").replace("~1", "/")
        )),
        None => Ok(patched),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patch(kind: &str, name: &str, r#type: &str, patch: &Value) -> CustomizeComponentsPatch {
        serde_json::from_value(json!({
            "resourceType": kind, "resourceName": name, "type": r#type, "patch": patch.to_string(),
        }))
        .unwrap()
    }

    #[test]
    fn objects_are_patched_in_order() {
        let mut objects =
            [json!({"kind": "Deployment", "metadata": {"name": "virt-api"}, "spec": {"a": [1], "b": 2}})];
        let patches = [
            patch("Deployment", "virt-api", "json", &json!([{"op": "add", "path": "/spec/a/-", "value": 2}])),
            patch("Deployment", "virt-api", "merge", &json!({"spec": {"b": null, "c": 3}})),
        ];
        customize(&mut objects, &patches).unwrap();
        assert_eq!(objects[0]["spec"], json!({"a": [1, 2], "c": 3}));
    }

    #[test]
    fn a_patch_that_cannot_be_applied_is_named() {
        let labels = json!({"vireo.io/installed-by": "virt-operator"});
        let object =
            json!({"kind": "Deployment", "metadata": {"name": "virt-api", "labels": labels}, "spec": {}});
        for (patch, field) in [
            (
                patch("Deployment", "other", "merge", &json!({})),
                "spec.customizeComponents.patches[0].resourceName",
            ),
            (
                patch("Deployment", "virt-api", "json", &json!([{"op": "remove", "path": "/spec/a"}])),
                "spec.customizeComponents.patches[0].patch",
            ),
            (
                patch("Deployment", "virt-api", "json", &json!({})),
                "spec.customizeComponents.patches[0].patch",
            ),
            (
                patch("Deployment", "virt-api", "merge", &json!({"metadata": {"name": "x"}})),
                "spec.customizeComponents.patches[0].patch",
            ),
            (
                patch("Deployment", "virt-api", "merge", &json!({"metadata": {"labels": null}})),
                "spec.customizeComponents.patches[0].patch",
            ),
        ] {
            let mut objects = [object.clone()];
            assert_eq!(customize(&mut objects, &[patch]).unwrap_err().field, field);
            assert_eq!(objects[0], object);
        }
    }
}
