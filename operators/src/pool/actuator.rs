//! The writes of a pool's controller.

use std::sync::Arc;

use kube::api::{DynamicObject, PostParams};
use kube::{Api, Error};
use serde_json::{Value, json};
use vireo_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachinePool};
use vireo_client::events::{Reason, Regarding};
use vireo_client::informer::{Cached, Informer, revision};
use vireo_client::{Kind, ObjectKey, write};

use super::controller::{Controller, ReconcileError};
use super::{Made, REVISION_LABEL, Revision, Step};
use crate::deletion::Deletion;

/// What was written of one resource.
#[derive(Debug, Default)]
struct Written {
    /// The last resource version.
    revision: u64,
    /// Objects that are gone at once, with their UIDs.
    gone: Vec<(ObjectKey, String)>,
}

impl Written {
    fn object(&mut self, object: &DynamicObject) {
        self.revision = revision(object).max(self.revision);
    }

    fn deleted(&mut self, object: &Cached<impl Sized>, leaving: Option<&DynamicObject>) {
        match leaving {
            Some(leaving) => self.object(leaving),
            None => self.gone.push((object.key.clone(), object.uid.clone())),
        }
    }

    async fn wait<T: Send + Sync + 'static>(&self, cache: &Informer<T>) {
        if self.revision > 0 || !self.gone.is_empty() {
            cache.shows(self.revision, &self.gone).await;
        }
    }
}

/// Carries out what was decided about one pool.
pub(super) struct Actuator<'a> {
    controller: &'a Controller,
    pool: &'a Cached<VirtualMachinePool>,
    /// The VMs that the pool controls.
    members: &'a [Arc<Cached<VirtualMachine>>],
    vms: Written,
    vmis: Written,
    revisions: Written,
}

impl<'a> Actuator<'a> {
    pub(super) fn new(
        controller: &'a Controller,
        pool: &'a Cached<VirtualMachinePool>,
        members: &'a [Arc<Cached<VirtualMachine>>],
    ) -> Self {
        let (vms, vmis, revisions) = Default::default();
        Self { controller, pool, members, vms, vmis, revisions }
    }

    /// Waits until the caches show what was written.
    pub(super) async fn wait_for_caches(&self) {
        let caches = &self.controller.caches;
        self.vms.wait(&caches.vms).await;
        self.vmis.wait(&caches.vmis).await;
        self.revisions.wait(&caches.revisions).await;
    }

    pub(super) async fn publish(&self, reason: Reason, message: impl Into<String>) {
        let regarding = Regarding::new(Kind::POOL, &self.pool.metadata);
        self.controller.recorder.publish(regarding, reason, message).await;
    }

    /// Carries out one step after the other, up to the first creation that the API server refuses: it would refuse the same
    /// of the next VM. Why it refused.
    pub(super) async fn carry_out(&mut self, steps: Vec<Step>) -> Result<Option<String>, ReconcileError> {
        let mut first = None;
        for step in steps {
            // VMs differ in what they were started with, and so in what they are refused for.
            let is_update = matches!(step, Step::Update(..));
            let refused = self.act(step).await?;
            match refused {
                Some(_) if !is_update => return Ok(refused),
                refused => first = first.or(refused),
            }
        }
        Ok(first)
    }

