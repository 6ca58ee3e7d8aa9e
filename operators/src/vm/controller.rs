//! The controller of VirtualMachines: carries out what [`decide`](decide()) and [`orphan`] say. A VM
//! and its VMI have the same name, which is the key of the queue.

mod actuator;
mod caches;
mod data_volumes;
mod writes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use serde_json::json;
use vireo_api::v1::{ObjectMeta, VirtualMachine, VirtualMachineInstance};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::EventRecorder;
use vireo_client::informer::Cached;
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey, write};

pub use caches::Caches;

use super::{Action, Observed, Provision, Refusable, Refused, Revision, decide, orphan};
use crate::Problem;
use crate::ReconcileError;
use crate::config::LiveConfig;
use crate::instancetype::{self, Choice, Expanded};
use actuator::Actuator;

const COMPONENT: &str = "virtualmachine-controller";
/// How many VMs are reconciled at a time.
const WORKERS: usize = 4;
/// When a VM is expanded again that could not be. Most causes are watched; what the VM refers to by a revision's name is
/// not.
const EXPAND_AGAIN: Duration = Duration::from_secs(10);

/// The controller.
pub struct Controller {
    client: Client,
    caches: Caches,
    config: LiveConfig,
    recorder: EventRecorder,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// What the API server has refused of each VM.
    refused: Mutex<HashMap<ObjectKey, Refused>>,
}

