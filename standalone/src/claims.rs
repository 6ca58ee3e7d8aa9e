//! PersistentVolumeClaims of this machine: each becomes a file, which stays until the claim goes and nothing uses it.

mod reclaim;
mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use vireo_api::v1::{ClaimVolumeSource, ObjectMeta};
use vireo_apiserver::controller::{self, Controller};
use vireo_apiserver::meta;
use vireo_apiserver::store::{Changes, DiskError, Follower, Key, Object, Store};
use vireo_handler::launcher::link::chain;
use vireo_handler::node::Node;
use vireo_handler::reconcile::status::Phase;
use vireo_handler::storage::Claims;

use crate::machines::told::{About, Event, write as tell};
use crate::resource::{CLASS, PROTECTION, requested};
use crate::{place, uploads};

/// What is remembered from round to round.
#[derive(Debug)]
struct Disks {
    files: Claims,
    /// Told when there is another claim; absent in tests.
    node: Option<Arc<Node>>,
    follower: Follower,
    /// Claims and volumes that wait until no VMI uses a disk, with the namespace of such VMIs.
    waiting: BTreeMap<Key, String>,
}

/// Makes and removes disks until the store is gone.
pub async fn run(store: Arc<Store>, node: Arc<Node>) {
    let files = node.claims();
    let swept = tokio::task::spawn_blocking(move || files.sweep_uploads()).await;
    if let Ok(Err(error)) = swept {
        tracing::warn!(%error, "what uploads left behind stays");
    }
    controller::control(store, || Disks::over(node.claims(), Some(Arc::clone(&node)))).await;
}

impl Controller for Disks {
    const NAME: &'static str = "PersistentVolumeClaims";

    /// A VMI that changes may no longer use what is to go.
    fn changed(&mut self, store: &Store) -> BTreeSet<Key> {
        let (claims, instances) = (place::claims().name(), place::vmis().name());
        let volumes = place::volumes().name();
        match self.follower.look(store) {
            Changes::Relist => {
                let all = [&claims, &volumes].map(|resource| store.list(resource, None).objects);
                all.iter().flatten().map(|object| object.key.clone()).collect()
            }
            Changes::Delta(events) => {
                let mut keys = BTreeSet::new();
                for event in events {
                    if event.key.resource == claims {
                        keys.insert(event.key.clone());
                        keys.insert(place::volumes().key("", &volume::name(&event.object)));
                    } else if event.key.resource == volumes {
                        keys.insert(event.key.clone());
                        keys.extend(volume::claim(&event.object.value));
                    } else if event.key.resource == instances {
                        let here = self.waiting.iter().filter(|(_, place)| **place == event.key.namespace);
                        keys.extend(here.map(|(key, _)| key.clone()));
                    }
                }
                keys
            }
        }
    }

    fn control(
        &mut self,
        store: &Store,
        object: &Arc<Object>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, DiskError> {
        let is_volume = object.key.resource == place::volumes().name();
        self.waiting.remove(&object.key);
        let settled = match (is_volume, meta::is_leaving(&object.value)) {
            (true, _) => self.reclaim(store, object),
            (false, true) => self.release(store, object),
            (false, false) => self.provide(store, object),
        }?;
        Ok((!settled).then(|| controller::soon(now)))
    }

    fn forget(&mut self, key: &Key) {
        self.waiting.remove(key);
        if key.resource == place::claims().name() && self.files.explain(&key.namespace, &key.name, None) {
            self.tell();
        }
    }
}

impl Disks {
    fn over(files: Claims, node: Option<Arc<Node>>) -> Self {
        Self { files, node, follower: Follower::default(), waiting: BTreeMap::new() }
    }

