//! The controller of claims and their volumes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::DynamicObject;
use kube::runtime::watcher::Config;
use kube::{Client, Resource, ResourceExt as _};
use serde_json::{Value, json};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::informer::{Cached, Informer, revision, whole};
use vireo_client::queue::WorkQueue;
use vireo_client::write::{self, Version};
use vireo_client::{Kind, ObjectKey};

use super::usage::ClaimUsers;
use super::{CLASS, claim, upload, volume};
use crate::launcher::link::chain;
use crate::node::Node;
use crate::reconcile::status::Phase;
use crate::storage::Claims;

/// The component of its events, as Kubernetes calls it.
const COMPONENT: &str = "persistentvolume-controller";
/// The retry interval.
const RETRY: Duration = Duration::from_secs(5);

pub(super) type Claim = Cached<PersistentVolumeClaim>;

/// The key of a reconciled object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// A claim.
    Claim(ObjectKey),
    /// A volume, by its name.
    Volume(String),
}

impl fmt::Display for Item {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(key) => write!(form, "claim {key}"),
            Self::Volume(name) => write!(form, "volume {name}"),
        }
    }
}

/// Why a reconcile is retried.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// A request failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// An object cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Work on files ended early.
    #[error(transparent)]
    Interrupted(#[from] tokio::task::JoinError),
}

/// The version of an object that was read.
pub(super) fn version<T: Resource>(object: &Cached<T>) -> Version<'_> {
    let resource_version = object.value.meta().resource_version.as_deref().unwrap_or_default();
    Version { name: &object.key.name, uid: &object.uid, resource_version }
}

/// Whether no retry is needed.
pub(super) type Settled = Result<bool, ProvisionError>;

/// Provisions claims with files of a node.
pub struct Provisioner {
    pub(super) client: Client,
    pub(super) files: Claims,
    pub(super) node: String,
    /// Called when there is another claim, for the VMIs that wait for one.
    notify: Box<dyn Fn() + Send + Sync>,
    pub(super) claims: Arc<Informer<PersistentVolumeClaim>>,
    pub(super) volumes: Arc<Informer<PersistentVolume>>,
    vmis: Arc<Informer<ClaimUsers>>,
    recorder: EventRecorder,
    queue: Arc<WorkQueue<Item>>,
    /// Items that wait until no VMI of a namespace uses a disk.
    waiting: Arc<Mutex<BTreeMap<Item, String>>>,
}

impl fmt::Debug for Provisioner {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.debug_struct("Provisioner").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Provisions for a node until it is dropped.
pub async fn run(client: Client, node: Arc<Node>) {
    let files = node.claims();
    let swept = tokio::task::spawn_blocking(move || files.sweep_uploads()).await;
    if let Ok(Err(error)) = swept {
        tracing::warn!(%error, "the remains of interrupted uploads stay");
    }
    let name = node.settings.node_name.clone();
    Provisioner::new(client, node.claims(), &name, move || node.notify_claims()).run().await;
}

impl Provisioner {
    /// A provisioner of these files. `notify` is called when a VMI may find a claim that it did not find before.
    pub fn new(client: Client, files: Claims, node: &str, notify: impl Fn() + Send + Sync + 'static) -> Self {
        let claims = Informer::new(Kind::CLAIM.all(&client), Config::default(), whole);
        let volumes = Informer::new(Kind::VOLUME.all(&client), Config::default(), whole);
        let users = |vmi: Value| Ok(ClaimUsers::of(&vmi));
        let vmis = Informer::new(Kind::VMI.all(&client), Config::default(), users);
        let queue = controller::queue();
        let waiting: Arc<Mutex<BTreeMap<Item, String>>> = Arc::default();
        let changed = Arc::clone(&queue);
        claims.on_change(move |claim| {
            changed.add(Item::Claim(claim.key.clone()));
            claim.versions().for_each(|claim| changed.add(Item::Volume(volume::name(&claim.uid))));
        });
        let changed = Arc::clone(&queue);
        volumes.on_change(move |change| {
            changed.add(Item::Volume(change.key.name.clone()));
            let claims = change.versions().filter_map(|one| volume::claim(&one.value));
            claims.for_each(|(claim, _)| changed.add(Item::Claim(claim)));
        });
        // A VMI that changed may no longer use a disk that is to be removed.
        let (changed, wait) = (Arc::clone(&queue), Arc::clone(&waiting));
        vmis.on_change(move |vmi| {
            let waiting = wait.lock().unwrap_or_else(PoisonError::into_inner);
            let here = waiting.iter().filter(|(_, namespace)| **namespace == vmi.key.namespace);
            here.for_each(|(item, _)| changed.add(item.clone()));
        });
        let recorder = EventRecorder::new(client.clone(), COMPONENT, None);
        let (node, notify) = (node.to_owned(), Box::new(notify));
        Self { client, files, node, notify, claims, volumes, vmis, recorder, queue, waiting }
    }

