//! Simulated nodes: a scheduler that takes them in turn, kubelets that say at once that a Pod runs, and node agents that
//! say at once that a guest runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher::Config;
use serde_json::{Value, json};
use tokio::sync::watch;
use vireo_api::names::{COMPUTE, NODE_LABEL};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::informer::Informer;
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey};

use super::{Error, NODES};

/// How many objects are worked on at a time.
const WORKERS: usize = 8;

/// The name of a node.
pub(super) fn name(number: usize) -> String {
    format!("simulated-{number}")
}

pub(super) struct Nodes {
    pods: Pods,
    guests: Guests,
}

impl Nodes {
    /// Nodes whose Pods are bound by the scheduler's client; node agents use the other one.
    pub(super) fn new(scheduler: Client, handler: &Client) -> Self {
        Self { pods: Pods::new(scheduler, handler.clone()), guests: Guests::new(handler.clone()) }
    }

    /// Simulates until it is dropped.
    pub(super) async fn run(&self) {
        let (pods, guests) = (&self.pods, &self.guests);
        tokio::join!(
            pods.pods.run(),
            guests.vmis.run(),
            controller::run(pods, &pods.queue, WORKERS),
            controller::run(guests, &guests.queue, WORKERS),
        );
    }

    pub(super) async fn synced(&self) {
        self.pods.pods.synced().await;
        self.guests.vmis.synced().await;
    }

    /// Waits until so many VMIs run.
    pub(super) async fn running(&self, count: usize) -> Result<(), Error> {
        self.guests.running.subscribe().wait_for(|running| *running >= count).await?;
        Ok(())
    }
}

/// What matters of an object: its node, and its phase.
#[derive(Debug)]
struct Placed {
    node: String,
    phase: String,
}

impl Placed {
    fn runs(&self) -> bool {
        self.phase == "Running"
    }

    fn of(node: Option<&Value>, object: &Value) -> Self {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { node: text(node), phase: text(object.pointer("/status/phase")) }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "caches read objects by functions that may fail")]
fn pod(object: Value) -> Result<Placed, serde_json::Error> {
    Ok(Placed::of(object.pointer("/spec/nodeName"), &object))
}

#[expect(clippy::unnecessary_wraps, reason = "caches read objects by functions that may fail")]
fn vmi(object: Value) -> Result<Placed, serde_json::Error> {
    let labels = object.pointer("/metadata/labels");
    Ok(Placed::of(labels.and_then(|labels| labels.get(NODE_LABEL)), &object))
}

/// The scheduler and the kubelets.
struct Pods {
    scheduler: Client,
    kubelet: Client,
    pods: Arc<Informer<Placed>>,
    queue: Arc<WorkQueue<ObjectKey>>,
    bound: AtomicUsize,
}

impl Pods {
    fn new(scheduler: Client, kubelet: Client) -> Self {
        let queue = controller::queue();
        let pods = Informer::new(Kind::POD.all(&kubelet), Config::default(), pod);
        let changed = Arc::clone(&queue);
        pods.on_change(move |pod| changed.add(pod.key.clone()));
        Self { scheduler, kubelet, pods, queue, bound: AtomicUsize::new(0) }
    }
}

impl Reconcile for Pods {
    type Key = ObjectKey;
    type Error = kube::Error;
    const NAME: &'static str = "simulated kubelets";

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, kube::Error> {
        let Some(pod) = self.pods.get(key) else { return Ok(None) };
        if pod.node.is_empty() {
            let node = name(self.bound.fetch_add(1, Ordering::Relaxed) % NODES);
            let binding = json!({
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": key.name, "namespace": key.namespace},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            });
            let pods = Kind::POD.namespaced(&self.scheduler, &key.namespace);
            let _: Value =
                pods.create_subresource("binding", &key.name, &PostParams::default(), &binding).await?;
        } else if !pod.runs() {
            let compute = json!({"name": COMPUTE, "ready": true, "state": {"running": {}}});
            let status = json!({"status": {"phase": "Running", "containerStatuses": [compute]}});
            let pods = Kind::POD.namespaced(&self.kubelet, &key.namespace);
            pods.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(status)).await?;
        }
        Ok(None)
    }
}

/// The node agents.
struct Guests {
    handler: Client,
    vmis: Arc<Informer<Placed>>,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// How many run.
    running: watch::Sender<usize>,
}

impl Guests {
    fn new(handler: Client) -> Self {
        let queue = controller::queue();
        let vmis = Informer::new(Kind::VMI.all(&handler), Config::default(), vmi);
        let running = watch::Sender::new(0);
        let (changed, now) = (Arc::clone(&queue), running.clone());
        vmis.on_change(move |vmi| {
            changed.add(vmi.key.clone());
            let ran = vmi.before.as_ref().is_some_and(|vmi| vmi.runs());
            if !ran && vmi.after.as_ref().is_some_and(|vmi| vmi.runs()) {
                now.send_modify(|running| *running += 1);
            }
        });
        Self { handler, vmis, queue, running }
    }
}

impl Reconcile for Guests {
    type Key = ObjectKey;
    type Error = kube::Error;
    const NAME: &'static str = "simulated node agents";

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, kube::Error> {
        let Some(vmi) = self.vmis.get(key) else { return Ok(None) };
        if !vmi.node.is_empty() && !vmi.runs() {
            let status = json!({"status": {"phase": "Running", "nodeName": vmi.node}});
            let vmis = Kind::VMI.namespaced(&self.handler, &key.namespace);
            vmis.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(status)).await?;
        }
        Ok(None)
    }
}
