//! Changes of installed objects that a KubeVirt object asks for.

mod strategic;

use serde_json::Value;
use vireo_api::v1::CustomizeComponentsPatch;
use vireo_apiserver::patch::{Kind, Patch};
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
    let apply = |kind: Kind, given: Value, lists: &[(&str, &str)]| {
        let patched = Patch::read(kind, given).and_then(|patch| patch.apply(object, lists));
        patched.map_err(|error| error.to_string())
    };
    let patched = match patch.r#type.as_str() {
        "json" => apply(Kind::Json, given, &[])?,
        "strategic" => {
            let lists = strategic::merged_lists(object)?;
            strategic::check_directives(&given)?;
            let lists: Vec<(&str, &str)> = lists.iter().map(|(path, key)| (path.as_str(), *key)).collect();
            apply(Kind::Strategic, given, &lists)?
        }
        _ => apply(Kind::Merge, given, &[])?,
    };
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
    fn a_strategic_patch_merges_lists_by_their_keys() {
        let container = json!({"name": "virt-api", "image": "i", "command": ["virt-api"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "ports": [{"name": "api", "containerPort": 8443}]});
        let volumes = json!([{"name": "state", "emptyDir": {}}, {"name": "old", "emptyDir": {}}]);
        let mut objects = [
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "virt-api"}, "spec": {
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
                "template": {"spec": {"containers": [container], "volumes": volumes,
                    "tolerations": [{"key": "a"}]}}}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "virt-api", "finalizers": ["a", "b"]},
                "spec": {"ports": [{"port": 443, "targetPort": 8443}]}}),
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": "v"}, "webhooks": [{"name": "a", "timeoutSeconds": 10}, {"name": "b"}]}),
        ];
        let patches = [
            patch(
                "Deployment",
                "virt-api",
                "strategic",
                &json!({"spec": {
                    "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
                    "template": {"spec": {
                        "containers": [{"name": "virt-api", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
                            "resources": {"requests": {"cpu": "10m"}}}, {"name": "sidecar", "image": "s"}],
                        "volumes": [{"name": "old", "$patch": "delete"}],
                        "tolerations": [{"key": "b"}]}}}}),
            ),
            patch(
                "Service",
                "virt-api",
                "strategic",
                &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]},
                    "spec": {"ports": [{"port": 443, "name": "https"}]}}),
            ),
            patch(
                "ValidatingWebhookConfiguration",
                "v",
                "strategic",
                &json!({"webhooks": [{"name": "a", "timeoutSeconds": 20}]}),
            ),
        ];
        customize(&mut objects, &patches).unwrap();
        let [deployment, service, webhooks] = &objects;
        let spec = &deployment["spec"]["template"]["spec"];
        assert_eq!(deployment["spec"]["strategy"], json!({"type": "Recreate"}));
        assert_eq!(
            spec["containers"],
            json!([{"name": "virt-api", "image": "i", "command": ["virt-api"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
                "ports": [{"name": "api", "containerPort": 8443}], "resources": {"requests": {"cpu": "10m"}}},
                {"name": "sidecar", "image": "s"}])
        );
        assert_eq!(spec["volumes"], json!([{"name": "state", "emptyDir": {}}]));
        assert_eq!(spec["tolerations"], json!([{"key": "b"}]), "Kubernetes replaces this list");
        assert_eq!(service["metadata"]["finalizers"], json!(["b", "c"]));
        assert_eq!(service["spec"]["ports"], json!([{"port": 443, "targetPort": 8443, "name": "https"}]));
        assert_eq!(webhooks["webhooks"], json!([{"name": "a", "timeoutSeconds": 20}, {"name": "b"}]));
    }

    #[test]
    fn what_a_strategic_patch_cannot_do_is_refused_by_name() {
        let object = |api: &str, kind: &str| {
            json!({"apiVersion": api, "kind": kind, "metadata": {"name": "x"},
            "spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}})
        };
        let containers = |containers: Value| json!({"spec": {"template": {"spec": containers}}});
        for (api, kind, given, message) in [
            (
                "apps/v1",
                "Deployment",
                containers(json!({"$setElementOrder/containers": [{"name": "a"}]})),
                "the directive $setElementOrder/containers is not supported",
            ),
            (
                "apps/v1",
                "Deployment",
                containers(json!({"containers": [{"name": "a", "$move": "b"}]})),
                "the directive $move is not supported",
            ),
            (
                "apps/v1",
                "Deployment",
                containers(json!({"containers": [{"name": "a", "$patch": "move"}]})),
                "unknown $patch directive \"move\"",
            ),
            (
                "apps/v1",
                "Deployment",
                containers(json!({"containers": [{"image": "i"}]})),
                "spec.template.spec.containers[0]: map does not contain declared merge key: name",
            ),
            ("apps/v1", "Deployment", json!({"$patch": "delete"}), "must not change apiVersion"),
            ("apps/v1", "Deployment", json!([]), "a strategic merge patch is an object"),
            (
                "monitoring.coreos.com/v1",
                "ServiceMonitor",
                json!({}),
                "must be of the type json or merge: Kubernetes has no strategic merge patch of the custom kind ServiceMonitor",
            ),
        ] {
            let before = object(api, kind);
            let mut objects = [before.clone()];
            let problem = customize(&mut objects, &[patch(kind, "x", "strategic", &given)]).unwrap_err();
            let field = "spec.customizeComponents.patches[0].patch";
            assert_eq!((problem.field.as_str(), problem.message.as_str()), (field, message));
            assert_eq!(objects[0], before);
        }
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