    /// Provisions until it is dropped.
    pub async fn run(&self) {
        let controller = async {
            tokio::join!(self.claims.synced(), self.volumes.synced(), self.vmis.synced());
            controller::run(self, &self.queue, 1).await;
        };
        tokio::join!(self.claims.run(), self.volumes.run(), self.vmis.run(), controller);
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Item, String>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the VMIs of a namespace.
    pub(super) fn wait(&self, item: Item, namespace: &str) {
        self.waiting().insert(item, namespace.to_owned());
    }

    /// Whether a VMI in one of some phases uses a claim.
    pub(super) fn is_used(&self, claim: &ObjectKey, counts: impl Fn(Phase) -> bool) -> bool {
        let users = self.vmis.namespace(&claim.namespace);
        users.iter().any(|vmi| counts(vmi.phase) && vmi.uses(&claim.name))
    }

    pub(super) async fn publish(&self, claim: &Claim, reason: Reason, message: impl Into<String>) {
        let ObjectKey { namespace, name } = &claim.key;
        let regarding = Regarding { kind: Kind::CLAIM, namespace, name, uid: &claim.uid };
        self.recorder.publish(regarding, reason, message).await;
    }

    /// Runs work on the files of a claim.
    pub(super) async fn files<T: Send + 'static>(
        &self,
        claim: &ObjectKey,
        work: impl FnOnce(&Claims, &str, &str) -> T + Send + 'static,
    ) -> Result<T, ProvisionError> {
        let (files, ObjectKey { namespace, name }) = (self.files.clone(), claim.clone());
        Ok(tokio::task::spawn_blocking(move || work(&files, &namespace, &name)).await?)
    }

    /// Records the phase of a claim without a disk and its reason, or that it has a disk, for the VMIs that wait for
    /// it. Returns whether that is new.
    fn explain(&self, claim: &ObjectKey, state: Option<String>) -> bool {
        let is_new = self.files.explain(&claim.namespace, &claim.name, state);
        if is_new {
            (self.notify)();
        }
        is_new
    }
}

impl Reconcile for Provisioner {
    type Key = Item;
    type Error = ProvisionError;
    const NAME: &'static str = "virt-handler-provisioner";

    async fn reconcile(&self, item: &Item) -> Result<Requeue, ProvisionError> {
        self.waiting().remove(item);
        let settled = match item {
            Item::Volume(name) => match self.volumes.get(&ObjectKey::new("", name)) {
                Some(volume) => self.reclaim(&volume).await?,
                None => true,
            },
            Item::Claim(key) => match self.claims.get(key) {
                Some(claim) if claim.meta().deletion_timestamp.is_some() => self.release(&claim).await?,
                Some(claim) => self.provide(&claim).await?,
                None => {
                    self.explain(key, None);
                    true
                }
            },
        };
        Ok((!settled).then_some(RETRY))
    }
}

impl Provisioner {
    /// Makes or enlarges the disk of a claim.
    async fn provide(&self, claim: &Claim) -> Settled {
        let Some(bytes) = claim::requested_bytes(claim) else { return Ok(true) };
        let class = claim::class(claim);
        if class != CLASS {
            let text = format!("storageclass.storage.k8s.io {class:?} not found: there is {CLASS:?}");
            self.stay_pending(claim, text).await;
            return Ok(true);
        }
        let is_bound = claim::is_bound(claim);
        if !is_bound && !self.is_free(claim).await? {
            return Ok(false);
        }
        let there =
            self.files(&claim.key, |files, namespace, name| files.disk(namespace, name).is_ok()).await?;
        if (there || !is_bound) && !self.settle_image(claim).await? {
            return Ok(false);
        }
        if claim::phase(claim) == "Bound" && claim::capacity(claim) == claim::requested(claim) && there {
            self.files.explain(&claim.key.namespace, &claim.key.name, None);
            self.keep_volume(claim).await?;
            return self.bind(claim).await.map(|_| true);
        }
        if is_bound && !there {
            // A disk that was removed is not recreated: an empty disk must not replace the lost one.
            let path = self.files.path(&claim.key.namespace, &claim.key.name);
            let text = format!("{} is gone, and with it what was written to it", path.display());
            return self.lose(claim, text).await;
        }
        let provided = self
            .files(&claim.key, move |files, namespace, name| files.provide(namespace, name, bytes))
            .await?;
        if let Err(error) = provided {
            match is_bound {
                true => self.publish(claim, Reason::VolumeResizeFailed, chain(&error)).await,
                false => self.stay_pending(claim, chain(&error)).await,
            }
            return Ok(false);
        }
        self.files.explain(&claim.key.namespace, &claim.key.name, None);
        self.keep_volume(claim).await?;
        let bound = self.bind(claim).await?;
        let spec = serde_json::to_value(&claim.spec)?;
        let status = json!({
            "phase": "Bound", "accessModes": spec["accessModes"],
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
        });
        self.write_status(claim, bound.as_ref(), &status).await?;
        match is_bound {
            true => {
                let text = "Resize volume succeeded: VMs that run see it within seconds";
                self.publish(claim, Reason::VolumeResizeSuccessful, text).await;
            }
            false => {
                let text = "Successfully provisioned the volume's file";
                self.publish(claim, Reason::ProvisioningSucceeded, text).await;
            }
        }
        (self.notify)();
        Ok(true)
    }

