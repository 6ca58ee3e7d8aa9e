use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;
use vireo_api::v1::{VirtualMachine, VirtualMachineInstance};
use vireo_client::informer::{Informer, revision};
use vireo_client::{Kind, ObjectKey};

use crate::data_volume::StorageCache;
use crate::instancetype::{Choice, Informers, Lookup, Scope};

/// What the controller reads.
#[derive(Clone, Debug)]
pub struct Caches {
    /// VMs.
    pub vms: Arc<Informer<VirtualMachine>>,
    /// VMIs, as [`with_volumes`](crate::vm::with_volumes) reads them.
    pub vmis: Arc<Informer<VirtualMachineInstance>>,
    /// The `data` of ControllerRevisions.
    pub revisions: Arc<Informer<Value>>,
    /// Instance types and preferences.
    pub instancetypes: Arc<Informers>,
    /// DataVolumes and claims.
    pub storage: Arc<StorageCache>,
}

impl Lookup for Caches {
    fn revision(&self, namespace: &str, name: &str) -> Option<Value> {
        self.revisions.get(&ObjectKey::new(namespace, name)).map(|revision| revision.value.clone())
    }

    fn object(&self, choice: Choice, scope: Scope, namespace: &str, name: &str) -> Option<Value> {
        self.instancetypes.get(choice, scope, namespace, name).map(|object| object.value.clone())
    }
}

impl Caches {
    /// Waits for the first lists.
    pub(super) async fn synced(&self) {
        self.vms.synced().await;
        self.vmis.synced().await;
        self.revisions.synced().await;
        self.instancetypes.synced().await;
        self.storage.synced().await;
    }

    /// Waits until the cache of VMs or VMIs shows a write.
    pub(super) async fn show(&self, kind: Kind, written: &DynamicObject) {
        let metadata = &written.metadata;
        let is_held = metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        let key = ObjectKey::new(written.namespace().unwrap_or_default(), written.name_any());
        let mut gone = Vec::new();
        // An object that is being deleted goes with its last finalizer.
        if metadata.deletion_timestamp.is_some() && !is_held {
            gone.push((key, written.uid().unwrap_or_default()));
        }
        if kind == Kind::VM {
            self.vms.shows(revision(written), &gone).await;
        } else {
            self.vmis.shows(revision(written), &gone).await;
        }
    }
}