    /// Makes or enlarges a claim's disk; whether all is as it should be.
    fn provide(&mut self, store: &Store, claim: &Object) -> Result<bool, DiskError> {
        let Some(bytes) = requested(&claim.value) else { return Ok(true) };
        let class = claim.value.pointer("/spec/storageClassName").and_then(Value::as_str).unwrap_or(CLASS);
        if class != CLASS {
            let text = format!("storageclass.storage.k8s.io {class:?} not found: there is {CLASS:?}");
            return self.stay_pending(store, claim, text).map(|()| true);
        }
        let has = claim.value.pointer("/status/capacity/storage");
        let wanted = claim.value.pointer("/spec/resources/requests/storage");
        let phase = claim.value.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
        let bound = volume::is_bound(claim);
        if !bound && !self.is_free(store, claim)? {
            return Ok(false);
        }
        let there = self.files.disk(&claim.key.namespace, &claim.key.name).is_ok();
        if (there || !bound) && !self.settle_image(store, claim)? {
            return Ok(false);
        }
        if phase == "Bound" && has == wanted && there {
            self.files.explain(&claim.key.namespace, &claim.key.name, None);
            self.keep_volume(store, claim)?;
            if uploads::offer(&mut claim.value.clone()) {
                place::change(store, claim, |value| {
                    uploads::offer(value);
                    true
                })?;
            }
            return Ok(true);
        }
        if bound && !there {
            // What somebody removed is not made anew: an empty disk would pass for the lost one.
            let path = self.files.path(&claim.key.namespace, &claim.key.name);
            let text = format!("{} is gone, and with it what was written to it", path.display());
            self.explain(claim, "Lost", &text);
            return lose(store, claim, text).map(|()| true);
        }
        if let Err(error) = self.files.provide(&claim.key.namespace, &claim.key.name, bytes.get()) {
            let told = match bound {
                true => warn(store, claim, "VolumeResizeFailed", chain(&error)),
                false => self.stay_pending(store, claim, chain(&error)),
            };
            return told.map(|()| false);
        }
        self.files.explain(&claim.key.namespace, &claim.key.name, None);
        self.keep_volume(store, claim)?;
        let wanted = wanted.cloned().unwrap_or_default();
        place::change(store, claim, |value| {
            value["spec"]["volumeName"] = json!(volume::name(claim));
            value["status"] = json!({
                "phase": "Bound", "accessModes": value["spec"]["accessModes"],
                "capacity": {"storage": wanted},
            });
            uploads::offer(value);
            true
        })?;
        let (reason, text) = match bound {
            true => {
                ("VolumeResizeSuccessful", "Resize volume succeeded: machines see it with their next start")
            }
            false => ("ProvisioningSucceeded", "Successfully provisioned the volume's file"),
        };
        say(store, claim, &Event::new(false, reason, text))?;
        self.tell();
        Ok(true)
    }

    /// Lets machines wait for the image of a claim that is to get one, or wait no longer; whether that is done.
    fn settle_image(&self, store: &Store, claim: &Object) -> Result<bool, DiskError> {
        let waits = uploads::waits(&claim.value);
        match self.files.await_image(&claim.key.namespace, &claim.key.name, waits) {
            Ok(news) => {
                if news && !waits {
                    self.tell();
                }
                Ok(true)
            }
            Err(error) => self.stay_pending(store, claim, error.to_string()).map(|()| false),
        }
    }

    /// Says why a claim gets no disk: to its users, and to the VMIs that wait for it.
    fn stay_pending(&self, store: &Store, claim: &Object, text: String) -> Result<(), DiskError> {
        self.explain(claim, "Pending", &text);
        warn(store, claim, "ProvisioningFailed", text)
    }

    fn explain(&self, claim: &Object, phase: &str, why: &str) {
        if self.files.explain(&claim.key.namespace, &claim.key.name, Some(format!("{phase}: {why}"))) {
            self.tell();
        }
    }

