//! The controller of VirtualMachineInstanceReplicaSets: carries out what [`decide`] says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use vireo_api::v1::{OwnerReference, VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::informer::{Cached, Informer, revision};
use vireo_client::queue::WorkQueue;
use vireo_client::write;
use vireo_client::{Kind, ObjectKey};

use super::{Observed, Step, decide, selects};
use crate::ReconcileError;
use crate::deletion::Deletion;

const COMPONENT: &str = "virtualmachinereplicaset-controller";
/// How many sets are reconciled at a time.
const WORKERS: usize = 4;

/// The controller.
pub struct Controller {
    client: Client,
    sets: Arc<Informer<VirtualMachineInstanceReplicaSet>>,
    vmis: Arc<Informer<VirtualMachineInstance>>,
    recorder: EventRecorder,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// Why the last instance of a set could not be created.
    refused: Mutex<HashMap<ObjectKey, String>>,
}

impl Controller {
    /// A controller that reads these caches, which the caller keeps.
    pub fn new(
        client: Client,
        sets: Arc<Informer<VirtualMachineInstanceReplicaSet>>,
        vmis: Arc<Informer<VirtualMachineInstance>>,
    ) -> Self {
        let queue = controller::queue();
        let changed = Arc::clone(&queue);
        sets.on_change(move |change| changed.add(change.key.clone()));
        let (changed, of) = (Arc::clone(&queue), Arc::clone(&sets));
        vmis.on_change(move |vmi| {
            vmi.owners(Kind::REPLICA_SET.kind).for_each(|set| changed.add(set));
            // A set may adopt an instance that nothing controls.
            for orphan in vmi.versions().filter(|vmi| vmi.owner.is_none()) {
                let sets = of.namespace(&vmi.key.namespace);
                let adopting = sets.iter().filter(|set| selects(&set.value, &orphan.metadata.labels));
                adopting.for_each(|set| changed.add(set.key.clone()));
            }
        });
        let recorder = EventRecorder::new(client.clone(), COMPONENT, None);
        Self { client, sets, vmis, recorder, queue, refused: Mutex::default() }
    }

    /// Controls until it is dropped.
    pub async fn run(&self) {
        self.sets.synced().await;
        self.vmis.synced().await;
        controller::run(self, &self.queue, WORKERS).await;
    }

    fn refused(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconcile for Controller {
    type Key = ObjectKey;
    type Error = ReconcileError;
    const NAME: &'static str = "virt-controller-replicaset";

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, ReconcileError> {
        let Some(set) = self.sets.get(key) else {
            self.refused().remove(key);
            return Ok(None);
        };
        let failure = self.refused().get(key).cloned();
        // Those that the set controls, and those that it may adopt.
        let instances = [self.vmis.owned_by(&set.uid), self.vmis.uncontrolled(&key.namespace)].concat();
        let instances: Vec<&VirtualMachineInstance> = instances.iter().map(|vmi| &vmi.value).collect();
        let now = Timestamp::now();
        let decision =
            decide(Observed { set: &set, instances: &instances, failure: failure.as_deref(), now });
        let api = Kind::REPLICA_SET.namespaced(&self.client, &key.namespace);
        let written = write::change_status(&api, (&set.metadata).into(), &set.status, &decision.status);
        if let Some(written) = written.await? {
            self.sets.shows(revision(&written), &[]).await;
        }
        let vmis = Kind::VMI.namespaced(&self.client, &key.namespace);
        let mut actuator = Actuator { controller: self, set: &set, vmis, done: Done::default() };
        if let Some(paused) = decision.paused {
            let (reason, what) = match paused {
                true => (Reason::SuccessfulPaused, "Paused"),
                false => (Reason::SuccessfulResumed, "Resumed"),
            };
            actuator.publish(reason, what.to_owned()).await;
        }
        let carried_out = actuator.carry_out(decision.steps, &instances).await;
        let Done { revision, gone, refused } = actuator.done;
        // Else the next decision would not know of the writes of this one.
        self.vmis.shows(revision, &gone).await;
        carried_out?;
        match refused {
            Some(why) => {
                self.refused().insert(key.clone(), why.clone());
                return Err(ReconcileError::Refused(why));
            }
            // The status that was written has the reason still.
            None if self.refused().remove(key).is_some() => return Ok(Some(Duration::ZERO)),
            None => {}
        }
        Ok(decision.requeue_at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default()))
    }
}

/// What was done about a set.
#[derive(Debug, Default)]
struct Done {
    /// The last write.
    revision: u64,
    /// Instances that are gone at once, with their UIDs.
    gone: Vec<(ObjectKey, String)>,
    /// Why an instance could not be created.
    refused: Option<String>,
}

impl Done {
    fn wrote(&mut self, object: &DynamicObject) {
        self.revision = revision(object).max(self.revision);
    }
}

struct Actuator<'a> {
    controller: &'a Controller,
    set: &'a Cached<VirtualMachineInstanceReplicaSet>,
    vmis: Api<DynamicObject>,
    done: Done,
}

