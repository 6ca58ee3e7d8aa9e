//! Carries out what was decided about one VM.

use std::time::Duration;

use kube::api::{DynamicObject, PostParams};
use kube::{Error, ResourceExt as _};
use serde::Deserialize as _;
use serde_json::{Value, json};
use vireo_api::v1::{
    ObjectMeta, VirtualMachine, VirtualMachineInstance, VirtualMachineStatus, VolumeRequest,
};
use vireo_client::controller::Requeue;
use vireo_client::events::{Reason, Regarding};
use vireo_client::informer::Cached;
use vireo_client::{Kind, ObjectKey, write};

use super::super::life::Life;
use super::super::memory_dump::{self, DumpVolume};
use super::super::{
    Action, LiveChange, Refusable, Refused, RunStrategy, SpecOwner, Start, plug, set_volumes_and_nics,
};
use super::Controller;
use crate::ReconcileError;
use crate::deletion::Deletion;
use crate::revision::controller_revision;

/// When an action is tried again that was refused.
pub(super) const START_AGAIN: Duration = Duration::from_secs(10);

/// What the API server says.
fn message(error: &Error) -> String {
    match error {
        Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}

/// Why the API server refuses a write, if it does.
fn refusal(written: Result<(), ReconcileError>) -> Result<Option<String>, ReconcileError> {
    match written {
        Err(ReconcileError::Kube(error)) => match write::rejection(&error) {
            Some(status) => Ok(Some(status.message.clone())),
            None => Err(error.into()),
        },
        done => done.map(|()| None),
    }
}

/// The specs that are changed.
#[derive(Debug, Clone, Copy)]
struct Targets {
    template: bool,
    vmi: bool,
}

pub(super) struct Actuator<'a> {
    pub(super) controller: &'a Controller,
    pub(super) vm: &'a VirtualMachine,
    vmi: Option<&'a Cached<VirtualMachineInstance>>,
    /// The VM's, with the resource version of the last write.
    metadata: ObjectMeta,
    /// The status that it has now.
    status: VirtualMachineStatus,
}

impl<'a> Actuator<'a> {
    pub(super) fn new(
        controller: &'a Controller,
        vm: &'a VirtualMachine,
        vmi: Option<&'a Cached<VirtualMachineInstance>>,
    ) -> Self {
        Self { controller, vm, vmi, metadata: vm.metadata.clone(), status: VirtualMachineStatus::default() }
    }

    /// Writes the VM's status, if it changes.
    pub(super) async fn write_status(
        &mut self,
        before: &VirtualMachineStatus,
        after: &VirtualMachineStatus,
    ) -> Result<(), ReconcileError> {
        self.status.clone_from(after);
        if before == after {
            return Ok(());
        }
        let (before, after) = (serde_json::to_value(before)?, serde_json::to_value(after)?);
        let written = self.controller.patch_status(Kind::VM, &self.metadata, &before, &after).await?;
        if let Some(written) = written {
            self.metadata.resource_version = written.resource_version().unwrap_or_default();
        }
        Ok(())
    }

    /// When it is to be tried again, if it was refused.
    pub(super) async fn carry_out(&self, step: Action) -> Result<Requeue, ReconcileError> {
        match (step, self.vmi) {
            (Action::AddFinalizer, _) => self.controller.add_finalizer(&self.metadata).await?,
            (Action::RemoveFinalizer, _) => {
                self.controller.remove_finalizer(Kind::VM, &self.metadata).await?
            }
            (Action::SetRunStrategy(strategy), _) => self.choose(strategy).await?,
            (Action::ApplyVolumes(request), _) => self.plug(&request).await?,
            (Action::SyncInstance(change), _) => self.sync_instance(&change).await?,
            (Action::ApplyMemoryDump(volume), _) => self.set_dump_volume(&volume).await?,
            (Action::CreateDataVolumes(templates), _) => return self.create_data_volumes(&templates).await,
            (Action::CreateVmi(start), _) => return self.start(*start).await,
            (Action::DeleteVmi, Some(vmi)) => return self.delete(vmi).await,
            (Action::ReleaseVmi, Some(vmi)) => {
                self.controller.remove_finalizer(Kind::VMI, &vmi.metadata).await?;
            }
            (Action::Wait | Action::DeleteVmi | Action::ReleaseVmi, _) => {}
        }
        Ok(None)
    }

