//! The launcher Pods of a node.
//!
//! Where the node agent starts launchers itself, it does for their Pods, and for no others, what a kubelet does. It writes
//! their statuses, ends guests whose Pods are deleted, and removes Pods whose guests have ended. Where the kubelet starts
//! them, it learns from the Pods where its launchers are, and which VMI has none any more.

mod images;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::runtime::watcher::Config;
use kube::{Client, Error};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use vireo_api::names::{
    CLAIM_DISKS_ANNOTATION, COMPONENT_LABEL, CREATED_BY_LABEL, DISKS_VOLUME, LAUNCHER, is_image_container,
};
use vireo_api::v1::{ObjectMeta, VirtualMachineInstance};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::informer::{Cached, Informer, revision};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey, write};

use super::bound::Bound;
use super::{PASSING, RETRY, VmiId};
use crate::launcher::pod::ClaimDisks;
use crate::manifests::Key;
use crate::node::{self, Node};
use crate::reconcile::status::Phase;
use crate::settings::Runtime;
use images::{ImageImporter, OfferedImage, PulledImage};

/// How many VMIs are reconciled at a time.
const WORKERS: usize = 4;

/// What Multus has attached.
const NETWORK_STATUS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/network-status";

/// A launcher Pod as the node agent caches it.
#[derive(Debug)]
pub(super) struct LauncherPod {
    metadata: ObjectMeta,
    /// The image of its first container, which is the launcher.
    pub(super) image: String,
    /// Whether it has a volume for the disks that end with it.
    has_disks: bool,
    /// Its volumes with images.
    image_volumes: BTreeSet<String>,
    status: Value,
}

impl LauncherPod {
    fn read(mut object: Value) -> Result<Self, serde_json::Error> {
        let metadata = ObjectMeta::deserialize(&object["metadata"])?;
        let image = object.pointer("/spec/containers/0/image").and_then(Value::as_str).unwrap_or_default();
        let volumes = object.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
        let has_disks = volumes.clone().any(|volume| volume["name"] == DISKS_VOLUME);
        let with_images = volumes.filter(|volume| volume["image"].is_object());
        let image_volumes =
            with_images.filter_map(|volume| volume["name"].as_str()).map(str::to_owned).collect();
        let image = image.to_owned();
        Ok(Self { metadata, image, has_disks, image_volumes, status: object["status"].take() })
    }

    /// What the node agent needs to know of it.
    fn published(&self) -> node::LauncherPod {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let image = |status: &Value| (text(&status["name"]), text(&status["imageID"]));
        node::LauncherPod {
            uid: self.metadata.uid.clone(),
            address: text(&self.status["podIP"]),
            images: self.init_containers().map(image).collect(),
            has_disks: self.has_disks,
            image_volumes: self.image_volumes.clone(),
            claims: self.claims(),
            multus: self.multus(),
        }
    }

    /// The disks of its claims, as virt-controller noted them.
    fn claims(&self) -> ClaimDisks {
        let noted = self.metadata.annotations.get(CLAIM_DISKS_ANNOTATION);
        noted.and_then(|noted| serde_json::from_str(noted).ok()).unwrap_or_default()
    }

    /// Its interfaces that Multus has reported, with the PCI addresses of those that are devices: their `device-info`, by the
    /// Device Information Specification of the Network Plumbing Working Group.
    fn multus(&self) -> BTreeMap<String, Option<String>> {
        let reported = self.metadata.annotations.get(NETWORK_STATUS_ANNOTATION);
        let reported: Option<Vec<Value>> = reported.and_then(|reported| serde_json::from_str(reported).ok());
        let interface = |network: &Value| {
            let address = network.pointer("/device-info/pci/pci-address").and_then(Value::as_str);
            Some((network["interface"].as_str()?.to_owned(), address.map(str::to_owned)))
        };
        reported.iter().flatten().filter_map(interface).collect()
    }

    fn init_containers(&self) -> impl Iterator<Item = &Value> {
        self.status["initContainerStatuses"].as_array().into_iter().flatten()
    }

    /// The containers of images that run: they offer files of their images.
    fn offers(&self) -> impl Iterator<Item = PulledImage> {
        let running = self.init_containers().filter(|status| status["state"]["running"].is_object());
        running.filter_map(|status| {
            let text = |field: &str| status[field].as_str();
            let (container, id, digest) = (text("name")?, text("containerID")?, text("imageID")?);
            is_image_container(container).then(|| PulledImage {
                pod: self.metadata.uid.clone(),
                container: container.to_owned(),
                id: id.to_owned(),
                digest: digest.to_owned(),
            })
        })
    }

