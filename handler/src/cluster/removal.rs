//! VMIs that the API server no longer sends: they are gone, or they only lost the label of their node.

use std::fmt;
use std::sync::Arc;

use kube::{Client, Error};
use tokio::sync::Notify;
use vireo_client::Kind;
use vireo_client::controller::{Reconcile, Requeue};
use vireo_client::informer::{Cached, Change};

use super::catalog::Bound;
use super::instance::Instance;
use crate::manifests::Key;

/// A VMI that is no longer selected.
#[derive(Clone)]
pub(super) struct Removed(pub(super) Arc<Cached<Instance>>);

impl Removed {
    fn id(&self) -> (&Key, &str) {
        (&self.0.key, &self.0.uid)
    }
}

impl PartialEq for Removed {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Removed {}

impl PartialOrd for Removed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Removed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.id().cmp(&other.id())
    }
}

impl std::hash::Hash for Removed {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.id().hash(hasher);
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.key.fmt(form)
    }
}

/// Asks the API server before a guest is shut down for want of its object.
pub(super) struct Remover {
    pub(super) client: Client,
    pub(super) bound: Arc<Bound>,
    pub(super) changed: Arc<Notify>,
}

impl Reconcile for Remover {
    type Key = Removed;
    type Error = Error;
    const NAME: &'static str = "virt-handler, removals";

    async fn reconcile(&self, removed: &Removed) -> Result<Requeue, Error> {
        let Removed(vmi) = removed;
        let there = Kind::VMI.namespaced(&self.client, &vmi.key.namespace).get_opt(&vmi.key.name).await?;
        if there.is_some_and(|there| there.metadata.uid.as_ref() == Some(&vmi.uid)) {
            tracing::error!(vmi = %vmi.key, "a VMI lost the label of this node; its guest goes on");
            return Ok(None);
        }
        let gone = Change { key: vmi.key.clone(), before: Some(Arc::clone(vmi)), after: None };
        if self.bound.apply(&gone) {
            self.changed.notify_one();
        }
        Ok(None)
    }
}