    async fn act(&mut self, step: Step) -> Result<Option<String>, ReconcileError> {
        match step {
            Step::Keep(revision) => return self.keep(&revision).await,
            Step::Create(vm) => return self.create(&vm).await,
            Step::Update(uid, made) => {
                if let Some(vm) = self.vm(&uid) {
                    return self.update(vm, *made).await;
                }
            }
            Step::Delete(uid) => {
                if let Some(vm) = self.vm(&uid) {
                    self.delete(vm).await?;
                }
            }
            Step::Release(uid) => {
                if let Some(vm) = self.vm(&uid) {
                    self.release(vm).await?;
                }
            }
            Step::Restart(uid) => {
                if let Some(vmi) = self.vmi(&uid) {
                    self.restart(&vmi).await?;
                }
            }
            Step::Relabel(uid, revision) => {
                if let Some(vmi) = self.vmi(&uid) {
                    let patch = json!({"metadata": {"labels": {REVISION_LABEL: revision}}});
                    let api = self.api(Kind::VMI);
                    self.vmis.object(&write::patch(&api, (&vmi.metadata).into(), patch).await?);
                }
            }
            Step::Prune(name) => self.prune(&name).await?,
        }
        Ok(None)
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        kind.namespaced(&self.controller.client, &self.pool.key.namespace)
    }

    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&self.pool.key.namespace, name)
    }

    fn vm(&self, uid: &str) -> Option<&'a Cached<VirtualMachine>> {
        self.members.iter().find(|vm| vm.uid == uid).map(|vm| &**vm)
    }

    fn vmi(&self, uid: &str) -> Option<Arc<Cached<VirtualMachineInstance>>> {
        let vmis = self.members.iter().filter_map(|vm| self.controller.caches.vmis.get(&vm.key));
        vmis.into_iter().find(|vmi| vmi.uid == uid)
    }

    /// Creates the revision, unless it exists. It cannot replace one of another pool that had this name.
    async fn keep(&mut self, revision: &Revision) -> Result<Option<String>, ReconcileError> {
        let name = &revision.name;
        if let Some(existing) = self.controller.caches.revisions.get(&self.key(name)) {
            let is_own = existing.owner.as_ref().is_some_and(|owner| owner.uid == self.pool.uid);
            let message = || format!("there is a ControllerRevision {name:?} that is not the pool's");
            return Ok((!is_own).then(message));
        }
        let kind = Kind::CONTROLLER_REVISION;
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": kind.api_version(), "kind": kind.kind, "data": revision.data,
            "metadata": {"name": name, "ownerReferences": [Revision::owner(self.pool)]},
            "revision": revision.generation,
        }))?;
        match self.api(kind).create(&PostParams::default(), &object).await {
            Ok(created) => {
                self.revisions.object(&created);
                Ok(None)
            }
            Err(error) => rejection(error),
        }
    }

    async fn create(&mut self, vm: &VirtualMachine) -> Result<Option<String>, ReconcileError> {
        let object: DynamicObject = serde_json::from_value(serde_json::to_value(vm)?)?;
        match self.api(Kind::VM).create(&PostParams::default(), &object).await {
            Ok(created) => {
                self.vms.object(&created);
                let text = format!("Created VM {}", self.key(&vm.metadata.name));
                self.publish(Reason::SuccessfulCreate, text).await;
                Ok(None)
            }
            Err(error) => {
                let refused = rejection(error)?;
                if let Some(why) = &refused {
                    self.publish(Reason::FailedCreate, format!("Error creating VM: {why}")).await;
                }
                Ok(refused)
            }
        }
    }

    async fn update(
        &mut self,
        vm: &Cached<VirtualMachine>,
        made: Made,
    ) -> Result<Option<String>, ReconcileError> {
        let of = |labels: &_, annotations: &_, spec: &_| -> Value {
            json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": spec})
        };
        let before = of(&vm.metadata.labels, &vm.metadata.annotations, &vm.spec);
        let after = of(&made.labels, &made.annotations, &made.spec);
        let Some(patch) = write::merge_diff(&before, &after) else { return Ok(None) };
        match write::patch(&self.api(Kind::VM), (&vm.metadata).into(), patch).await {
            Ok(written) => {
                self.vms.object(&written);
                self.publish(Reason::SuccessfulUpdate, format!("Updated VM {}", vm.key)).await;
                Ok(None)
            }
            Err(error) => {
                let refused = rejection(error)?;
                if let Some(why) = &refused {
                    let text = format!("Error updating virtual machine {}: {why}", vm.key);
                    self.publish(Reason::FailedUpdate, text).await;
                }
                Ok(refused)
            }
        }
    }

    async fn delete_object(
        &self,
        kind: Kind,
        deletion: Deletion<'_>,
    ) -> Result<Option<DynamicObject>, Error> {
        let regarding = Regarding::new(Kind::POOL, &self.pool.metadata);
        deletion.carry_out(&self.api(kind), &self.controller.recorder, regarding).await
    }

    async fn delete(&mut self, vm: &Cached<VirtualMachine>) -> Result<(), ReconcileError> {
        let deletion = Deletion { what: "virtual machine", name: &vm.key.name, uid: &vm.uid };
        let leaving = self.delete_object(Kind::VM, deletion).await?;
        self.vms.deleted(vm, leaving.as_ref());
        let text = format!("Deleted VM {} with uid {} from pool", vm.key, vm.uid);
        self.publish(Reason::SuccessfulDelete, text).await;
        Ok(())
    }

    async fn release(&mut self, vm: &Cached<VirtualMachine>) -> Result<(), ReconcileError> {
        let owners = vm.metadata.owner_references.iter();
        let others: Vec<_> = owners.filter(|owner| owner.uid != self.pool.uid).collect();
        let patch = json!({"metadata": {"ownerReferences": others}});
        self.vms.object(&write::patch(&self.api(Kind::VM), (&vm.metadata).into(), patch).await?);
        Ok(())
    }

    async fn restart(&mut self, vmi: &Cached<VirtualMachineInstance>) -> Result<(), ReconcileError> {
        let deletion = Deletion { what: "virtual machine instance", name: &vmi.key.name, uid: &vmi.uid };
        let leaving = self.delete_object(Kind::VMI, deletion).await?;
        self.vmis.deleted(vmi, leaving.as_ref());
        let text = format!("Successfully updated resource {}", vmi.key);
        self.publish(Reason::SuccessfulDelete, text).await;
        Ok(())
    }

    async fn prune(&mut self, name: &str) -> Result<(), ReconcileError> {
        let Some(revision) = self.controller.caches.revisions.get(&self.key(name)) else { return Ok(()) };
        let deletion = Deletion { what: "controller revision", name, uid: &revision.uid };
        let leaving = self.delete_object(Kind::CONTROLLER_REVISION, deletion).await?;
        self.revisions.deleted(&revision, leaving.as_ref());
        Ok(())
    }
}

/// The API server's message, if it refuses a request that no repetition changes; else the error.
fn rejection(error: Error) -> Result<Option<String>, ReconcileError> {
    match write::rejection(&error) {
        Some(status) => Ok(Some(status.message.clone())),
        None => Err(error.into()),
    }
}
