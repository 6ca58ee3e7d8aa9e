//! Nodes that are not heard of: nothing is scheduled to them any more, and instances there whose Pods are gone have failed.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Config;
use kube::{Client, Error};
use serde_json::{Value, json};
use vireo_api::names::{HEARTBEAT_ANNOTATION, NODE_LABEL, SCHEDULABLE_LABEL};
use vireo_api::v1::{ObjectMeta, VirtualMachineInstance};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::informer::{Cached, Informer};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey, write};

/// How long after its last heartbeat a node agent is taken for dead; KubeVirt's.
const TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// How often heartbeats are checked.
const RECHECK: Duration = Duration::from_secs(60);

/// A node as the controllers read it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// When its node agent was heard of; never on a node that has none.
    heartbeat: Option<Timestamp>,
    /// Whether instances are scheduled to it.
    is_schedulable: bool,
    /// Whether its kubelet and its container runtime mount images.
    mounts_images: bool,
}

/// The first kubelet whose image volumes are enabled by default.
const IMAGE_VOLUMES_KUBELET: (u32, u32) = (1, 35);
/// The first releases of container runtimes that mount images.
const IMAGE_VOLUMES_RUNTIMES: [(&str, (u32, u32)); 2] = [("containerd", (2, 1)), ("cri-o", (1, 31))];

/// The major and the minor of a version such as `v1.35.0+k3s1`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim_start_matches('v').split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether the programs of a node, as its status names them, mount images.
fn mounts_images(info: &Value) -> bool {
    let text = |field: &str| info[field].as_str().unwrap_or_default();
    let is_kubelet_new =
        version(text("kubeletVersion")).is_some_and(|kubelet| kubelet >= IMAGE_VOLUMES_KUBELET);
    let runtime = text("containerRuntimeVersion").split_once("://");
    let is_runtime_new = runtime.is_some_and(|(name, release)| {
        let first = IMAGE_VOLUMES_RUNTIMES.iter().find(|(runtime, _)| *runtime == name);
        first.is_some_and(|(_, first)| version(release).is_some_and(|release| release >= *first))
    });
    is_kubelet_new && is_runtime_new
}

impl Node {
    /// Reads a node for a cache.
    ///
    /// # Errors
    /// When it is not an object.
    pub fn read(mut object: Value) -> Result<Self, serde_json::Error> {
        let mounts_images = mounts_images(&object["status"]["nodeInfo"]);
        let metadata: ObjectMeta = serde_json::from_value(object["metadata"].take())?;
        // The time is written as JSON.
        let heartbeat = metadata.annotations.get(HEARTBEAT_ANNOTATION);
        let heartbeat = heartbeat.and_then(|time| time.trim_matches('"').parse().ok());
        let is_schedulable = metadata.labels.get(SCHEDULABLE_LABEL).is_some_and(|value| value == "true");
        Ok(Self { heartbeat, is_schedulable, mounts_images })
    }

    /// Whether instances that are scheduled to it can have image volumes; absent if none are.
    pub(crate) fn mounts_images(&self) -> Option<bool> {
        self.is_schedulable.then_some(self.mounts_images)
    }

    /// Whether its node agent is taken for dead.
    fn is_silent(&self, now: Timestamp) -> bool {
        self.heartbeat.is_some_and(|last| now.duration_since(last) > TIMEOUT)
    }
}

/// Whether no component reports what runs on a node: it is deleted, or its node agent is taken for dead.
pub fn is_unresponsive(node: Option<&Node>, now: Timestamp) -> bool {
    node.is_none_or(|node| node.is_silent(now))
}

/// A cache of the nodes, which the caller keeps.
pub fn informer(client: &Client) -> Arc<Informer<Node>> {
    Informer::new(Kind::NODE.all(client), Config::default(), Node::read)
}

/// Watches the heartbeats of nodes.
pub struct Controller {
    client: Client,
    nodes: Arc<Informer<Node>>,
    vmis: Arc<Informer<VirtualMachineInstance>>,
    /// Instances to decide about.
    changed: Arc<WorkQueue<ObjectKey>>,
    queue: Arc<WorkQueue<ObjectKey>>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Controller").finish_non_exhaustive()
    }
}

