//! Volumes whose claim is gone without having been released: somebody took its finalizer away.

use vireo_apiserver::meta;
use vireo_apiserver::store::{DiskError, Object, Store};
use vireo_handler::reconcile::status::Phase;

use super::{Disks, is_used, volume};

impl Disks {
    /// Removes the volume of a claim that went without its finalizer, and its disk, once nothing uses it; whether there
    /// is nothing to try again.
    pub(super) fn reclaim(&mut self, store: &Store, volume: &Object) -> Result<bool, DiskError> {
        let (Some(claim), Some(uid)) = (volume::claim(&volume.value), volume::claim_uid(&volume.value))
        else {
            return Ok(true);
        };
        match store.get(&claim) {
            Some(there) if meta::text(&there.value, "uid") == uid => return Ok(true),
            // The disk is another claim's by now; or it becomes free before that claim gets one.
            Some(there) if volume::is_bound(&there) => {}
            Some(_) => return Ok(true),
            None if is_used(store, &claim, |_| true) => {
                self.waiting.insert(volume.key.clone(), claim.namespace);
                return Ok(true);
            }
            None => {
                if let Err(error) = self.files.remove(&claim.namespace, &claim.name) {
                    let volume = &volume.key.name;
                    tracing::warn!(%error, volume, "the disk of a claim that is gone cannot be removed");
                    return Ok(false);
                }
            }
        }
        volume::remove(store, volume).map(|()| true)
    }

    /// Whether no disk of an earlier claim of the same name is in the place of a claim's disk; removes one that nothing
    /// uses.
    pub(super) fn is_free(&mut self, store: &Store, claim: &Object) -> Result<bool, DiskError> {
        let earlier: Vec<_> = volume::of_others(store, claim).collect();
        if earlier.is_empty() {
            return Ok(true);
        }
        let problem = match is_used(store, &claim.key, |phase| phase != Phase::Pending) {
            true => {
                Some("a virtual machine instance uses the disk of an earlier claim of this name".to_owned())
            }
            false => {
                let removed = self.files.remove(&claim.key.namespace, &claim.key.name);
                removed.err().map(|error| error.to_string())
            }
        };
        if let Some(problem) = problem {
            self.waiting.insert(claim.key.clone(), claim.key.namespace.clone());
            return self.stay_pending(store, claim, problem).map(|()| false);
        }
        for volume in earlier {
            volume::remove(store, &volume)?;
        }
        Ok(true)
    }
}
