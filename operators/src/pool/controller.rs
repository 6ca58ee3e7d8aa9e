//! The controller of VirtualMachinePools: carries out what [`decide`] says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use thiserror::Error;
use vireo_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachinePool, VirtualMachineTemplateSpec};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason};
use vireo_client::informer::{Cached, Informer, revision};
use vireo_client::queue::WorkQueue;
use vireo_client::write;
use vireo_client::{Kind, ObjectKey};

use super::actuator::Actuator;
use super::{Decision, Member, Observed, decide};

const COMPONENT: &str = "virtualmachinepool-controller";
/// How many pools are reconciled at a time.
const WORKERS: usize = 4;

/// Why a pool is tried again.
#[derive(Debug, Error)]
pub enum ReconcileError {
    /// A VM cannot be created or changed.
    #[error("a virtual machine cannot be written: {0}")]
    Refused(String),
    /// A request failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// An object cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// A ControllerRevision, as far as pools read it.
#[derive(Debug)]
pub struct PoolRevision {
    /// The template of the pool at that time; absent in revisions of other kinds.
    pub template: Option<VirtualMachineTemplateSpec>,
}

/// Reads a ControllerRevision.
///
/// # Errors
/// Never: what is not a pool's revision has no template.
pub fn read_revision(mut object: Value) -> Result<PoolRevision, serde_json::Error> {
    let template = object.pointer_mut("/data/virtualMachineTemplate").map(Value::take);
    Ok(PoolRevision { template: template.and_then(|template| serde_json::from_value(template).ok()) })
}

/// The caches that the controller reads, which the caller keeps.
#[derive(Debug, Clone)]
pub struct Caches {
    /// Pools.
    pub pools: Arc<Informer<VirtualMachinePool>>,
    /// VMs, with their specs.
    pub vms: Arc<Informer<VirtualMachine>>,
    /// VMIs, without their specs.
    pub vmis: Arc<Informer<VirtualMachineInstance>>,
    /// ControllerRevisions.
    pub revisions: Arc<Informer<PoolRevision>>,
}

/// The controller.
pub struct Controller {
    pub(super) client: Client,
    pub(super) caches: Caches,
    pub(super) recorder: EventRecorder,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// Why the last VM of a pool could not be created or changed.
    refused: Mutex<HashMap<ObjectKey, String>>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Controller").field("caches", &self.caches).finish_non_exhaustive()
    }
}

impl Controller {
    /// A controller that reads these caches.
    pub fn new(client: Client, caches: Caches) -> Self {
        let queue = controller::queue();
        let changed = Arc::clone(&queue);
        caches.pools.on_change(move |change| changed.add(change.key.clone()));
        let changed = Arc::clone(&queue);
        caches.vms.on_change(move |vm| vm.owners(Kind::POOL.kind).for_each(|pool| changed.add(pool)));
        let changed = Arc::clone(&queue);
        caches.revisions.on_change(move |one| one.owners(Kind::POOL.kind).for_each(|pool| changed.add(pool)));
        let (changed, vms) = (Arc::clone(&queue), Arc::clone(&caches.vms));
        caches.vmis.on_change(move |vmi| {
            // A VMI has the name of its VM.
            let owner = vms.get(&vmi.key).and_then(|vm| vm.owner.clone());
            if let Some(owner) = owner.filter(|owner| owner.kind == Kind::POOL.kind) {
                changed.add(ObjectKey::new(&vmi.key.namespace, owner.name));
            }
        });
        let recorder = EventRecorder::new(client.clone(), COMPONENT, None);
        Self { client, caches, recorder, queue, refused: Mutex::default() }
    }

    /// Controls until it is dropped.
    pub async fn run(&self) {
        self.caches.pools.synced().await;
        self.caches.vms.synced().await;
        self.caches.vmis.synced().await;
        self.caches.revisions.synced().await;
        controller::run(self, &self.queue, WORKERS).await;
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<ObjectKey, String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, pool: &Cached<VirtualMachinePool>, vms: &[Arc<Cached<VirtualMachine>>]) -> Decision {
        let namespace = &pool.key.namespace;
        let vmis: Vec<_> = vms.iter().map(|vm| self.caches.vmis.get(&vm.key)).collect();
        let members = vms.iter().zip(&vmis);
        let members: Vec<Member<'_>> = members
            .map(|(vm, vmi)| Member { vm: &vm.value, instance: vmi.as_ref().map(|vmi| &vmi.value) })
            .collect();
        let revisions = self.caches.revisions.owned_by(&pool.uid);
        let revisions =
            revisions.iter().filter_map(|one| Some((one.key.name.clone(), one.template.clone()?)));
        let failure = self.refused().get(&pool.key).cloned();
        let observed = Observed {
            pool: &pool.value,
            members: &members,
            revisions: &revisions.collect(),
            failure: failure.as_deref(),
            now: Timestamp::now(),
        };
        decide(observed, |name| self.caches.vms.get(&ObjectKey::new(namespace, name)).is_some())
    }

    async fn write_status(
        &self,
        pool: &Cached<VirtualMachinePool>,
        decision: &Decision,
    ) -> Result<(), ReconcileError> {
        let api = Kind::POOL.namespaced(&self.client, &pool.key.namespace);
        let written = write::change_status(&api, (&pool.metadata).into(), &pool.status, &decision.status);
        if let Some(written) = written.await? {
            self.caches.pools.shows(revision(&written), &[]).await;
        }
        Ok(())
    }
}

impl Reconcile for Controller {
    type Key = ObjectKey;
    type Error = ReconcileError;
    const NAME: &'static str = "virt-controller-pool";

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, ReconcileError> {
        let Some(pool) = self.caches.pools.get(key) else {
            self.refused().remove(key);
            return Ok(None);
        };
        let vms = self.caches.vms.owned_by(&pool.uid);
        let decision = self.decide(&pool, &vms);
        self.write_status(&pool, &decision).await?;
        let mut actuator = Actuator::new(self, &pool, &vms);
        match decision.paused {
            Some(true) => actuator.publish(Reason::SuccessfulPaused, "Pool is paused").await,
            Some(false) => actuator.publish(Reason::SuccessfulResume, "Pool is unpaused").await,
            None => {}
        }
        let carried_out = actuator.carry_out(decision.steps).await;
        // Else the next decision would not know of the writes of this one.
        actuator.wait_for_caches().await;
        match carried_out? {
            Some(why) => {
                self.refused().insert(key.clone(), why.clone());
                return Err(ReconcileError::Refused(why));
            }
            // The status that was written has the reason still.
            None if self.refused().remove(key).is_some() => return Ok(Some(Duration::ZERO)),
            None => {}
        }
        let delay =
            |at: Timestamp| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
        Ok(decision.requeue_at.map(delay))
    }
}