    /// Whether it has not ended.
    pub(super) fn is_active(&self) -> bool {
        !matches!(self.status["phase"].as_str(), Some("Succeeded" | "Failed"))
    }

    /// The grace period of its launcher in seconds, if it is being deleted.
    fn deletion(&self) -> Option<u64> {
        self.metadata.deletion_timestamp.as_ref()?;
        Some(self.metadata.deletion_grace_period_seconds.unwrap_or(0).try_into().unwrap_or(0))
    }
}

/// The launcher Pods that are bound to a node.
pub(super) struct Pods {
    client: Client,
    node: Arc<Node>,
    bound: Arc<Bound>,
    changed: Arc<Notify>,
    pods: Arc<Informer<LauncherPod>>,
    queue: Arc<WorkQueue<VmiId>>,
    /// UIDs of VMIs whose Pod is gone.
    vanished: Arc<Mutex<BTreeSet<String>>>,
    /// Whether the VMIs from before the restart are adopted: until then, one that is not published may run.
    adopted: watch::Receiver<bool>,
    started_by_kubelet: bool,
    importer: ImageImporter,
}

fn lock(uids: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    uids.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pods {
    pub(super) fn new(
        client: Client,
        node: Arc<Node>,
        (bound, changed): (Arc<Bound>, Arc<Notify>),
        adopted: watch::Receiver<bool>,
    ) -> Self {
        let config = Config::default()
            .labels(&format!("{COMPONENT_LABEL}={LAUNCHER}"))
            .fields(&format!("spec.nodeName={}", node.settings.node_name));
        let pods = Informer::new(Kind::POD.all(&client), config, LauncherPod::read);
        let queue = Arc::new(WorkQueue::new(RETRY.0, RETRY.1));
        let vanished: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (add, gone) = (Arc::clone(&queue), Arc::clone(&vanished));
        let started_by_kubelet = matches!(node.settings.runtime, Runtime::Pods(_));
        let published = Arc::clone(&node);
        let importer = ImageImporter::new(client.clone(), Arc::clone(&node));
        let imports = importer.queue();
        pods.on_change(move |change| {
            let owner = change.versions().filter_map(|pod| pod.owner.as_ref());
            let Some(owner) = owner.last().filter(|owner| owner.kind == Kind::VMI.kind) else { return };
            if started_by_kubelet {
                match change.after.as_ref().filter(|pod| pod.is_active()) {
                    Some(pod) => {
                        published.set_launcher_pod((&change.key.namespace, &owner.uid), pod.published());
                        for image in pod.offers() {
                            imports.add(OfferedImage {
                                vmi: ObjectKey::new(&change.key.namespace, &owner.name),
                                uid: owner.uid.clone(),
                                image,
                            });
                        }
                    }
                    None => change.versions().for_each(|pod| {
                        published.remove_launcher_pod((&change.key.namespace, &owner.uid), &pod.uid);
                    }),
                }
            }
            if change.after.is_none() {
                lock(&gone).insert(owner.uid.clone());
            }
            let key = ObjectKey::new(&change.key.namespace, &owner.name);
            // Its guest may run before a user asks why it does not run.
            let is_new =
                change.before.is_none() && change.after.as_ref().is_some_and(|pod| pod.deletion().is_none());
            let delay = if is_new { PASSING } else { Duration::ZERO };
            add.add_after(VmiId { key, uid: owner.uid.clone() }, delay);
        });
        Self { client, node, bound, changed, pods, queue, vanished, adopted, started_by_kubelet, importer }
    }

    /// The cache of the Pods.
    pub(super) fn informer(&self) -> Arc<Informer<LauncherPod>> {
        Arc::clone(&self.pods)
    }

    pub(super) async fn run(&self) {
        let reconcile = async {
            self.pods.synced().await;
            if self.adopted.clone().wait_for(|adopted| *adopted).await.is_err() {
                // The node agent stops.
                return;
            }
            controller::run(self, &self.queue, WORKERS).await;
        };
        tokio::join!(self.pods.run(), reconcile, self.importer.run());
    }

    /// Reconciles the Pods of a VMI that the node shows, after a delay.
    pub(super) fn shown(&self, key: &Key, vmi: &VirtualMachineInstance, delay: Duration) {
        self.queue.add_after(VmiId { key: key.clone(), uid: vmi.metadata.uid.clone() }, delay);
    }

    fn stop(&self, VmiId { key, uid }: &VmiId, seconds: u64) {
        if self.bound.stop(key, uid, seconds) {
            self.changed.notify_one();
        }
    }

    /// Removes a Pod of which nothing runs any more.
    async fn remove(&self, pod: &Cached<LauncherPod>) -> Result<(), Error> {
        let same = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let now = DeleteParams::default().grace_period(0).preconditions(same);
        let api = Kind::POD.namespaced(&self.client, &pod.key.namespace);
        match api.delete(&pod.key.name, &now).await {
            Err(Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(|_| ()),
        }
    }

    /// Ends the guest of a VMI whose Pod is gone, after asking the API server whether it has another one.
    async fn end_without_pod(&self, id: &VmiId) -> Result<(), Error> {
        let its = ListParams::default().labels(&format!("{CREATED_BY_LABEL}={}", id.uid));
        let pods = Kind::POD.namespaced(&self.client, &id.key.namespace).list(&its).await?;
        if pods.items.is_empty() {
            self.stop(id, 0);
        }
        lock(&self.vanished).remove(&id.uid);
        Ok(())
    }

    /// Ends a VMI whose launcher ended before the node agent found it. Else the launcher reports how its guest ended.
    async fn end_unstarted(
        &self,
        id: &VmiId,
        vmi: Option<&VirtualMachineInstance>,
        pods: &[Arc<Cached<LauncherPod>>],
    ) -> Result<(), Error> {
        let phase = vmi.map(|vmi| Phase::parse(&vmi.status.phase));
        let is_unstarted = matches!(phase, Some(Phase::Pending | Phase::Scheduling));
        if !is_unstarted {
            lock(&self.vanished).remove(&id.uid);
            return Ok(());
        }
        if pods.iter().any(|pod| pod.is_active()) {
            return Ok(());
        }
        match pods.is_empty() {
            // It may not have been received yet.
            true if lock(&self.vanished).contains(&id.uid) => self.end_without_pod(id).await?,
            true => {}
            false => self.stop(id, 0),
        }
        Ok(())
    }

    async fn write_status(&self, pod: &Cached<LauncherPod>, after: &Value) -> Result<(), Error> {
        let api = Kind::POD.namespaced(&self.client, &pod.key.namespace);
        // The node agent alone writes it once the Pod is bound.
        let version = write::Version { resource_version: "", ..(&pod.metadata).into() };
        let written = match write::patch_status(&api, version, &pod.status, after).await {
            // It is gone.
            Err(Error::Api(status)) if status.code == 404 => return Ok(()),
            written => written?,
        };
        // Wait for the informer, so that the next patch is computed from this version.
        self.pods.shows(written.as_ref().map_or(0, revision), &[]).await;
        Ok(())
    }
}

impl Reconcile for Pods {
    type Key = VmiId;
    type Error = Error;
    const NAME: &'static str = "virt-handler-launcher-pod";

    async fn reconcile(&self, id: &VmiId) -> Result<Requeue, Error> {
        let vmi = self.node.vmi(&id.key).filter(|vmi| vmi.metadata.uid == id.uid);
        let has_ended = match &vmi {
            Some(vmi) => Phase::parse(&vmi.status.phase).is_final(),
            None => !self.node.is_unreadable(&id.uid),
        };
        let pods = self.pods.owned_by(&id.uid);
        if self.started_by_kubelet {
            return self.end_unstarted(id, vmi.as_deref(), &pods).await.map(|()| None);
        }
        for pod in &pods {
            match pod.deletion() {
                Some(_) if has_ended => {
                    self.remove(pod).await?;
                    continue;
                }
                Some(seconds) => self.stop(id, seconds),
                None => {}
            }
            let after = status::next(&pod.status, &pod.image, vmi.as_deref(), Timestamp::now());
            self.write_status(pod, &after).await?;
        }
        if pods.is_empty() && lock(&self.vanished).contains(&id.uid) {
            match has_ended {
                true => {
                    lock(&self.vanished).remove(&id.uid);
                }
                false => self.end_without_pod(id).await?,
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn multus_reports_interfaces_and_which_of_them_are_devices() {
        let multus = |status: Value| {
            let annotations = json!({ NETWORK_STATUS_ANNOTATION: status });
            LauncherPod::read(json!({"metadata": {"annotations": annotations}})).unwrap().published().multus
        };
        let reported = json!([
            {"name": "pods", "interface": "eth0", "ips": ["10.244.0.7"], "default": true},
            {"name": "n/lan", "interface": "pod16477688c0e", "device-info":
                {"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:65:00.2"}}},
            {"name": "without an interface"},
        ]);
        let expected = [("eth0", None), ("pod16477688c0e", Some("0000:65:00.2"))];
        let expected = expected.map(|(name, address)| (name.to_owned(), address.map(str::to_owned)));
        assert_eq!(multus(reported.to_string().into()), BTreeMap::from(expected));
        assert_eq!(multus("not JSON".into()), BTreeMap::new());
    }
}
