//! A Kubernetes API as the source of a node's VMIs: which are bound to the node, and what is reported of them.
//!
//! An informer selects the VMIs by the label of their node, so that the API server sends nothing of others. [`bound`]
//! validates a VMI once for each generation of its spec; [`removal`] asks whether a VMI that is no longer selected is
//! gone; [`finalize`] releases the objects whose launchers are gone; [`status`] writes what changed of a status, with
//! [events]; [`pods`] does what a kubelet does for the launcher Pods; [`attachments`] finds hotplugged claims.

mod attachments;
mod bound;
mod events;
mod finalize;
mod instance;
mod pods;
mod projected;
mod removal;
mod shown;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::runtime::watcher::Config;
use tokio::sync::{Notify, watch};
use uuid::Uuid;
use vireo_api::names::{NODE_LABEL, OUTDATED_LABEL};
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::Kind;
use vireo_client::informer::{Cached, Informer};
use vireo_client::queue::WorkQueue;

use crate::manifests::desired::Update;
use crate::manifests::{Key, Source};
use crate::node::Node;
use crate::reconcile::status::{Phase, failure};
use crate::settings::Runtime;

use attachments::AttachmentPod;
use bound::Bound;
pub use bound::Counts;
use finalize::Finalizer;
use instance::Instance;
use pods::Pods;
pub use projected::Projector;
use removal::Remover;
use status::StatusWriter;

/// Delay after the first request that failed, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How long it may take until the status of a launcher Pod is written, and why a VMI does not start. A kubelet reports once a
/// second, too.
const PASSING: Duration = Duration::from_secs(1);
/// How long a VMI that starts may be in a phase before that phase alone is written: almost all pass it sooner, also where many
/// start at once, and each write costs the API server a commit.
const STARTING: Duration = Duration::from_secs(10);

/// A VMI, and no other one of its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct VmiId {
    key: Key,
    uid: String,
}

impl std::fmt::Display for VmiId {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.key.fmt(form)
    }
}

/// The VMIs of a node as a Kubernetes API has them.
pub struct Cluster {
    vmis: Arc<Informer<Instance>>,
    node: Arc<Node>,
    bound: Arc<Bound>,
    changed: Arc<Notify>,
    deleting: Arc<WorkQueue<VmiId>>,
    finalizer: Finalizer,
    removed: Arc<WorkQueue<VmiId>>,
    remover: Remover,
    pods: Pods,
    /// Where the kubelet mounts claims.
    attachments: Option<Arc<Informer<AttachmentPod>>>,
    status: StatusWriter,
    /// Whether the VMIs from before the restart are adopted.
    adopted: watch::Sender<bool>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Cluster").field("vmis", &self.vmis).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The VMIs that are bound to a node, as the user of a client. `unreadable` are VMIs that the API server has and
    /// cannot serve: their guests keep running.
    pub fn new(client: Client, node: Arc<Node>, unreadable: Vec<Key>) -> Self {
        let selector = format!("{NODE_LABEL}={}", node.settings.node_name);
        let config = Config::default().labels(&selector);
        let vmis = Informer::new(Kind::VMI.all(&client), config, Instance::read);
        let bound = Arc::new(Bound::new(unreadable));
        let (entries, changed) = (Arc::clone(&bound), Arc::new(Notify::new()));
        let wake = Arc::clone(&changed);
        let removed = Arc::new(WorkQueue::new(RETRY.0, RETRY.1));
        let confirm = Arc::clone(&removed);
        let agent = Arc::clone(&node);
        vmis.on_change(move |change| {
            let is_outdated = |vmi: &Arc<Cached<Instance>>| vmi.metadata.labels.contains_key(OUTDATED_LABEL);
            agent.metrics.set_outdated(&change.key, change.after.as_ref().is_some_and(is_outdated));
        });
        vmis.on_change(move |change| match (&change.before, &change.after) {
            (Some(before), None) => confirm.add(VmiId { key: before.key.clone(), uid: before.uid.clone() }),
            (_, Some(vmi)) => {
                if entries.apply(vmi) {
                    wake.notify_one();
                }
            }
            (None, None) => {}
        });
        let remover =
            Remover { client: client.clone(), bound: Arc::clone(&bound), changed: Arc::clone(&changed) };
        let deleting = Arc::new(WorkQueue::new(RETRY.0, RETRY.1));
        let finalizer = Finalizer { client: client.clone(), vmis: Arc::clone(&vmis) };
        let adopted = watch::Sender::new(false);
        let wanted = (Arc::clone(&bound), Arc::clone(&changed));
        let pods = Pods::new(client.clone(), Arc::clone(&node), wanted, adopted.subscribe());
        let mounts = matches!(node.settings.runtime, Runtime::Pods(_));
        let attachments = mounts.then(|| attachments::informer(&client, Arc::clone(&node)));
        let status = StatusWriter::new(client, (Arc::clone(&vmis), pods.informer()), Arc::clone(&node));
        Self {
            vmis,
            node,
            bound,
            changed,
            deleting,
            finalizer,
            removed,
            remover,
            pods,
            attachments,
            status,
            adopted,
        }
    }

