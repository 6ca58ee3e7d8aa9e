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
}

impl Node {
    /// Reads a node for a cache.
    ///
    /// # Errors
    /// When it is not an object.
    pub fn read(mut object: Value) -> Result<Self, serde_json::Error> {
        let metadata: ObjectMeta = serde_json::from_value(object["metadata"].take())?;
        // The time is written as JSON.
        let heartbeat = metadata.annotations.get(HEARTBEAT_ANNOTATION);
        let heartbeat = heartbeat.and_then(|time| time.trim_matches('"').parse().ok());
        let is_schedulable = metadata.labels.get(SCHEDULABLE_LABEL).is_some_and(|value| value == "true");
        Ok(Self { heartbeat, is_schedulable })
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
    fn a_node_without_an_agent_is_not_silent_and_a_deleted_one_is() {
        assert!(!is_unresponsive(Some(&node(None, "false")), Timestamp::now()));
        assert!(!is_unresponsive(Some(&node(Some("soon"), "false")), Timestamp::now()));
        assert!(is_unresponsive(None, Timestamp::now()));
    }
}