impl Controller {
    /// A controller that reads these caches and the configuration, which its caller runs.
    pub fn new(client: Client, caches: Caches, config: LiveConfig) -> Self {
        let queue = controller::queue();
        let changed = Arc::clone(&queue);
        caches.vms.on_change(move |vm| changed.add(vm.key.clone()));
        let changed = Arc::clone(&queue);
        caches.vmis.on_change(move |vmi| changed.add(vmi.key.clone()));
        let changed = Arc::clone(&queue);
        caches.revisions.on_change(move |revision| {
            revision.owners(Kind::VM.kind).for_each(|vm| changed.add(vm));
        });
        let (changed, vms) = (Arc::clone(&queue), Arc::clone(&caches.vms));
        caches.instancetypes.on_change(move |choice, scope, object| {
            // VMs that exist already keep what they were started with.
            if object.before.is_some() {
                return;
            }
            let vms = match object.key.namespace.as_str() {
                "" => vms.all(),
                namespace => vms.namespace(namespace),
            };
            let refers = |vm: &&Arc<Cached<VirtualMachine>>| {
                choice.matcher(&vm.spec).is_some_and(|matcher| {
                    matcher.name == object.key.name && choice.scope(&matcher.kind) == Some(scope)
                })
            };
            vms.iter().filter(refers).for_each(|vm| changed.add(vm.key.clone()));
        });
        data_volumes::watch(&caches, &queue);
        let recorder = EventRecorder::new(client.clone(), COMPONENT, None);
        Self { client, caches, config, recorder, queue, refused: Mutex::default() }
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<ObjectKey, Refused>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Controls until it is dropped.
    pub async fn run(&self) {
        self.caches.synced().await;
        controller::run(self, &self.queue, WORKERS).await;
    }

    /// Acts on a VMI that lost its VM; whether it did.
    async fn release_or_adopt(
        &self,
        vm: Option<&ObjectMeta>,
        vmi: &Cached<VirtualMachineInstance>,
    ) -> Result<bool, ReconcileError> {
        let metadata = &vmi.metadata;
        if orphan::is_abandoned(metadata, vm) {
            self.remove_finalizer(Kind::VMI, metadata).await?;
            return Ok(true);
        }
        let Some(owner) = vm.and_then(|vm| orphan::adopt(vm, metadata)) else { return Ok(false) };
        let owners: Vec<_> = metadata.owner_references.iter().cloned().chain([owner]).collect();
        let patch = json!({"metadata": {"ownerReferences": owners}});
        self.patch(Kind::VMI, metadata, patch).await?;
        Ok(true)
    }

    /// Expands a VM's template with what it chose. What it chose is kept in ControllerRevisions, and recorded in `vm`.
    async fn expand(&self, vm: &mut VirtualMachine) -> Result<Expanded, ReconcileError> {
        let mut found = Vec::new();
        for choice in Choice::ALL {
            match instancetype::find(&self.caches, vm, choice) {
                Ok(Some(chosen)) => {
                    if let Some(revision) = chosen.new_revision(&vm.metadata) {
                        match self.create_revision(&vm.metadata.namespace, &revision).await {
                            Ok(Some(created)) => self.caches.revisions.shows(created, &[]).await,
                            Ok(None) => {}
                            Err(error) => {
                                let refused = write::rejection(&error).map(|status| status.message.clone());
                                let field = format!("spec.{}", choice.field());
                                let problem = refused.map(|message| Problem::invalid(field, message));
                                return problem.map_or_else(|| Err(error.into()), |one| Ok(Err(vec![one])));
                            }
                        }
                    }
                    found.push(chosen);
                }
                Ok(None) => instancetype::clear(vm, choice),
                Err(problem) => return Ok(Err(vec![problem])),
            }
        }
        // A recorded reference is not replaced any more: not before the other one is found, too.
        found.iter().for_each(|chosen| chosen.record(vm));
        let of = |choice| found.iter().find(|chosen| chosen.choice() == choice);
        Ok(instancetype::expand_with(vm, of(Choice::Instancetype), of(Choice::Preference)))
    }

    /// Replaces a VM's references to an instance type and a preference by the fields that they add, where the configuration
    /// says so and it can be expanded.
    async fn replace_choices(&self, vm: &VirtualMachine) -> Result<Replaced, ReconcileError> {
        if !instancetype::is_replaced(vm, self.config.current().reference_policy) {
            return Ok(Replaced::Kept);
        }
        let template = match instancetype::expand(&self.caches, vm) {
            Ok(Some(template)) => template,
            Ok(None) => return Ok(Replaced::Kept),
            Err(_) => return Ok(Replaced::NotYet),
        };
        let patch = json!({"spec": {"template": template, "instancetype": null, "preference": null}});
        match self.patch(Kind::VM, &vm.metadata, patch).await {
            Ok(_) => Ok(Replaced::Written),
            // It works with its references, too.
            Err(error) if write::rejection(&error).is_some() => {
                tracing::warn!(%error, vm = vm.metadata.name, "cannot replace the instance type of a VM");
                Ok(Replaced::Kept)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes into the status of a VMI which revision of its VM it was created from; the status of a new object is written
    /// apart.
    async fn set_revision_name(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        name: &str,
    ) -> Result<(), ReconcileError> {
        let status = json!({"virtualMachineRevisionName": name});
        self.patch_status(Kind::VMI, &vmi.metadata, &json!({}), &status).await?;
        Ok(())
    }
}

/// What became of a VM's references to an instance type and a preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replaced {
    /// Their fields were written in their place, which brings the VM back.
    Written,
    /// They stay, since the configuration or the API server says so.
    Kept,
    /// The template cannot be expanded, so far.
    NotYet,
}

impl Reconcile for Controller {
    type Key = ObjectKey;
    type Error = ReconcileError;
    const NAME: &'static str = "virt-controller-vm";

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, ReconcileError> {
        let (cached, vmi) = (self.caches.vms.get(key), self.caches.vmis.get(key));
        if let Some(vmi) = &vmi
            && self.release_or_adopt(cached.as_ref().map(|vm| &vm.metadata), vmi).await?
        {
            // The change of the VMI brings the key back.
            return Ok(None);
        }
        let Some(cached) = cached else {
            self.refused().remove(key);
            return Ok(None);
        };
        let vmi = vmi.filter(|vmi| orphan::owns(&cached.metadata, &vmi.metadata));
        let mut vm = cached.value.clone();
        let revision = vmi.as_ref().and_then(|vmi| {
            let name = Revision::name_for(&vm, vmi)?;
            self.caches.revisions.get(&ObjectKey::new(&key.namespace, name))
        });
        if let (Some(vmi), Some(revision)) = (&vmi, &revision)
            && vmi.status.virtual_machine_revision_name.is_empty()
            && vmi.metadata.deletion_timestamp.is_none()
        {
            match self.set_revision_name(vmi, &revision.key.name).await {
                Ok(()) => return Ok(None),
                // The VM works without it.
                Err(ReconcileError::Kube(error)) if write::rejection(&error).is_some() => {
                    tracing::warn!(%error, vmi = %vmi.key, "cannot write the name of a revision");
                }
                Err(error) => return Err(error),
            }
        }
        let replaced = match vmi {
            None => self.replace_choices(&vm).await?,
            Some(_) => Replaced::Kept,
        };
        if replaced == Replaced::Written {
            return Ok(None);
        }
        let expanded = match vm.metadata.deletion_timestamp {
            Some(_) => None,
            None => self.expand(&mut vm).await?.map_err(|problems| explain(&problems)).transpose(),
        };
        // What was missing came meanwhile. References that were recorded would stay.
        if replaced == Replaced::NotYet && matches!(expanded, Some(Ok(_))) {
            return Ok(Some(Duration::ZERO));
        }
        let provision = Provision::of(&vm, &*self.caches.storage);
        let refused = self.refused().get(key).cloned();
        let now = Timestamp::now();
        let decision = decide(Observed {
            vm: &vm,
            instance: vmi.as_ref().map(|vmi| &vmi.value),
            revision: revision.as_ref().map(|revision| &revision.value),
            expanded: expanded.as_ref().map(|expanded| expanded.as_ref().map_err(String::as_str)),
            provision: &provision,
            refused: refused.as_ref(),
            now,
            jitter: f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0,
        });
        if refused.is_some_and(|refused| Refusable::of(&decision.action) != Some(refused.action)) {
            self.refused().remove(key);
        }
        let mut try_again = None;
        let mut actuator = Actuator::new(self, &vm, vmi.as_deref());
        let status_written = actuator.write_status(&cached.status, &decision.status).await;
        // Whatever is wrong with the VM, what ended is released.
        if status_written.is_ok() || matches!(decision.action, Action::ReleaseVmi | Action::RemoveFinalizer) {
            try_again = actuator.carry_out(decision.action).await?;
        }
        status_written?;
        let requeue_after =
            decision.requeue_at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        let expand_again = matches!(expanded, Some(Err(_))).then_some(EXPAND_AGAIN);
        Ok([requeue_after, expand_again, try_again].into_iter().flatten().min())
    }
}

fn explain(problems: &[Problem]) -> String {
    let lines: Vec<String> =
        problems.iter().map(|problem| format!("{}: {}", problem.field, problem.message)).collect();
    lines.join("; ")
}