    /// Sets whether VMIs wait for the image of a claim. Returns whether that succeeded.
    async fn settle_image(&self, claim: &Claim) -> Settled {
        let waits = upload::waits(claim::annotations(claim));
        let settle =
            move |files: &Claims, namespace: &str, name: &str| files.await_image(namespace, name, waits);
        match self.files(&claim.key, settle).await? {
            Ok(changed) => {
                if changed && !waits {
                    (self.notify)();
                }
                Ok(true)
            }
            Err(error) => {
                self.stay_pending(claim, error.to_string()).await;
                Ok(false)
            }
        }
    }

    /// Reports why a claim gets no disk, as an event and to the VMIs that wait for it.
    pub(super) async fn stay_pending(&self, claim: &Claim, text: String) {
        // The claim is retried every few seconds; only changes are reported.
        if self.explain(&claim.key, Some(format!("Pending: {text}"))) {
            self.publish(claim, Reason::ProvisioningFailed, text).await;
        }
    }

    async fn lose(&self, claim: &Claim, text: String) -> Settled {
        self.explain(&claim.key, Some(format!("Lost: {text}")));
        if claim::phase(claim) == "Lost" {
            return Ok(true);
        }
        // The claim is last: once it is Lost, nothing is retried.
        if let Some(volume) = self.volumes.get(&ObjectKey::new("", volume::name(&claim.uid))) {
            let status = json!({"phase": "Failed", "reason": "ClaimLost", "message": text});
            self.write_volume_status(&volume, &status).await?;
        }
        let mut status = serde_json::to_value(&claim.status)?;
        status["phase"] = json!("Lost");
        self.write_status(claim, None, &status).await?;
        self.publish(claim, Reason::ClaimLost, text).await;
        Ok(true)
    }

    /// Sets the volume name in the claim's spec, and the annotations of a claim that waits for an upload. Returns the
    /// object if that changed it.
    async fn bind(&self, claim: &Claim) -> Result<Option<DynamicObject>, ProvisionError> {
        let mut patch = json!({});
        let name = volume::name(&claim.uid);
        if claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()) != Some(&name) {
            patch["spec"] = json!({"volumeName": name});
        }
        let offer = upload::offer(claim::annotations(claim));
        if !offer.is_empty() {
            patch["metadata"] = json!({"annotations": offer});
        }
        if patch == json!({}) {
            return Ok(None);
        }
        let api = Kind::CLAIM.namespaced(&self.client, &claim.key.namespace);
        let written = write::patch(&api, version(claim), patch).await?;
        self.claims.shows(revision(&written), &[]).await;
        Ok(Some(written))
    }

    /// Writes the status of a claim, which may have been written a moment ago.
    async fn write_status(
        &self,
        claim: &Claim,
        now: Option<&DynamicObject>,
        status: &Value,
    ) -> Result<(), ProvisionError> {
        let resource_version = now.and_then(DynamicObject::resource_version);
        let mut version = version(claim);
        version.resource_version = resource_version.as_deref().unwrap_or(version.resource_version);
        let api = Kind::CLAIM.namespaced(&self.client, &claim.key.namespace);
        let before = serde_json::to_value(&claim.status)?;
        if let Some(written) = write::patch_status(&api, version, &before, status).await? {
            self.claims.shows(revision(&written), &[]).await;
        }
        Ok(())
    }
}
