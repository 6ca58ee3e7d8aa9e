//! Releases deleted VMIs once nothing is left of them on the node.

use std::sync::Arc;

use kube::{Client, Error};
use serde_json::json;
use vireo_api::names::VMI_FINALIZER;
use vireo_client::controller::{Reconcile, Requeue};
use vireo_client::informer::{Informer, revision};
use vireo_client::{Kind, write};

use super::VmiId;
use super::instance::Instance;
use crate::reconcile::status::Phase;

/// Removes the node agent's finalizer from VMIs that are being deleted and of which nothing is left on the node.
pub(super) struct Finalizer {
    pub(super) client: Client,
    pub(super) vmis: Arc<Informer<Instance>>,
}

impl Reconcile for Finalizer {
    type Key = VmiId;
    type Error = Error;
    const NAME: &'static str = "virt-handler-finalizer";

    async fn reconcile(&self, VmiId { key, uid }: &VmiId) -> Result<Requeue, Error> {
        let vmi = self.vmis.get(key).filter(|vmi| vmi.uid == *uid && vmi.is_deleting());
        let Some(vmi) = vmi else { return Ok(None) };
        let api = Kind::VMI.namespaced(&self.client, &key.namespace);
        let mut version = write::Version::from(&vmi.metadata);
        let mut ended = None;
        if !vmi.is_final() {
            // Its launcher was gone before its end was reported, or it never had one.
            let ran = vmi.status.phase == Phase::Running.as_str();
            let last = if ran { Phase::Succeeded } else { Phase::Failed };
            let (before, after) = (json!({"phase": vmi.status.phase}), json!({"phase": last.as_str()}));
            ended = write::patch_status(&api, version, &before, &after).await?;
        }
        if let Some(now) = ended.as_ref().and_then(|ended| ended.metadata.resource_version.as_deref()) {
            version.resource_version = now;
        }
        let others: Vec<&String> =
            vmi.metadata.finalizers.iter().filter(|finalizer| *finalizer != VMI_FINALIZER).collect();
        if others.len() < vmi.metadata.finalizers.len() {
            let patch = json!({"metadata": {"finalizers": others}});
            ended = Some(write::patch(&api, version, patch).await?);
        }
        self.vmis.shows(ended.as_ref().map_or(0, revision), &[]).await;
        Ok(None)
    }
}