    pub(super) fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.vm.metadata.namespace, &self.vm.metadata.name)
    }

    /// Remembers what was refused. When to try it again: the first time at once, which has the status show it.
    pub(super) fn refused(&self, action: Refusable, message: String) -> Duration {
        let before = self.controller.refused().insert(self.key(), Refused { action, message });
        if before.is_some_and(|before| before.action == action) { START_AGAIN } else { Duration::ZERO }
    }

    pub(super) async fn publish(&self, reason: Reason, message: String) {
        let regarding = Regarding::new(Kind::VM, &self.vm.metadata);
        self.controller.recorder.publish(regarding, reason, message).await;
    }

    /// Patches the VM's spec to what `change` makes of it.
    async fn change(&self, change: impl FnOnce(&mut Value)) -> Result<(), ReconcileError> {
        let before = json!({"spec": serde_json::to_value(&self.vm.spec)?});
        let mut after = before.clone();
        change(&mut after);
        if let Some(patch) = write::merge_diff(&before, &after) {
            self.controller.patch(Kind::VM, &self.metadata, patch).await?;
        }
        Ok(())
    }

    async fn choose(&self, strategy: RunStrategy) -> Result<(), ReconcileError> {
        self.change(|vm| strategy.set(vm)).await
    }

    /// Carries out a request for a volume. One that is refused is dropped, as it would keep the requests after it.
    async fn plug(&self, request: &VolumeRequest) -> Result<(), ReconcileError> {
        let change = |object: &mut Value, owner| plug(object, owner, request);
        let both = Targets { template: true, vmi: true };
        let Some(refused) = refusal(self.change_volumes(both, change).await)? else { return Ok(()) };
        self.publish(Reason::HotplugFailed, format!("A volume request is dropped: {refused}")).await;
        let requests = &self.status.volume_requests;
        let left: Vec<&VolumeRequest> = requests.iter().filter(|one| *one != request).collect();
        let (before, after) = (json!({"volumeRequests": requests}), json!({"volumeRequests": left}));
        self.controller.patch_status(Kind::VM, &self.metadata, &before, &after).await?;
        Ok(())
    }

    /// Changes volumes, NICs and links of the VMI to those of the template. The template's next change brings another attempt.
    async fn sync_instance(&self, volumes: &LiveChange) -> Result<(), ReconcileError> {
        let change = |object: &mut Value, owner| {
            set_volumes_and_nics(object, owner, |spec| match owner {
                SpecOwner::Vmi => volumes.apply(spec),
                SpecOwner::Vm => volumes.apply_to_template(spec),
            });
            if owner == SpecOwner::Vmi {
                volumes.unmark(object);
            }
        };
        let targets = Targets { template: volumes.changes_template(), vmi: true };
        if let Some(refused) = refusal(self.change_volumes(targets, change).await)? {
            let message = format!("The volumes and NICs of the template are not those of the VMI: {refused}");
            self.publish(Reason::HotplugFailed, message).await;
        }
        Ok(())
    }

    /// Adds the volume of a memory dump, or removes it. A dump whose volume is not to be had has failed.
    async fn set_dump_volume(&self, volume: &DumpVolume) -> Result<(), ReconcileError> {
        let DumpVolume { claim, in_template, in_vmi } = volume;
        let is_wanted = in_vmi.or(*in_template).unwrap_or_default();
        let change = |object: &mut Value, owner| memory_dump::set_volume(object, owner, claim, is_wanted);
        let targets = Targets { template: in_template.is_some(), vmi: in_vmi.is_some() };
        let changed = self.change_volumes(targets, change).await;
        if !is_wanted {
            // What it is removed after stays so.
            return changed;
        }
        let Some(refused) = refusal(changed)? else { return Ok(()) };
        let mut after = self.status.clone();
        memory_dump::fail(&mut after, &refused, jiff::Timestamp::now());
        let (before, after) = (serde_json::to_value(&self.status)?, serde_json::to_value(&after)?);
        self.controller.patch_status(Kind::VM, &self.metadata, &before, &after).await?;
        Ok(())
    }

    /// Changes the volumes and NICs of the template, the VMI or both: the VMI first, as a request is forgotten when the
    /// template and the VMI show it.
    async fn change_volumes(
        &self,
        targets: Targets,
        change: impl Fn(&mut Value, SpecOwner),
    ) -> Result<(), ReconcileError> {
        let vmi = self.vmi.filter(|vmi| targets.vmi && !Life::of(Some(&vmi.value)).is_over());
        if let Some(vmi) = vmi {
            let Cached { key, uid, .. } = vmi;
            let api = Kind::VMI.namespaced(&self.controller.client, &key.namespace);
            // The cache does not have all of its spec.
            let found = api.get_opt(&key.name).await?.filter(|found| found.uid().as_deref() == Some(uid));
            if let Some(found) = found {
                let before = serde_json::to_value(&found)?;
                let mut after = before.clone();
                change(&mut after, SpecOwner::Vmi);
                if let Some(patch) = write::merge_diff(&before, &after) {
                    let resource_version = found.resource_version().unwrap_or_default();
                    let version = ObjectMeta { resource_version, ..vmi.metadata.clone() };
                    self.controller.patch(Kind::VMI, &version, patch).await?;
                }
            }
        }
        match targets.template {
            true => self.change(|vm| change(vm, SpecOwner::Vm)).await,
            false => Ok(()),
        }
    }

    /// Creates the VMI, and before it the ControllerRevision that it refers to.
    async fn start(&self, start: Start) -> Result<Requeue, ReconcileError> {
        let Start { revision, instance } = start;
        let ObjectMeta { namespace, .. } = &self.vm.metadata;
        let metadata = &self.vm.metadata;
        let revision =
            controller_revision(metadata, &revision.name, &json!({}), &revision.data, revision.generation);
        let object = DynamicObject::deserialize(serde_json::to_value(&instance)?)?;
        let vmis = Kind::VMI.namespaced(&self.controller.client, namespace);
        let created = match self.controller.create_revision(namespace, &revision).await {
            Ok(_) => vmis.create(&PostParams::default(), &object).await,
            Err(error) => Err(error),
        };
        match created {
            Ok(created) => {
                let name = created.name_any();
                let text = format!(
                    "Started the virtual machine by creating the new virtual machine instance {name}"
                );
                self.publish(Reason::SuccessfulCreate, text).await;
                self.controller.caches.show(Kind::VMI, &created).await;
                Ok(None)
            }
            Err(error) => {
                // A VMI of this name that is not the VM's is rejected, too.
                if !write::already_exists(&error) && write::rejection(&error).is_none() {
                    return Err(error.into());
                }
                let text = format!("Error creating virtual machine instance: {}", message(&error));
                self.publish(Reason::FailedCreate, text.clone()).await;
                Ok(Some(self.refused(Refusable::CreateVmi, text)))
            }
        }
    }

    async fn delete(&self, vmi: &Cached<VirtualMachineInstance>) -> Result<Requeue, ReconcileError> {
        let ObjectKey { namespace, name } = &vmi.key;
        let api = Kind::VMI.namespaced(&self.controller.client, namespace);
        let uid = &vmi.uid;
        let deletion = Deletion { what: "virtual machine instance", name, uid };
        let regarding = Regarding::new(Kind::VM, &self.vm.metadata);
        let left = deletion.carry_out(&api, &self.controller.recorder, regarding).await;
        if let Some(status) = left.as_ref().err().and_then(write::rejection) {
            let text = format!("Error deleting virtual machine instance {name}: {}", status.message);
            return Ok(Some(self.refused(Refusable::DeleteVmi, text)));
        }
        let left = left?;
        let text =
            format!("Stopped the virtual machine by deleting the virtual machine instance with uid {uid}");
        self.publish(Reason::SuccessfulDelete, text).await;
        match left {
            Some(leaving) => self.controller.caches.show(Kind::VMI, &leaving).await,
            None => self.controller.caches.vmis.shows(0, &[(vmi.key.clone(), uid.clone())]).await,
        }
        Ok(None)
    }
}
