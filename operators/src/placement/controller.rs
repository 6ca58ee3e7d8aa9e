//! The controller of placement: binds instances to the node, and says of the others why they are not bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::api::DynamicObject;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use serde::Deserialize as _;
use serde_json::{Value, json};
use thiserror::Error;
use vireo_api::v1::{Condition, VirtualMachineInstance};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::informer::{Cached, Informer, revision, whole};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey, write};

use super::{Node, Room, Waiting, refuse};

/// The label of an instance that names the node to which it is bound; KubeVirt's.
pub const NODE_LABEL: &str = "kubevirt.io/nodeName";
/// The finalizer that the node agent holds until nothing is left of an instance; KubeVirt's.
pub const FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";

/// All VMIs are placed together: one that is refused must not delay the others.
const LONGEST_RETRY: std::time::Duration = std::time::Duration::from_secs(5);
const COMPONENT: &str = "default-scheduler";
const CONDITION: &str = "PodScheduled";
const UNSCHEDULABLE: &str = "Unschedulable";

/// An instance as placement reads it: without its devices and volumes.
#[derive(Debug)]
pub struct Candidate {
    vmi: VirtualMachineInstance,
    asks: Room,
}

impl Candidate {
    fn read(object: Value) -> Result<Self, serde_json::Error> {
        let asks = Room::asked(&object);
        let mut vmi = VirtualMachineInstance::deserialize(object)?;
        vmi.spec.domain = Default::default();
        vmi.spec.volumes = Vec::new();
        Ok(Self { vmi, asks })
    }

    fn node(&self) -> Option<&str> {
        self.vmi.metadata.labels.get(NODE_LABEL).map(String::as_str)
    }

    fn is_final(&self) -> bool {
        ["Succeeded", "Failed"].contains(&self.vmi.status.phase.as_str())
    }

    fn is_leaving(&self) -> bool {
        self.vmi.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has a node already, as an older release noted it.
    fn was_placed(&self) -> bool {
        !self.vmi.status.node_name.is_empty()
    }

    /// What it takes of its node while it is bound.
    fn taken(&self) -> Option<Room> {
        (self.node().is_some() && !self.is_final()).then_some(self.asks)
    }
}

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
    vmis: Arc<Informer<Candidate>>,
    nodes: Arc<Informer<Node>>,
    recorder: EventRecorder,
    /// All instances are placed together: the key is the node.
    queue: Arc<WorkQueue<ObjectKey>>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Controller").field("node", &self.node.name).finish_non_exhaustive()
    }
}

impl Controller {
    /// Places instances on the node of this name, as the user of a client.
    pub fn new(client: Client, node: &str) -> Self {
        let key = ObjectKey::new("", node);
        let vmis = Informer::new(Kind::VMI.all(&client), Config::default(), Candidate::read);
        let only = Config::default().fields(&format!("metadata.name={node}"));
        let nodes = Informer::new(Kind::NODE.all(&client), only, whole);
        let queue = Arc::new(WorkQueue::new(controller::RETRY.0, LONGEST_RETRY));
        let (changed, all) = (Arc::clone(&queue), key.clone());
        vmis.on_change(move |change| {
            let taken = |vmi: &Option<Arc<Cached<Candidate>>>| vmi.as_ref().and_then(|vmi| vmi.taken());
            let waits = change.after.as_ref().is_some_and(|vmi| vmi.node().is_none());
            if waits || taken(&change.before) != taken(&change.after) {
                changed.add(all.clone());
            }
        });
        let (changed, all) = (Arc::clone(&queue), key.clone());
        nodes.on_change(move |_| changed.add(all.clone()));
        let recorder = EventRecorder::new(client.clone(), COMPONENT, None);
        Self { client, node: key, vmis, nodes, recorder, queue }
    }

    /// Places instances until it is dropped.
    pub async fn run(&self) {
        let place = async {
            self.vmis.synced().await;
            self.nodes.synced().await;
            controller::run(self, &self.queue, 1).await;
        };
        tokio::join!(self.vmis.run(), self.nodes.run(), place);
    }

    fn api(&self, vmi: &Cached<Candidate>) -> Api<DynamicObject> {
        Kind::VMI.namespaced(&self.client, &vmi.key.namespace)
    }

    async fn bind(&self, vmi: &Cached<Candidate>, node: &str) -> Result<u64, PlacementError> {
        let patch = json!({"metadata": {"labels": {NODE_LABEL: node}}});
        Ok(revision(&write::patch(&self.api(vmi), (&vmi.vmi.metadata).into(), patch).await?))
    }

