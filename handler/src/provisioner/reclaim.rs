//! The PersistentVolumes of disks, and the removal of disks that nothing uses.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};
use vireo_client::events::Reason;
use vireo_client::informer::{Cached, revision};
use vireo_client::{Kind, ObjectKey, write};

use super::controller::{Claim, Item, ProvisionError, Provisioner, Settled, version};
use super::{CLAIM_PROTECTION, VOLUME_PROTECTION, claim, volume};
use crate::reconcile::status::Phase;
use crate::storage::Claims;

fn remove(files: &Claims, namespace: &str, name: &str) -> std::io::Result<()> {
    files.remove(namespace, name)
}

impl Provisioner {
    /// Reconciles the volume of a claim with the claim.
    pub(super) async fn keep_volume(&self, claim: &Claim) -> Result<(), ProvisionError> {
        let disk = self.files.path(&claim.key.namespace, &claim.key.name);
        let spec = volume::spec(claim, disk.parent().unwrap_or(&disk), &self.node);
        let name = volume::name(&claim.uid);
        let api = Kind::VOLUME.all(&self.client);
        let key = ObjectKey::new("", name.clone());
        let volume = match self.volumes.get(&key) {
            Some(volume) => {
                let before = serde_json::to_value(&volume.spec)?;
                if let Some(change) = write::merge_diff(&before, &spec) {
                    let written = write::patch(&api, version(&volume), json!({ "spec": change })).await?;
                    self.volumes.shows(revision(&written), &[]).await;
                }
                self.volumes.get(&key)
            }
            None => {
                let new: DynamicObject = serde_json::from_value(volume::new(&name, &spec))?;
                let made = api.create(&PostParams::default(), &new).await?;
                self.volumes.shows(revision(&made), &[]).await;
                self.volumes.get(&key)
            }
        };
        match volume {
            Some(volume) => self.write_volume_status(&volume, &json!({"phase": "Bound"})).await,
            None => Ok(()),
        }
    }

    /// Writes the status of a volume.
    pub(super) async fn write_volume_status(
        &self,
        volume: &Cached<PersistentVolume>,
        status: &Value,
    ) -> Result<(), ProvisionError> {
        let before = serde_json::to_value(&volume.status)?;
        let api = Kind::VOLUME.all(&self.client);
        if let Some(written) = write::patch_status(&api, version(volume), &before, status).await? {
            self.volumes.shows(revision(&written), &[]).await;
        }
        Ok(())
    }

    /// Deletes a volume, and releases it.
    async fn delete_volume(&self, volume: &Cached<PersistentVolume>) -> Result<(), ProvisionError> {
        let api = Kind::VOLUME.all(&self.client);
        let Some(held) = write::delete(&api, &volume.key.name, &volume.uid).await? else { return Ok(()) };
        let others: Vec<&String> =
            held.finalizers().iter().filter(|finalizer| *finalizer != VOLUME_PROTECTION).collect();
        let resource_version = held.resource_version().unwrap_or_default();
        let held_version =
            write::Version { name: &volume.key.name, uid: &volume.uid, resource_version: &resource_version };
        write::patch(&api, held_version, json!({"metadata": {"finalizers": others}})).await?;
        Ok(())
    }

    /// Removes the disk of a claim that is being deleted and releases the claim, once nothing uses it.
    pub(super) async fn release(&self, claim: &Claim) -> Settled {
        if !claim::is_held(claim) {
            return Ok(true);
        }
        // A Pending VMI waits for a missing disk and does not use it.
        let has_disk = claim::is_bound(claim);
        if self.is_used(&claim.key, |phase| has_disk || phase != Phase::Pending) {
            self.wait(Item::Claim(claim.key.clone()), &claim.key.namespace);
            return Ok(true);
        }
        if let Err(error) = self.files(&claim.key, remove).await? {
            self.publish(claim, Reason::VolumeFailedDelete, error.to_string()).await;
            return Ok(false);
        }
        if let Some(volume) = self.volumes.get(&ObjectKey::new("", volume::name(&claim.uid))) {
            self.delete_volume(&volume).await?;
        }
        let others: Vec<&String> =
            claim.finalizers().iter().filter(|finalizer| *finalizer != CLAIM_PROTECTION).collect();
        let api = Kind::CLAIM.namespaced(&self.client, &claim.key.namespace);
        write::patch(&api, version(claim), json!({"metadata": {"finalizers": others}})).await?;
        Ok(true)
    }

    /// Removes the volume of a claim that went without its finalizer, and the disk, once nothing uses it.
    pub(super) async fn reclaim(&self, volume: &Cached<PersistentVolume>) -> Settled {
        let Some((claim, uid)) = volume::claim(&volume.value) else { return Ok(true) };
        match self.claims.get(&claim) {
            Some(there) if there.uid == uid => return Ok(true),
            // The disk belongs to a later claim of the same name, or is removed before that claim is bound.
            Some(there) if claim::is_bound(&there) => {}
            Some(_) => return Ok(true),
            None if self.is_used(&claim, |_| true) => {
                self.wait(Item::Volume(volume.key.name.clone()), &claim.namespace);
                return Ok(true);
            }
            None => {
                if let Err(error) = self.files(&claim, remove).await? {
                    let volume = &volume.key.name;
                    tracing::warn!(%error, volume, "the disk of a claim that is gone cannot be removed");
                    return Ok(false);
                }
            }
        }
        self.delete_volume(volume).await?;
        Ok(true)
    }

    /// Whether no earlier claim of the same name still has a disk at this path. Removes an earlier disk that nothing
    /// uses.
    pub(super) async fn is_free(&self, claim: &Claim) -> Settled {
        let is_earlier = |one: &Arc<Cached<PersistentVolume>>| {
            volume::claim(&one.value).is_some_and(|(key, uid)| key == claim.key && uid != claim.uid)
        };
        let earlier: Vec<_> = self.volumes.all().into_iter().filter(is_earlier).collect();
        if earlier.is_empty() {
            return Ok(true);
        }
        let problem = match self.is_used(&claim.key, |phase| phase != Phase::Pending) {
            true => {
                Some("a virtual machine instance uses the disk of an earlier claim of this name".to_owned())
            }
            false => self.files(&claim.key, remove).await?.err().map(|error| error.to_string()),
        };
        if let Some(problem) = problem {
            self.wait(Item::Claim(claim.key.clone()), &claim.key.namespace);
            self.stay_pending(claim, problem).await;
            return Ok(false);
        }
        for volume in earlier {
            self.delete_volume(&volume).await?;
        }
        Ok(true)
    }
}