impl Controller {
    /// A controller that reads caches, which the caller keeps, and queues the instances of nodes that are not heard of.
    pub fn new(
        client: Client,
        nodes: Arc<Informer<Node>>,
        vmis: Arc<Informer<VirtualMachineInstance>>,
        changed: Arc<WorkQueue<ObjectKey>>,
    ) -> Self {
        let queue = controller::queue();
        let added = Arc::clone(&queue);
        nodes.on_change(move |node| {
            let read = |node: &Option<Arc<Cached<Node>>>| node.as_ref().map(|node| node.value.clone());
            // The kubelet writes into nodes every few seconds.
            if read(&node.before) != read(&node.after) {
                added.add(node.key.clone());
            }
        });
        Self { client, nodes, vmis, changed, queue }
    }

    /// Controls until it is dropped.
    pub async fn run(&self) {
        self.nodes.synced().await;
        self.vmis.synced().await;
        controller::run(self, &self.queue, 1).await;
    }
}

impl Reconcile for Controller {
    type Key = ObjectKey;
    type Error = Error;
    const NAME: &'static str = "virt-controller-node";

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, Error> {
        let node = self.nodes.get(key);
        let recheck = node.as_ref().map(|_| RECHECK);
        if !is_unresponsive(node.as_deref().map(|node| &node.value), Timestamp::now()) {
            return Ok(recheck);
        }
        if let Some(node) = node.filter(|node| node.is_schedulable) {
            tracing::warn!(node = %key.name, "the node agent is not heard of: nothing is scheduled to its node");
            let version = write::Version { name: &key.name, uid: &node.uid, resource_version: "" };
            let patch = json!({"metadata": {"labels": {SCHEDULABLE_LABEL: "false"}}});
            write::patch(&Kind::NODE.all(&self.client), version, patch).await?;
        }
        let vmis = self.vmis.all();
        let is_there = |vmi: &&VirtualMachineInstance| vmi.metadata.labels.get(NODE_LABEL) == Some(&key.name);
        for vmi in vmis.iter().filter(|vmi| is_there(&&vmi.value)) {
            self.changed.add(vmi.key.clone());
        }
        Ok(recheck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(heartbeat: Option<&str>, schedulable: &str) -> Node {
        let annotations = heartbeat.map(|time| json!({HEARTBEAT_ANNOTATION: time}));
        let metadata = json!({"annotations": annotations.unwrap_or_else(|| json!({})),
            "labels": {SCHEDULABLE_LABEL: schedulable}});
        Node::read(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn a_node_agent_is_taken_for_dead_five_minutes_after_its_heartbeat() {
        let beat = "\"2026-01-01T00:00:00Z\"";
        let at = |time: &str| time.parse::<Timestamp>().unwrap();
        let node = node(Some(beat), "true");
        assert!(node.is_schedulable);
        assert!(!is_unresponsive(Some(&node), at("2026-01-01T00:05:00Z")));
        assert!(is_unresponsive(Some(&node), at("2026-01-01T00:05:01Z")));
        assert!(!is_unresponsive(Some(&node), at("2025-12-31T00:00:00Z")), "its clock is ahead");
    }

    #[test]
    fn images_are_mounted_by_new_kubelets_with_new_runtimes() {
        for (kubelet, runtime, expected) in [
            ("v1.35.0", "containerd://2.1.4", true),
            ("v1.36.2+k3s1", "containerd://2.2.0-k3s1", true),
            ("v2.0.0", "cri-o://1.35.0", true),
            ("v1.34.1", "containerd://2.1.4", false),
            ("v1.35.0", "containerd://2.0.6", false),
            ("v1.35.0", "containerd://1.7.28", false),
            ("v1.35.0", "docker://28.0.0", false),
            ("v1.35.0", "", false),
            ("", "containerd://2.1.4", false),
        ] {
            let info = json!({"kubeletVersion": kubelet, "containerRuntimeVersion": runtime});
            let labels = json!({SCHEDULABLE_LABEL: "true"});
            let node = json!({"metadata": {"labels": labels}, "status": {"nodeInfo": info}});
            assert_eq!(Node::read(node).unwrap().mounts_images(), Some(expected), "{kubelet} {runtime}");
        }
        assert_eq!(node(None, "false").mounts_images(), None, "it gets no instances");
    }

    #[test]
    fn a_node_without_an_agent_is_not_silent_and_a_deleted_one_is() {
        assert!(!is_unresponsive(Some(&node(None, "false")), Timestamp::now()));
        assert!(!is_unresponsive(Some(&node(Some("soon"), "false")), Timestamp::now()));
        assert!(is_unresponsive(None, Timestamp::now()));
    }
}