    /// Notes why an instance is not bound. The revision, if that is new.
    async fn note(&self, vmi: &Cached<Candidate>, why: &str) -> Result<Option<u64>, PlacementError> {
        let before = &vmi.vmi.status;
        let has = before.conditions.iter().find(|one| one.r#type == CONDITION);
        if has.is_some_and(|has| has.reason == UNSCHEDULABLE && has.message == why) {
            return Ok(None);
        }
        let mut after = before.clone();
        after.conditions.retain(|one| one.r#type != CONDITION);
        let now = Timestamp::now();
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        after.conditions.push(Condition {
            r#type: CONDITION.to_owned(),
            status: "False".to_owned(),
            reason: UNSCHEDULABLE.to_owned(),
            message: why.to_owned(),
            last_transition_time: Some(now.to_string()),
            ..Condition::default()
        });
        "Scheduling".clone_into(&mut after.phase);
        let written = self.patch_status(vmi, &serde_json::to_value(after)?).await?;
        self.recorder
            .publish(Regarding::new(Kind::VMI, &vmi.vmi.metadata), Reason::FailedScheduling, why)
            .await;
        Ok(written.as_ref().map(revision))
    }

    async fn patch_status(
        &self,
        vmi: &Cached<Candidate>,
        after: &Value,
    ) -> Result<Option<DynamicObject>, PlacementError> {
        let before = serde_json::to_value(&vmi.vmi.status)?;
        Ok(write::patch_status(&self.api(vmi), (&vmi.vmi.metadata).into(), &before, after).await?)
    }

    /// Ends an instance that is deleted before it is bound: no node agent knows of it.
    async fn release(&self, vmi: &Cached<Candidate>) -> Result<Option<u64>, PlacementError> {
        let metadata = &vmi.vmi.metadata;
        let mut version = write::Version::from(metadata);
        let mut written = None;
        if !vmi.is_final() {
            let mut after = vmi.vmi.status.clone();
            "Failed".clone_into(&mut after.phase);
            written = self.patch_status(vmi, &serde_json::to_value(after)?).await?;
        }
        let ended = written.as_ref().and_then(|ended| ended.metadata.resource_version.clone());
        if let Some(ended) = &ended {
            version.resource_version = ended;
        }
        let others: Vec<&String> = metadata.finalizers.iter().filter(|one| *one != FINALIZER).collect();
        if others.len() != metadata.finalizers.len() {
            let patch = json!({"metadata": {"finalizers": others}});
            written = Some(write::patch(&self.api(vmi), version, patch).await?);
        }
        Ok(written.as_ref().map(revision))
    }

    /// Writes what was decided of one instance; the revision of the write.
    async fn carry_out(
        &self,
        vmi: &Cached<Candidate>,
        why: Option<&String>,
    ) -> Result<Option<u64>, PlacementError> {
        match why {
            _ if vmi.is_leaving() && !vmi.was_placed() => self.release(vmi).await,
            _ if vmi.was_placed() => self.bind(vmi, &vmi.vmi.status.node_name).await.map(Some),
            Some(why) => self.note(vmi, why).await,
            None => self.bind(vmi, &self.node.name).await.map(Some),
        }
    }
}

impl Reconcile for Controller {
    type Key = ObjectKey;
    type Error = PlacementError;
    const NAME: &'static str = COMPONENT;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, PlacementError> {
        let node = self.nodes.get(key);
        let all = self.vmis.all();
        let (mut placed, mut waiting) = (Vec::new(), Vec::new());
        let mut unbound = BTreeMap::new();
        for vmi in &all {
            let is_bound = vmi.node().is_some();
            let is_here = vmi.node().map_or_else(|| vmi.was_placed(), |node| node == self.node.name);
            if !vmi.is_final() && is_here {
                placed.push(vmi.asks);
            } else if !is_bound && !vmi.is_final() && !vmi.is_leaving() {
                waiting.push(Waiting { instance: vmi.vmi.clone(), asks: vmi.asks });
            }
            if !is_bound && (vmi.is_leaving() || !vmi.is_final()) {
                unbound.insert(creation(vmi), vmi);
            }
        }
        let refused = refuse(node.as_deref().map(|node| &node.value), placed, waiting);
        let (mut shown, mut failed) = (0, None);
        for vmi in unbound.values() {
            match self.carry_out(vmi, refused.get(&vmi.uid)).await {
                Ok(written) => shown = written.unwrap_or_default().max(shown),
                Err(error) => failed = Some(error),
            }
        }
        // Else the next decision would not know of the writes of this one.
        self.vmis.shows(shown, &[]).await;
        failed.map_or(Ok(None), Err)
    }
}

/// Instances are bound in the order of their creation.
fn creation(vmi: &Cached<Candidate>) -> (Option<&str>, &ObjectKey) {
    (vmi.vmi.metadata.creation_timestamp.as_deref(), &vmi.key)
}
