//! What node agents leave on Node objects, which outlive an installation.

use kube::Client;
use kube::api::{DynamicObject, ListParams};
use serde_json::{Map, Value, json};
use vireo_api::names::{
    NODE_AGENT_ANNOTATIONS, NODE_AGENT_LABELS, SKIP_LABELLER_ANNOTATION, is_node_labellers,
};
use vireo_client::Kind;
use vireo_client::write::{self, Version};

/// Removes it from all nodes. Node agents must have no rights any more, or they would write it again.
pub(super) async fn clean(client: &Client) -> Result<(), kube::Error> {
    let api = Kind::NODE.all(client);
    for DynamicObject { metadata, .. } in api.list(&ListParams::default()).await? {
        let (name, uid) =
            (metadata.name.clone().unwrap_or_default(), metadata.uid.clone().unwrap_or_default());
        let Some(change) = without_ours(&json!(metadata)) else { continue };
        let version = Version { name: &name, uid: &uid, resource_version: "" };
        match write::patch(&api, version, json!({ "metadata": change })).await {
            // The node is gone.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            patched => drop(patched?),
        }
    }
    Ok(())
}

/// What is to change in the metadata of a Node; none where nothing is left of its node agent.
fn without_ours(metadata: &Value) -> Option<Value> {
    let keeps_labels = metadata["annotations"].get(SKIP_LABELLER_ANNOTATION).is_some();
    let is_label =
        |label: &str| NODE_AGENT_LABELS.contains(&label) || !keeps_labels && is_node_labellers(label);
    let is_annotation = |annotation: &str| NODE_AGENT_ANNOTATIONS.contains(&annotation);
    let ours = |field: &str, is_ours: &dyn Fn(&str) -> bool| {
        let all = metadata[field].as_object().into_iter().flatten();
        all.filter(|(name, _)| is_ours(name)).map(|(name, _)| (name.clone(), Value::Null)).collect()
    };
    let (labels, annotations): (Map<_, _>, Map<_, _>) =
        (ours("labels", &is_label), ours("annotations", &is_annotation));
    let is_clean = labels.is_empty() && annotations.is_empty();
    (!is_clean).then(|| json!({"labels": labels, "annotations": annotations}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_keep_what_is_not_their_node_agents() {
        let others = json!({"labels": {"kubernetes.io/os": "linux", "kubevirt.io/mine": "x"},
            "annotations": {"example.com/a": "b"}});
        let ours = json!({
            "labels": {"kubevirt.io/schedulable": "true", "cpumanager": "false", "kubevirt.io/cpumanager": "false",
                "kubevirt.io/realtime": "true", "cpu-model.node.kubevirt.io/Haswell": "true",
                "scheduling.node.kubevirt.io/tsc-frequency-2000000000": "true", "kubevirt.io/ksm-enabled": "false"},
            "annotations": {"kubevirt.io/heartbeat": "x", "kubevirt.io/ksm-handler-managed": "false"},
        });
        let mut node = others.clone();
        json_patch::merge(&mut node, &ours);
        let change = without_ours(&node).unwrap();
        json_patch::merge(&mut node, &change);
        assert_eq!(node, others);
        assert_eq!(without_ours(&node), None, "it is done once");
    }

    #[test]
    fn a_node_that_the_labeller_skips_keeps_the_labels_that_it_has() {
        let node = json!({"labels": {"kubevirt.io/schedulable": "true", "cpu-model.node.kubevirt.io/Haswell": "true"},
            "annotations": {"node-labeller.kubevirt.io/skip-node": ""}});
        let expected = json!({"labels": {"kubevirt.io/schedulable": null}, "annotations": {}});
        assert_eq!(without_ours(&node), Some(expected));
    }
}
