//! The controller of attachment Pods: carries out what [`decide`] says.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::PostParams;
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use vireo_api::names::{ATTACHMENT, COMPONENT_LABEL};
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::informer::{Cached, Informer, revision, whole};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey, write};

use super::{Attachment, Step, attachment_pod, current, decide, wanted};
use crate::ReconcileError;
use crate::config::LiveConfig;
use crate::data_volume::StorageCache;
use crate::deletion::Deletion;
use crate::vmi::{Claim, LauncherPod, Wait, wait_of_claim};

const COMPONENT: &str = "virtualmachine-controller";
/// How many instances are reconciled at a time.
const WORKERS: usize = 2;

/// The caches of other controllers that this one reads.
#[derive(Clone)]
pub struct Caches {
    /// The instances, with their volumes.
    pub vmis: Arc<Informer<VirtualMachineInstance>>,
    /// Their launcher Pods.
    pub pods: Arc<Informer<LauncherPod>>,
    /// The claims and their DataVolumes.
    pub storage: Arc<StorageCache>,
}

/// The controller.
pub struct Controller {
    client: Client,
    /// The image of the launcher.
    image: String,
    config: LiveConfig,
    caches: Caches,
    attachments: Arc<Informer<Attachment>>,
    recorder: EventRecorder,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// Instances and the claims for which they wait.
    waiting: Arc<Mutex<BTreeSet<(ObjectKey, String)>>>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Controller").field("image", &self.image).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// A controller that reads the configuration and caches that the caller keeps.
    pub fn new(client: Client, caches: Caches, image: String, config: LiveConfig) -> Self {
        let queue = controller::queue();
        let labels = Config::default().labels(&format!("{COMPONENT_LABEL}={ATTACHMENT}"));
        let attachments = Informer::new(Kind::POD.all(&client), labels, whole::<Attachment>);
        let changed: Arc<WorkQueue<ObjectKey>> = Arc::clone(&queue);
        caches.vmis.on_change(move |vmi| changed.add(vmi.key.clone()));
        let changed = Arc::clone(&queue);
        caches.pods.on_change(move |pod| pod.owners(Kind::VMI.kind).for_each(|vmi| changed.add(vmi)));
        let changed = Arc::clone(&queue);
        attachments.on_change(move |pod| {
            pod.versions().filter_map(|one| one.vmi()).for_each(|vmi| changed.add(vmi));
        });
        let waiting: Arc<Mutex<BTreeSet<(ObjectKey, String)>>> = Arc::default();
        let (changed, awaited) = (Arc::clone(&queue), Arc::clone(&waiting));
        let wake = move |namespace: Option<&str>| {
            let awaited = lock(&awaited);
            let wait = awaited.iter().filter(|(vmi, _)| namespace.is_none_or(|one| vmi.namespace == one));
            wait.for_each(|(vmi, _)| changed.add(vmi.clone()));
        };
        let claims = wake.clone();
        caches.storage.on_claim(move |claim| claims(Some(&claim.key.namespace)));
        let data_volumes = wake.clone();
        caches.storage.on_change(move |one| data_volumes(Some(&one.key.namespace)));
        caches.storage.on_served(move || wake(None));
        let recorder = EventRecorder::new(client.clone(), COMPONENT, None);
        Self { client, image, config, caches, attachments, recorder, queue, waiting }
    }

    /// Controls until it is dropped.
    pub async fn run(&self) {
        let control = async {
            let Caches { vmis, pods, storage } = &self.caches;
            tokio::join!(vmis.synced(), pods.synced(), storage.synced());
            tokio::join!(self.attachments.synced(), self.config.synced());
            controller::run(self, &self.queue, WORKERS).await;
        };
        tokio::join!(self.attachments.run(), control);
    }

