//! The attachment Pods of a node: each has a claim that is hotplugged into a guest, which the kubelet has mounted.

use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher::Config;
use serde::Deserialize as _;
use serde_json::Value;
use vireo_api::names::{
    ATTACHMENT, ATTACHMENT_CLAIM_ANNOTATION, ATTACHMENT_VMI_ANNOTATIONS, CLAIM_DISKS_ANNOTATION,
    COMPONENT_LABEL,
};
use vireo_api::v1::ObjectMeta;
use vireo_client::Kind;
use vireo_client::informer::{Change, Informer};

use crate::node::{self, Node};

/// An attachment Pod as the node agent caches it.
#[derive(Debug)]
pub(super) struct AttachmentPod {
    /// The UID of its VMI.
    vmi: String,
    claim: String,
    /// What the node agent needs to know of it.
    published: node::Attachment,
    /// Whether its process runs and it is not being deleted.
    is_usable: bool,
}

impl AttachmentPod {
    fn read(object: Value) -> Result<Self, serde_json::Error> {
        let metadata = ObjectMeta::deserialize(&object["metadata"])?;
        let annotation = |name: &str| metadata.annotations.get(name).cloned().unwrap_or_default();
        // A cluster's admission may have added containers.
        let mut containers = object["status"]["containerStatuses"].as_array().into_iter().flatten();
        let runs = containers.any(|one| one["name"] == ATTACHMENT && one["state"]["running"].is_object());
        Ok(Self {
            vmi: annotation(ATTACHMENT_VMI_ANNOTATIONS.1),
            claim: annotation(ATTACHMENT_CLAIM_ANNOTATION),
            is_usable: runs && metadata.deletion_timestamp.is_none(),
            published: node::Attachment {
                disks: serde_json::from_str(&annotation(CLAIM_DISKS_ANNOTATION)).unwrap_or_default(),
                uid: metadata.uid,
                name: metadata.name,
            },
        })
    }
}

fn publish(node: &Node, change: &Change<AttachmentPod>) {
    let namespace = &change.key.namespace;
    if let Some(pod) = change.after.as_ref().filter(|pod| pod.is_usable) {
        node.set_attachment((namespace, &pod.vmi), &pod.claim, pod.published.clone());
    } else {
        for pod in change.versions() {
            node.remove_attachment((namespace, &pod.vmi), &pod.claim, &pod.published.uid);
        }
    }
}

/// A cache that keeps a node informed of the attachment Pods that are bound to it.
pub(super) fn informer(client: &Client, node: Arc<Node>) -> Arc<Informer<AttachmentPod>> {
    let config = Config::default()
        .labels(&format!("{COMPONENT_LABEL}={ATTACHMENT}"))
        .fields(&format!("spec.nodeName={}", node.settings.node_name));
    let pods = Informer::new(Kind::POD.all(client), config, AttachmentPod::read);
    pods.on_change(move |change| publish(&node, change));
    pods
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;
    use vireo_client::ObjectKey;
    use vireo_client::informer::Cached;

    use super::*;

    fn cached(uid: &str, vmi: Uuid, more: Value) -> Arc<Cached<AttachmentPod>> {
        let mut object = json!({
            "metadata": {"name": format!("hp-volume-{uid}"), "namespace": "n", "uid": uid, "annotations": {
                "kubevirt.io/owner-vmi-uid": vmi, "vireo.io/claim": "data",
                "vireo.io/claim-disks": "{\"/d/data/disk.img\":4096}",
            }},
        });
        object["status"]["containerStatuses"] = json!([
            {"name": "sidecar", "state": {"running": {}}}, {"name": "hotplug-disk", "state": more}]);
        Arc::new(Cached {
            key: ObjectKey::new("n", uid),
            uid: uid.to_owned(),
            revision: 1,
            owner: None,
            value: AttachmentPod::read(object).unwrap(),
        })
    }

    #[test]
    fn a_claim_is_there_while_the_process_of_its_pod_runs() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::of_a_test(dir.path());
        let vmi = Uuid::new_v4();
        let key = ObjectKey::new("n", "hp");
        let show = |before, after| publish(&node, &Change { key: key.clone(), before, after });
        let waiting = cached("one", vmi, json!({"waiting": {"reason": "ContainerCreating"}}));
        show(None, Some(Arc::clone(&waiting)));
        assert!(node.attachments("n", vmi).is_empty());
        let running = cached("one", vmi, json!({"running": {}}));
        show(Some(waiting), Some(Arc::clone(&running)));
        let its = node.attachments("n", vmi);
        assert_eq!(
            (&*its["data"].name, its["data"].disks["/d/data/disk.img"]),
            ("hp-volume-one", Some(4096))
        );
        let next = cached("two", vmi, json!({"running": {}}));
        show(None, Some(next));
        show(Some(running), None);
        assert_eq!(node.attachments("n", vmi)["data"].uid, "two", "that of another Pod stays");
        assert!(node.attachments("n", Uuid::new_v4()).is_empty());
        assert!(node.attachments("other", vmi).is_empty(), "a Pod of another namespace is none of the VMI's");
    }
}
