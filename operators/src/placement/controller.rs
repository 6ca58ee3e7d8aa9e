//! The controller of placement: binds Pods to the node, and reports why others are not bound.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use serde_json::{Value, json};
use thiserror::Error;
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::informer::{Cached, Informer, revision, whole};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey, write};

use super::{Node, Pod, unschedulable};
use crate::conditions;

/// All Pods are placed together: one that is refused must not delay the others.
const LONGEST_RETRY: std::time::Duration = std::time::Duration::from_secs(5);
/// Pods that are bound at the same time.
const WRITES: usize = 8;
const COMPONENT: &str = "default-scheduler";
const CONDITION: &str = "PodScheduled";
const UNSCHEDULABLE: &str = "Unschedulable";

/// Why placement is tried again.
#[derive(Debug, Error)]
pub enum PlacementError {
    /// A request failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// An object cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The controller.
pub struct Controller {
    client: Client,
    node: ObjectKey,
    pods: Arc<Informer<Pod>>,
    nodes: Arc<Informer<Node>>,
    recorder: EventRecorder,
    /// All Pods are placed together: the key is the node.
    queue: Arc<WorkQueue<ObjectKey>>,
    /// UIDs of Pods that were bound, until the cache shows it.
    assumed: Arc<Mutex<HashSet<String>>>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Controller").field("node", &self.node.name).finish_non_exhaustive()
    }
}

fn lock(assumed: &Mutex<HashSet<String>>) -> MutexGuard<'_, HashSet<String>> {
    assumed.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// Binds Pods to the node of this name, as the user of a client.
    pub fn new(client: Client, node: &str) -> Self {
        let key = ObjectKey::new("", node);
        let pods = Informer::new(Kind::POD.all(&client), Config::default(), Pod::read);
        let only = Config::default().fields(&format!("metadata.name={node}"));
        let nodes = Informer::new(Kind::NODE.all(&client), only, whole);
        let queue = Arc::new(WorkQueue::new(controller::RETRY.0, LONGEST_RETRY));
        let assumed: Arc<Mutex<HashSet<String>>> = Arc::default();
        let (changed, all, shown) = (Arc::clone(&queue), key.clone(), Arc::clone(&assumed));
        pods.on_change(move |change| {
            let takes = |pod: &Option<Arc<Cached<Pod>>>| pod.as_ref().and_then(|pod| pod.takes());
            let pending = change.after.as_ref().is_some_and(|pod| pod.is_pending());
            if !pending {
                lock(&shown).retain(|assumed| change.versions().all(|pod| pod.uid != *assumed));
            }
            if pending || takes(&change.before) != takes(&change.after) {
                changed.add(all.clone());
            }
        });
        let (changed, all) = (Arc::clone(&queue), key.clone());
        nodes.on_change(move |_| changed.add(all.clone()));
        let recorder = EventRecorder::new(client.clone(), COMPONENT, None);
        Self { client, node: key, pods, nodes, recorder, queue, assumed }
    }

    /// Binds Pods until it is dropped.
    pub async fn run(&self) {
        let bind = async {
            self.pods.synced().await;
            self.nodes.synced().await;
            controller::run(self, &self.queue, 1).await;
        };
        tokio::join!(self.pods.run(), self.nodes.run(), bind);
    }

    async fn bind(&self, pod: &Cached<Pod>) -> Result<(), PlacementError> {
        let metadata = &pod.metadata;
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node.name},
        });
        let pods: Api<_> = Kind::POD.namespaced(&self.client, &metadata.namespace);
        lock(&self.assumed).insert(pod.uid.clone());
        let bound =
            pods.create_subresource("binding", &metadata.name, &PostParams::default(), &binding).await;
        let bound: Result<Value, kube::Error> = bound;
        match bound {
            Ok(_) => Ok(()),
            Err(error) => {
                lock(&self.assumed).remove(&pod.uid);
                match error {
                    // It is gone.
                    kube::Error::Api(status) if status.code == 404 => Ok(()),
                    error => Err(error.into()),
                }
            }
        }
    }

    /// Notes why a Pod is not bound. The revision, if that is new.
    async fn note(&self, pod: &Cached<Pod>, why: &str) -> Result<u64, PlacementError> {
        let mut after = pod.conditions.clone();
        if !conditions::set_false(&mut after, CONDITION, Some((UNSCHEDULABLE, why)), Timestamp::now()) {
            return Ok(0);
        }
        let pods = Kind::POD.namespaced(&self.client, &pod.metadata.namespace);
        let (before, after) = (json!({"conditions": pod.conditions}), json!({ "conditions": after }));
        let written = write::patch_status(&pods, (&pod.metadata).into(), &before, &after).await?;
        self.recorder.publish(Regarding::new(Kind::POD, &pod.metadata), Reason::FailedScheduling, why).await;
        Ok(written.as_ref().map_or(0, revision))
    }
}

impl Reconcile for Controller {
    type Key = ObjectKey;
    type Error = PlacementError;
    const NAME: &'static str = "placement";

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, PlacementError> {
        let node = self.nodes.get(key);
        let assumed = lock(&self.assumed).clone();
        // Read after `assumed`: what is no longer assumed is shown to be bound.
        let all = self.pods.all();
        let (mut bound, mut pending) = (Vec::new(), Vec::new());
        for pod in &all {
            if pod.spec.node_name == self.node.name || assumed.contains(&pod.uid) {
                bound.extend(pod.takes().or(pod.is_pending().then_some(pod.requests)));
            } else if pod.is_pending() {
                pending.push(pod);
            }
        }
        if pending.is_empty() {
            return Ok(None);
        }
        let node = node.as_deref().map(|node| &node.value);
        let refused = unschedulable(node, bound, pending.iter().map(|pod| &pod.value).collect());
        pending.sort_by_key(|pod| (&pod.metadata.creation_timestamp, &pod.key));
        let (mut shown, mut failed) = (0, None);
        let write = async |pod: &Arc<Cached<Pod>>| match refused.get(&pod.uid) {
            Some(why) => self.note(pod, why).await,
            None => self.bind(pod).await.map(|()| 0),
        };
        // Writes at the same time share a commit of the store.
        let mut writes = stream::iter(pending).map(write).buffered(WRITES);
        while let Some(done) = writes.next().await {
            match done {
                Ok(revision) => shown = revision.max(shown),
                Err(error) => failed = Some(error),
            }
        }
        // Else the next decision would not know of the writes of this one.
        self.pods.shows(shown, &[]).await;
        failed.map_or(Ok(None), Err)
    }
}
