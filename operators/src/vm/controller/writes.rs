//! Writes. Those of VMs and VMIs return when the caches show them: else the next decision would not know of them.

use kube::api::{DynamicObject, PostParams};
use serde::Deserialize as _;
use serde_json::{Value, json};
use vireo_api::v1::ObjectMeta;
use vireo_client::informer::revision;
use vireo_client::{Kind, write};

use super::super::FINALIZER;
use super::Controller;

impl Controller {
    /// Patches this version of a VM or a VMI.
    pub(super) async fn patch(
        &self,
        kind: Kind,
        of: &ObjectMeta,
        patch: Value,
    ) -> Result<DynamicObject, kube::Error> {
        let api = kind.namespaced(&self.client, &of.namespace);
        let written = write::patch(&api, of.into(), patch).await?;
        self.caches.show(kind, &written).await;
        Ok(written)
    }

    /// Writes the difference of two statuses to this version of a VM or a VMI.
    pub(super) async fn patch_status(
        &self,
        kind: Kind,
        of: &ObjectMeta,
        before: &Value,
        after: &Value,
    ) -> Result<Option<DynamicObject>, kube::Error> {
        let api = kind.namespaced(&self.client, &of.namespace);
        let written = write::patch_status(&api, of.into(), before, after).await?;
        if let Some(written) = &written {
            self.caches.show(kind, written).await;
        }
        Ok(written)
    }

    /// Adds [`FINALIZER`] to this version of a VM.
    pub(super) async fn add_finalizer(&self, vm: &ObjectMeta) -> Result<(), kube::Error> {
        let finalizers = vm.finalizers.iter().map(String::as_str).chain([FINALIZER]);
        let finalizers: Vec<&str> = finalizers.collect();
        self.patch(Kind::VM, vm, json!({"metadata": {"finalizers": finalizers}})).await.map(drop)
    }

    /// Removes [`FINALIZER`] from this version of a VM or a VMI.
    pub(super) async fn remove_finalizer(&self, kind: Kind, of: &ObjectMeta) -> Result<(), kube::Error> {
        let others: Vec<&String> = of.finalizers.iter().filter(|one| *one != FINALIZER).collect();
        self.patch(kind, of, json!({"metadata": {"finalizers": others}})).await.map(drop)
    }

    /// Creates a ControllerRevision, if it does not exist yet. The resource version of a new one.
    pub(super) async fn create_revision(
        &self,
        namespace: &str,
        object: &Value,
    ) -> Result<Option<u64>, kube::Error> {
        let object = DynamicObject::deserialize(object).map_err(kube::Error::SerdeError)?;
        let api = Kind::CONTROLLER_REVISION.namespaced(&self.client, namespace);
        match api.create(&PostParams::default(), &object).await {
            Ok(created) => Ok(Some(revision(&created))),
            Err(error) if write::already_exists(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