    /// Makes the attachment Pod of a claim, if the claim exists.
    async fn create(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        launcher: &LauncherPod,
        name: &str,
    ) -> Result<(), ReconcileError> {
        let namespace = &vmi.key.namespace;
        let regarding = Regarding::new(Kind::VMI, &vmi.metadata);
        let wait = (vmi.key.clone(), name.to_owned());
        // Before the request: a claim that appears meanwhile is noticed.
        let is_new = lock(&self.waiting).insert(wait.clone());
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let Some(claim) = claims.get_opt(name).await? else {
            if is_new {
                let text = format!("PVC {namespace}/{name} does not exist, waiting for it to appear");
                self.recorder.publish(regarding, Reason::FailedPvcNotFound, text).await;
            }
            return Ok(());
        };
        // The claim exists, whatever the cache shows.
        let wait_for = wait_of_claim(&ObjectKey::new(namespace, name), &*self.caches.storage);
        if let Some(Wait::Filling(_) | Wait::Consumer(_) | Wait::Failed(_)) = wait_for {
            return Ok(());
        }
        lock(&self.waiting).remove(&wait);
        // The cache has not all of the specification.
        let vmis = Kind::VMI.namespaced(&self.client, namespace);
        let Some(object) = vmis.get_opt(&vmi.key.name).await? else { return Ok(()) };
        let complete: VirtualMachineInstance = serde_json::from_value(serde_json::to_value(object)?)?;
        let claim = (name, &Claim::from(&claim));
        let pod = attachment_pod(&complete, launcher, claim, &self.image, &self.config.current());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match pods.create(&PostParams::default(), &pod).await {
            Ok(pod) => {
                let text = format!("Created attachment pod {}, for the claim {name}", pod.name_any());
                self.recorder.publish(regarding, Reason::SuccessfulCreate, text).await;
                let shown = pod.resource_version().and_then(|version| version.parse().ok());
                // Else the next decision would not know of it.
                self.attachments.shows(shown.unwrap_or_default(), &[]).await;
                Ok(())
            }
            Err(error) => {
                let Some(status) = write::rejection(&error) else { return Err(error.into()) };
                let text = format!("Error creating attachment pod of the claim {name}: {}", status.message);
                self.recorder.publish(regarding, Reason::FailedCreate, text).await;
                Err(ReconcileError::Refused(status.message.clone()))
            }
        }
    }

    async fn delete(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        attachment: &Attachment,
    ) -> Result<(), ReconcileError> {
        let metadata = &attachment.metadata;
        let pods = Kind::POD.namespaced(&self.client, &metadata.namespace);
        let deletion = Deletion { what: "attachment pod", name: &metadata.name, uid: &metadata.uid };
        let regarding = Regarding::new(Kind::VMI, &vmi.metadata);
        let left = deletion.carry_out(&pods, &self.recorder, regarding).await?;
        let gone = [(ObjectKey::new(&metadata.namespace, &metadata.name), metadata.uid.clone())];
        let gone = if left.is_some() { &[][..] } else { &gone };
        self.attachments.shows(left.as_ref().map_or(0, revision), gone).await;
        Ok(())
    }
}

impl Reconcile for Controller {
    type Key = ObjectKey;
    type Error = ReconcileError;
    const NAME: &'static str = "virt-controller-attachment-pod";

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, ReconcileError> {
        let Some(vmi) = self.caches.vmis.get(key) else {
            lock(&self.waiting).retain(|(waiting, _)| waiting != key);
            return Ok(None);
        };
        let is_wanted = |claim: &str| wanted(&vmi).any(|wanted| wanted == claim);
        lock(&self.waiting).retain(|(waiting, claim)| waiting != key || is_wanted(claim));
        let pods = self.caches.pods.owned_by(&vmi.uid);
        let attachments: Vec<_> = pods.iter().flat_map(|pod| self.attachments.owned_by(&pod.uid)).collect();
        let pods: Vec<&LauncherPod> = pods.iter().map(|pod| &pod.value).collect();
        let attachments: Vec<&Attachment> = attachments.iter().map(|pod| &pod.value).collect();
        let launcher = current(&vmi, &pods);
        let mut done = Ok(());
        for step in decide(&vmi, &pods, &attachments) {
            // One that fails holds up no other.
            done = done.and(match (step, launcher) {
                (Step::Create(claim), Some(launcher)) => self.create(&vmi, launcher, claim).await,
                (Step::Create(_), None) => Ok(()),
                (Step::Delete(attachment), _) => self.delete(&vmi, attachment).await,
            });
        }
        done.map(|()| None)
    }
}