    /// The source of VMIs for the node agent.
    pub fn source(&self) -> impl Source + use<> {
        ClusterSource {
            vmis: Arc::clone(&self.vmis),
            bound: Arc::clone(&self.bound),
            changed: Arc::clone(&self.changed),
            deleting: Arc::clone(&self.deleting),
            removed: Arc::clone(&self.removed),
            adopted: self.adopted.clone(),
            is_first: true,
        }
    }

    /// Whether the VMIs from before the restart are adopted.
    pub fn adopted(&self) -> watch::Receiver<bool> {
        self.adopted.subscribe()
    }

    /// How much was received and validated.
    pub fn counts(&self) -> Counts {
        self.bound.counts()
    }

    /// Follows the API server and writes to it until it is dropped.
    pub async fn run(&self) {
        let finalize = async {
            self.vmis.synced().await;
            vireo_client::controller::run(&self.finalizer, &self.deleting, 1).await;
        };
        let remove = vireo_client::controller::run(&self.remover, &self.removed, 1);
        let follow = shown::follow(&self.node, |key, vmi| {
            let delay = delay(vmi);
            self.status.shown(key, delay);
            self.pods.shown(key, vmi, delay.min(PASSING));
        });
        let attachments = async {
            if let Some(attachments) = &self.attachments {
                attachments.run().await;
            }
        };
        tokio::join!(
            attachments,
            self.vmis.run(),
            finalize,
            remove,
            self.pods.run(),
            self.status.run(),
            follow
        );
    }
}

/// When the status of a VMI is to be written.
fn delay(vmi: &VirtualMachineInstance) -> Duration {
    let is_explained = failure(&vmi.status).is_some();
    match Phase::parse(&vmi.status.phase) {
        Phase::Pending | Phase::Scheduling | Phase::Scheduled if is_explained => PASSING,
        Phase::Pending | Phase::Scheduling | Phase::Scheduled => STARTING,
        Phase::Running | Phase::Succeeded | Phase::Failed => Duration::ZERO,
    }
}

/// The source of VMIs that the node agent reads.
struct ClusterSource {
    vmis: Arc<Informer<Instance>>,
    bound: Arc<Bound>,
    changed: Arc<Notify>,
    deleting: Arc<WorkQueue<VmiId>>,
    removed: Arc<WorkQueue<VmiId>>,
    adopted: watch::Sender<bool>,
    is_first: bool,
}

impl Source for ClusterSource {
    async fn ready(&mut self, adopted: Vec<(Key, Uuid)>) {
        self.adopted.send_replace(true);
        self.vmis.synced().await;
        // They were deleted or lost their label while the handler did not run.
        for (key, uid) in adopted {
            let uid = uid.to_string();
            if self.vmis.get(&key).is_none_or(|vmi| vmi.uid != uid) {
                self.bound.hold(&key);
                self.removed.add(VmiId { key, uid });
            }
        }
    }

    fn update(&mut self, _: &BTreeMap<Key, String>) -> Update {
        match std::mem::take(&mut self.is_first) {
            true => self.bound.all(),
            false => self.bound.changes(),
        }
    }

    async fn changed(&mut self) {
        self.changed.notified().await;
    }

    fn settle(&mut self, busy: &(dyn Fn(&Key, &str) -> bool + Send + Sync)) {
        for (key, uid) in self.bound.deleting() {
            if !busy(&key, &uid) {
                self.deleting.add(VmiId { key, uid });
            }
        }
    }
}
