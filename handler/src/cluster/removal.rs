//! VMIs that the API server no longer sends: they are gone, or they only lost the label of their node.

use std::sync::Arc;

use kube::{Client, Error};
use tokio::sync::Notify;
use vireo_client::Kind;
use vireo_client::controller::{Reconcile, Requeue};

use super::VmiId;
use super::bound::Bound;

/// Queries the API server before it shuts down a guest whose object is missing.
pub(super) struct Remover {
    pub(super) client: Client,
    pub(super) bound: Arc<Bound>,
    pub(super) changed: Arc<Notify>,
}

impl Reconcile for Remover {
    type Key = VmiId;
    type Error = Error;
    const NAME: &'static str = "virt-handler-removal";

    async fn reconcile(&self, VmiId { key, uid }: &VmiId) -> Result<Requeue, Error> {
        let there = Kind::VMI.namespaced(&self.client, &key.namespace).get_opt(&key.name).await?;
        if there.is_some_and(|there| there.metadata.uid.as_ref() == Some(uid)) {
            tracing::error!(vmi = %key, "a VMI lost the label of this node; its guest keeps running");
        } else if self.bound.remove(key, uid) {
            self.changed.notify_one();
        }
        Ok(None)
    }
}
