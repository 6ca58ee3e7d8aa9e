//! Pods that node agents take disks from and give disks to: launcher Pods and attachment Pods. virt-controller alone makes them,
//! and says which instance they are of.

use serde_json::{Value, json};
use vireo_api::names::{
    ATTACHMENT, COMPONENT_LABEL, CONSUMER, CREATED_BY_LABEL, LAUNCHER, TRUSTED_POD_ANNOTATIONS,
};

use crate::Problem;

/// What a Pod is refused for that a user writes who is not virt-controller.
pub fn validate(new: &Value, old: Option<&Value>) -> Option<Problem> {
    let component = trusted_component(new)?;
    let field = format!("metadata.labels[{COMPONENT_LABEL}]");
    let Some(old) = old.filter(|old| trusted_component(old) == Some(component)) else {
        return Some(Problem::forbidden(
            field,
            format!(
                "Forbidden: only virt-controller makes Pods with the label {COMPONENT_LABEL}={component}"
            ),
        ));
    };
    if let Some(annotation) =
        TRUSTED_POD_ANNOTATIONS.into_iter().find(|name| annotation(new, name) != annotation(old, name))
    {
        return Some(unchangeable(format!("metadata.annotations[{annotation}]")));
    }
    if label(new, CREATED_BY_LABEL) != label(old, CREATED_BY_LABEL) {
        return Some(unchangeable(format!("metadata.labels[{CREATED_BY_LABEL}]")));
    }
    let owners = |pod: &Value| pod["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    let known = owners(old);
    // The garbage collector removes owners, and changes whether they wait for the Pod.
    let is_known = |owner: &Value| known.iter().any(|one| identity(one) == identity(owner));
    (!owners(new).iter().all(is_known)).then(|| unchangeable("metadata.ownerReferences".to_owned()))
}

fn unchangeable(field: String) -> Problem {
    Problem::forbidden(field, "Forbidden: only virt-controller writes it")
}

fn label<'a>(pod: &'a Value, name: &str) -> &'a Value {
    &pod["metadata"]["labels"][name]
}

fn annotation<'a>(pod: &'a Value, name: &str) -> &'a Value {
    &pod["metadata"]["annotations"][name]
}

fn trusted_component(pod: &Value) -> Option<&'static str> {
    let component = label(pod, COMPONENT_LABEL);
    [LAUNCHER, ATTACHMENT, CONSUMER].into_iter().find(|trusted| component == trusted)
}

fn identity(owner: &Value) -> Value {
    json!([owner["apiVersion"], owner["kind"], owner["name"], owner["uid"], owner["controller"]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(component: &str) -> Value {
        let owner = json!({"kind": "VirtualMachineInstance", "name": "web", "uid": "1", "controller": true});
        json!({"metadata": {
            "labels": {"kubevirt.io": component, "kubevirt.io/created-by": "1", "app": "web"},
            "annotations": {"vireo.io/claim-disks": "{}", "note": "a"},
            "ownerReferences": [owner],
        }})
    }

    /// The field for which an update of a launcher Pod is refused.
    fn refused(change: impl FnOnce(&mut Value)) -> Option<String> {
        let old = pod("virt-launcher");
        let mut new = old.clone();
        change(&mut new["metadata"]);
        validate(&new, Some(&old)).map(|problem| problem.field)
    }

    #[test]
    fn users_make_no_pods_that_node_agents_trust() {
        for component in ["virt-launcher", "hotplug-disk", "virt-consumer"] {
            let problem = validate(&pod(component), None).unwrap();
            assert_eq!(problem.field, "metadata.labels[kubevirt.io]");
            assert!(problem.message.contains(component), "{}", problem.message);
            assert!(validate(&pod(component), Some(&pod("other"))).is_some(), "by a label");
        }
        assert!(validate(&pod("hotplug-disk"), Some(&pod("virt-launcher"))).is_some());
        for component in ["virt-handler", "other"] {
            assert_eq!(validate(&pod(component), None), None, "{component}");
        }
    }

    #[test]
    fn users_change_nothing_that_node_agents_trust() {
        assert_eq!(refused(|_| {}), None);
        assert_eq!(refused(|metadata| metadata["labels"]["app"] = "other".into()), None);
        assert_eq!(refused(|metadata| metadata["annotations"]["note"] = "b".into()), None);
        assert_eq!(refused(|metadata| metadata["ownerReferences"] = json!([])), None);
        let waits =
            |metadata: &mut Value| metadata["ownerReferences"][0]["blockOwnerDeletion"] = false.into();
        assert_eq!(refused(waits), None);
        assert_eq!(
            refused(|metadata| metadata["annotations"]["vireo.io/claim-disks"] = "{\"/etc\":1}".into())
                .unwrap(),
            "metadata.annotations[vireo.io/claim-disks]"
        );
        assert_eq!(
            refused(|metadata| metadata["labels"]["kubevirt.io/created-by"] = "2".into()).unwrap(),
            "metadata.labels[kubevirt.io/created-by]"
        );
        assert_eq!(
            refused(|metadata| metadata["ownerReferences"][0]["uid"] = "2".into()).unwrap(),
            "metadata.ownerReferences"
        );
    }
}