    /// Makes the volume of a claim what the claim says.
    fn keep_volume(&self, store: &Store, claim: &Object) -> Result<(), DiskError> {
        let disk = self.files.path(&claim.key.namespace, &claim.key.name);
        let node = self.node.as_ref().map(|node| node.settings.node_name.as_str());
        let spec = volume::spec(claim, disk.parent().unwrap_or(&disk), node);
        volume::keep(store, claim, spec)
    }

    /// Tells machines that wait for claims.
    fn tell(&self) {
        if let Some(node) = &self.node {
            node.tell_of_claims();
        }
    }

    /// Removes a claim's disk and lets the claim go, once nothing uses it; whether there is nothing to try again.
    fn release(&mut self, store: &Store, claim: &Object) -> Result<bool, DiskError> {
        if !meta::finalizers(&claim.value).iter().any(|one| one == PROTECTION) {
            return Ok(true);
        }
        // A VMI that has not begun waits for a disk, where there is none, and does not use it.
        let has_disk = volume::is_bound(claim);
        if is_used(store, &claim.key, |phase| has_disk || phase != Phase::Pending) {
            self.waiting.insert(claim.key.clone(), claim.key.namespace.clone());
            return Ok(true);
        }
        if let Err(error) = self.files.remove(&claim.key.namespace, &claim.key.name) {
            return warn(store, claim, "VolumeFailedDelete", error.to_string()).map(|()| false);
        }
        if let Some(volume) = store.get(&place::volumes().key("", &volume::name(claim))) {
            volume::remove(store, &volume)?;
        }
        place::change(store, claim, |value| {
            meta::remove_finalizer(value, PROTECTION);
            place::is_held(value)
        })?;
        Ok(true)
    }
}

/// Whether an instance in one of some phases names a claim; none that has ended uses it.
pub(crate) fn is_used(store: &Store, claim: &Key, counts: impl Fn(Phase) -> bool) -> bool {
    let uses = |object: &Arc<Object>| {
        let phase = object.value.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
        let volumes = object.value.pointer("/spec/volumes").and_then(Value::as_array);
        let named = |volume: &Value| {
            let source = volume.get("persistentVolumeClaim").cloned();
            let source = source.and_then(|source| serde_json::from_value::<ClaimVolumeSource>(source).ok());
            source.is_some_and(|source| source.claim_name == claim.name)
        };
        // What is plugged out is in use until the guest has let go of it.
        let plugged = object.value.pointer("/status/volumeStatus").and_then(Value::as_array);
        let held = |volume: &Value| {
            volume.pointer("/persistentVolumeClaimInfo/claimName").is_some_and(|name| *name == claim.name)
        };
        let used = volumes.into_iter().flatten().any(named) || plugged.into_iter().flatten().any(held);
        let phase = Phase::parse(phase);
        !phase.is_final() && counts(phase) && used
    };
    store.list(&place::vmis().name(), Some(&claim.namespace)).objects.iter().any(uses)
}

fn lose(store: &Store, claim: &Object, text: String) -> Result<(), DiskError> {
    if claim.value.pointer("/status/phase").is_some_and(|phase| phase == "Lost") {
        return Ok(());
    }
    place::change(store, claim, |value| {
        value["status"]["phase"] = json!("Lost");
        true
    })?;
    volume::fail(store, claim, &text)?;
    warn(store, claim, "ClaimLost", text)
}

fn warn(store: &Store, claim: &Object, reason: &str, text: String) -> Result<(), DiskError> {
    say(store, claim, &Event::new(true, reason, text))
}

fn say(store: &Store, claim: &Object, event: &Event) -> Result<(), DiskError> {
    let metadata = ObjectMeta {
        name: claim.key.name.clone(),
        namespace: claim.key.namespace.clone(),
        uid: meta::text(&claim.value, "uid").to_owned(),
        ..ObjectMeta::default()
    };
    let about = About {
        kind: &place::claims().kind,
        metadata: &metadata,
        component: "persistentvolume-controller",
        host: "",
    };
    tell(store, &about, event)
}

#[cfg(test)]
mod tests;