impl Actuator<'_> {
    async fn publish(&self, reason: Reason, message: String) {
        let regarding = Regarding::new(Kind::REPLICA_SET, &self.set.metadata);
        self.controller.recorder.publish(regarding, reason, message).await;
    }

    async fn carry_out(
        &mut self,
        steps: Vec<Step>,
        instances: &[&VirtualMachineInstance],
    ) -> Result<(), ReconcileError> {
        let of = |uid: &str| instances.iter().copied().find(|one| one.metadata.uid == uid);
        for step in steps {
            match step {
                // What one is refused for, all are.
                Step::Create(_) if self.done.refused.is_some() => {}
                Step::Create(vmi) => self.create(&vmi).await?,
                Step::Delete(uid) => {
                    if let Some(vmi) = of(&uid) {
                        self.delete(vmi).await?;
                    }
                }
                Step::Adopt(uid, owner) => {
                    if let Some(vmi) = of(&uid) {
                        let owners = vmi.metadata.owner_references.iter().cloned().chain([owner]).collect();
                        self.set_owners(vmi, owners).await?;
                    }
                }
                Step::Release(uid) => {
                    if let Some(vmi) = of(&uid) {
                        let others = vmi.metadata.owner_references.iter();
                        let others = others.filter(|one| one.uid != self.set.uid).cloned().collect();
                        self.set_owners(vmi, others).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn create(&mut self, vmi: &VirtualMachineInstance) -> Result<(), ReconcileError> {
        let object: DynamicObject = serde_json::from_value(serde_json::to_value(vmi)?)?;
        match self.vmis.create(&PostParams::default(), &object).await {
            Ok(made) => {
                self.done.wrote(&made);
                let name = made.name_any();
                let text = format!(
                    "Started the virtual machine by creating the new virtual machine instance {name}"
                );
                self.publish(Reason::SuccessfulCreate, text).await;
                Ok(())
            }
            Err(error) => {
                let Some(status) = write::rejection(&error) else { return Err(error.into()) };
                let text = format!("Error creating virtual machine instance: {}", status.message);
                self.publish(Reason::FailedCreate, text).await;
                self.done.refused = Some(status.message.clone());
                Ok(())
            }
        }
    }

    async fn delete(&mut self, vmi: &VirtualMachineInstance) -> Result<(), ReconcileError> {
        let vireo_api::v1::ObjectMeta { namespace, name, uid, .. } = &vmi.metadata;
        let deletion = Deletion { what: "virtual machine instance", name, uid };
        let regarding = Regarding::new(Kind::REPLICA_SET, &self.set.metadata);
        match deletion.carry_out(&self.vmis, &self.controller.recorder, regarding).await? {
            Some(leaving) => self.done.wrote(&leaving),
            None => self.done.gone.push((ObjectKey::new(namespace, name), uid.clone())),
        }
        let text =
            format!("Stopped the virtual machine by deleting the virtual machine instance with uid {uid}");
        self.publish(Reason::SuccessfulDelete, text).await;
        Ok(())
    }

    /// Changes the owners of an instance, unless it was changed meanwhile.
    async fn set_owners(
        &mut self,
        vmi: &VirtualMachineInstance,
        owners: Vec<OwnerReference>,
    ) -> Result<(), ReconcileError> {
        let patch = json!({"metadata": {"ownerReferences": owners}});
        let written = write::patch(&self.vmis, (&vmi.metadata).into(), patch).await?;
        self.done.wrote(&written);
        Ok(())
    }
}
