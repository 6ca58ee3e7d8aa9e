//! The controller of VirtualMachineInstances: carries out what [`decide()`] says.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use vireo_api::names::{COMPONENT_LABEL, CONSUMER, LAUNCHER, NODE_LABEL, OUTDATED_LABEL, VMI_FINALIZER};
use vireo_api::v1::{LabelSelector, VirtualMachineInstance};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::informer::{Cached, Informer, revision};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey, write};

use super::consumer::consumer_pod;
use super::image_volumes::ImageVolumes;
use super::{
    Claim, Claims, Decision, ImageDelivery, Launcher, LauncherPod, Observed, StartedBy, Step, Wait, claims,
    decide, launcher_pod, networks, resources, state,
};
use crate::config::LiveConfig;
use crate::data_volume::StorageCache;
use crate::node::{self, Node};
use crate::{ReconcileError, attachments};

const COMPONENT: &str = "virtualmachine-controller";
/// The reason of a network that does not exist, and of Pods that cannot be created.
const NO_POD: &str = "FailedCreate";
/// How soon it is looked again for something that an instance waits for.
const WAIT: Duration = Duration::from_secs(5);
/// How many instances are reconciled at a time.
const WORKERS: usize = 8;

/// Why the Pod of an instance could not be created: the reason of a condition, and the same for people.
type Refused = HashMap<ObjectKey, (&'static str, String)>;

/// What a Pod of an instance is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose<'a> {
    /// To run its launcher, on a node where that is given.
    Launch(Option<&'a str>),
    /// To be the first consumer of its claims.
    Consume,
}

/// The controller.
pub struct Controller {
    client: Client,
    launcher: Launcher,
    config: LiveConfig,
    vmis: Arc<Informer<VirtualMachineInstance>>,
    pods: Arc<Informer<LauncherPod>>,
    /// The first consumers of claims.
    consumers: Arc<Informer<LauncherPod>>,
    /// The claims and DataVolumes that instances may wait for.
    storage: Arc<StorageCache>,
    /// The instances that wait for them.
    waiting: Arc<Mutex<HashSet<ObjectKey>>>,
    /// The nodes, where those fail by themselves.
    nodes: Option<Arc<Informer<Node>>>,
    /// Whether images are volumes, where the kubelet starts launchers.
    image_volumes: Option<ImageVolumes>,
    recorder: EventRecorder,
    queue: Arc<WorkQueue<ObjectKey>>,
    refused: Arc<Mutex<Refused>>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Controller").field("launcher", &self.launcher).finish_non_exhaustive()
    }
}

impl Controller {
    /// A controller that reads the configuration and caches of instances and of nodes, which the caller keeps.
    pub fn new(
        client: Client,
        vmis: Arc<Informer<VirtualMachineInstance>>,
        nodes: Option<Arc<Informer<Node>>>,
        launcher: Launcher,
        config: LiveConfig,
    ) -> Self {
        let queue = controller::queue();
        let pods_of = |component: &str| {
            let config = Config::default().labels(&format!("{COMPONENT_LABEL}={component}"));
            let pods = Informer::new(Kind::POD.all(&client), config, LauncherPod::read);
            let changed = Arc::clone(&queue);
            pods.on_change(move |pod| pod.owners(Kind::VMI.kind).for_each(|vmi| changed.add(vmi)));
            pods
        };
        let (pods, consumers) = (pods_of(LAUNCHER), pods_of(CONSUMER));
        let changed = Arc::clone(&queue);
        vmis.on_change(move |vmi| changed.add(vmi.key.clone()));
        let refused: Arc<Mutex<Refused>> = Arc::default();
        let storage = StorageCache::new(&client);
        let waiting: Arc<Mutex<HashSet<ObjectKey>>> = Arc::default();
        let wake = {
            let (changed, waiting) = (Arc::clone(&queue), Arc::clone(&waiting));
            // Without a namespace, all of them.
            move |namespace: Option<&str>| {
                let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let is_there =
                    |vmi: &&ObjectKey| namespace.is_none_or(|namespace| vmi.namespace == namespace);
                waiting.iter().filter(is_there).for_each(|vmi| changed.add(vmi.clone()));
            }
        };
        let changed = wake.clone();
        storage.on_claim(move |claim| changed(Some(&claim.key.namespace)));
        let changed = wake.clone();
        storage.on_change(move |data_volume| changed(Some(&data_volume.key.namespace)));
        storage.on_served(move || wake(None));
        let recorder = EventRecorder::new(client.clone(), COMPONENT, None);
        let image_volumes = nodes.as_ref().map(|nodes| ImageVolumes::new(client.clone(), Arc::clone(nodes)));
        Self {
            client,
            launcher,
            config,
            vmis,
            pods,
            consumers,
            storage,
            waiting,
            nodes,
            image_volumes,
            recorder,
            queue,
            refused,
        }
    }

    /// The caches that the controller of attachment Pods reads, where the kubelet mounts claims.
    pub fn attachment_caches(&self) -> Option<attachments::controller::Caches> {
        let (vmis, pods) = (Arc::clone(&self.vmis), Arc::clone(&self.pods));
        let storage = Arc::clone(&self.storage);
        let is_mounted = self.launcher.started_by == StartedBy::Kubelet;
        is_mounted.then_some(attachments::controller::Caches { vmis, pods, storage })
    }

    /// The caches of DataVolumes and claims.
    pub fn storage(&self) -> Arc<StorageCache> {
        Arc::clone(&self.storage)
    }

    /// The cache of launcher Pods.
    pub fn pods(&self) -> Arc<Informer<LauncherPod>> {
        Arc::clone(&self.pods)
    }

    /// The instances to decide about.
    pub fn queue(&self) -> Arc<WorkQueue<ObjectKey>> {
        Arc::clone(&self.queue)
    }

    /// Controls until it is dropped.
    pub async fn run(&self) {
        let control = async {
            self.vmis.synced().await;
            self.pods.synced().await;
            self.consumers.synced().await;
            self.config.synced().await;
            self.storage.synced().await;
            if let Some(nodes) = &self.nodes {
                nodes.synced().await;
            }
            if let Some(image_volumes) = &self.image_volumes {
                image_volumes.synced().await;
            }
            controller::run(self, &self.queue, WORKERS).await;
        };
        let image_volumes = async {
            if let Some(image_volumes) = &self.image_volumes {
                image_volumes.run().await;
            }
        };
        tokio::join!(self.pods.run(), self.consumers.run(), self.storage.run(), image_volumes, control);
    }

    fn refused(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an instance waits for before it gets a Pod. Changes of that reconcile it again.
    fn wait(&self, vmi: &VirtualMachineInstance, key: &ObjectKey) -> Option<Wait> {
        // Before the caches are read: a change meanwhile is noticed.
        self.waiting().insert(key.clone());
        let wait = Wait::of(vmi, &*self.storage, self.launcher.started_by == StartedBy::Kubelet);
        if wait.is_none() {
            self.waiting().remove(key);
        }
        wait
    }

    fn waiting(&self) -> MutexGuard<'_, HashSet<ObjectKey>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the node that an instance was handed over to is not heard of.
    fn is_node_unresponsive(&self, vmi: &VirtualMachineInstance, now: Timestamp) -> bool {
        let (Some(nodes), Some(node)) = (&self.nodes, vmi.metadata.labels.get(NODE_LABEL)) else {
            return false;
        };
        let node = nodes.get(&ObjectKey::new("", node));
        node::is_unresponsive(node.as_deref().map(|node| &node.value), now)
    }

    /// Writes the status that was decided; the metadata of the instance as it is then.
    async fn write_status(
        &self,
        api: &Api<DynamicObject>,
        vmi: &Cached<VirtualMachineInstance>,
        decision: &Decision,
    ) -> Result<Option<DynamicObject>, ReconcileError> {
        let mut version = write::Version::from(&vmi.metadata);
        if vmi.metadata.labels.contains_key(NODE_LABEL) {
            // The node agent writes the other fields, so the patch applies to any version of the object.
            version.resource_version = "";
        }
        Ok(write::change_status(api, version, &vmi.status, &decision.status).await?)
    }

    /// The claims that the kubelet mounts into the launcher Pod of an instance.
    async fn claims(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        whole: &VirtualMachineInstance,
    ) -> Result<Claims, ReconcileError> {
        let mut found = Claims::new();
        if self.launcher.started_by == StartedBy::NodeAgent {
            return Ok(found);
        }
        let namespace = &vmi.key.namespace;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        for (_, source) in claims::of(whole) {
            let name = source.name;
            let Some(claim) = claims.get_opt(name).await? else {
                // The cache does not show yet that it is gone.
                return Err(ReconcileError::Waits(format!("PVC {namespace}/{name} does not exist")));
            };
            found.insert(name.to_owned(), Claim::from(&claim));
        }
        Ok(found)
    }

    /// The networks of Multus on which an instance is.
    async fn networks(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        whole: &VirtualMachineInstance,
    ) -> Result<networks::Definitions, ReconcileError> {
        let mut found = networks::Definitions::new();
        for key in networks::definitions(whole) {
            let (namespace, name) = &key;
            let definitions = Kind::NETWORK.namespaced(&self.client, namespace);
            let definition = match definitions.get(name).await {
                // Also where the cluster does not serve the kind, which it says without a reason.
                Err(kube::Error::Api(status)) if status.code == 404 => None,
                got => Some(got?),
            };
            let Some(definition) = definition else {
                let message = match Kind::NETWORK.is_served(&self.client).await? {
                    true => {
                        format!(
                            "NetworkAttachmentDefinition {namespace}/{name} does not exist, waiting for it to appear"
                        )
                    }
                    false => format!(
                        "the cluster has no {}, waiting for Multus to be installed: the network {namespace}/{name} is one",
                        Kind::NETWORK.kind
                    ),
                };
                self.refused().insert(vmi.key.clone(), (NO_POD, message.clone()));
                return Err(ReconcileError::Waits(message));
            };
            let resource = definition.annotations().get(networks::RESOURCE_ANNOTATION).cloned();
            found.insert(key, resource.filter(|resource| !resource.is_empty()));
        }
        Ok(found)
    }

    /// Creates a Pod of an instance, or tells when it is to be tried again. `known` is what the status says that it waits
    /// for.
    async fn start(
        &self,
        api: &Api<DynamicObject>,
        vmi: &Cached<VirtualMachineInstance>,
        purpose: Purpose<'_>,
        known: Option<&str>,
    ) -> Result<Requeue, ReconcileError> {
        let created = match self.create_pod(api, vmi, purpose).await {
            Err(ReconcileError::Waits(why)) if known == Some(why.as_str()) => return Ok(Some(WAIT)),
            Err(ReconcileError::Waits(_)) => return Ok(Some(Duration::ZERO)),
            created => created?,
        };
        if let Some(pod) = created {
            let revision = pod.resource_version().and_then(|version| version.parse().ok());
            let cache = if purpose == Purpose::Consume { &self.consumers } else { &self.pods };
            // Else the next decision would not know of it.
            cache.shows(revision.unwrap_or_default(), &[]).await;
        }
        Ok(None)
    }

    /// Whether a selector chooses a namespace.
    async fn is_selected(&self, namespace: &str, selector: &LabelSelector) -> Result<bool, kube::Error> {
        let labels = Kind::NAMESPACE.all(&self.client).get(namespace).await?.metadata.labels;
        Ok(selector.chooses(&labels.unwrap_or_default()))
    }

    async fn create_pod(
        &self,
        api: &Api<DynamicObject>,
        vmi: &Cached<VirtualMachineInstance>,
        purpose: Purpose<'_>,
    ) -> Result<Option<Pod>, ReconcileError> {
        // The cache has not all of the specification.
        let Some(object) = api.get_opt(&vmi.key.name).await? else { return Ok(None) };
        if object.uid().as_deref() != Some(vmi.uid.as_str()) {
            return Ok(None);
        }
        let whole: VirtualMachineInstance = serde_json::from_value(serde_json::to_value(object)?)?;
        let claims = self.claims(vmi, &whole).await?;
        let node = if let Purpose::Launch(node) = purpose { node } else { None };
        let networks = self.networks(vmi, &whole).await?;
        let images = self.image_volumes.as_ref().map_or(ImageDelivery::Containers, ImageVolumes::delivery);
        let config = self.config.current();
        let mut pod = launcher_pod(&whole, &self.launcher, &config, node, &claims, images)?;
        if let Some(selector) = &config.auto_cpu_limit
            && self.is_selected(&vmi.key.namespace, selector).await?
        {
            resources::limit_cpu(&mut pod, &whole);
        }
        networks::add(&mut pod, &whole, &networks);
        if let Some(claim) = self.state(vmi, &whole).await? {
            state::add(&mut pod, &claim);
        }
        if purpose == Purpose::Consume {
            pod = consumer_pod(pod, &whole);
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &vmi.key.namespace);
        let regarding = Regarding::new(Kind::VMI, &vmi.metadata);
        match pods.create(&PostParams::default(), &pod).await {
            Ok(pod) => {
                let text = format!("Created virtual machine pod {}", pod.name_any());
                self.recorder.publish(regarding, Reason::SuccessfulCreate, text).await;
                self.refused().remove(&vmi.key);
                Ok(Some(pod))
            }
            Err(error) => Err(match self.is_own_pod(vmi, &pods, &pod, &error).await? {
                true => error.into(),
                false => self.not_created(vmi, "pod", error).await,
            }),
        }
    }

    /// Whether a Pod could not be created because of one of the instance's own that the cache does not show yet, or that has
    /// been deleted meanwhile: another attempt is due then.
    async fn is_own_pod(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        pods: &Api<Pod>,
        pod: &Pod,
        error: &kube::Error,
    ) -> Result<bool, kube::Error> {
        let Some(name) = pod.metadata.name.as_deref().filter(|_| write::already_exists(error)) else {
            return Ok(false);
        };
        // virt-controller may list Pods, and not get them.
        let of_this_name = ListParams::default().fields(&format!("metadata.name={name}"));
        let existing = pods.list(&of_this_name).await?.items;
        let is_own = |pod: &Pod| {
            pod.owner_references().iter().any(|one| one.uid == vmi.uid && one.controller == Some(true))
        };
        Ok(existing.iter().all(is_own))
    }

    /// Deletes one of some Pods of an instance, which a cache has.
    async fn delete_pod(
        &self,
        cache: &Informer<LauncherPod>,
        pods: &[&LauncherPod],
        uid: &str,
    ) -> Result<(), ReconcileError> {
        let Some(pod) = pods.iter().find(|pod| pod.metadata.uid == uid) else { return Ok(()) };
        let vireo_api::v1::ObjectMeta { name, namespace, .. } = &pod.metadata;
        let left = write::delete(&Kind::POD.namespaced(&self.client, namespace), name, uid).await?;
        let gone = [(ObjectKey::new(namespace, name), uid.to_owned())];
        let gone = if left.is_some() { &[][..] } else { &gone };
        cache.shows(left.as_ref().map_or(0, revision), gone).await;
        Ok(())
    }

    /// Tells why something that an instance needs could not be created.
    async fn not_created(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        what: &str,
        error: kube::Error,
    ) -> ReconcileError {
        let status = match &error {
            // An object of another owner has its name.
            kube::Error::Api(status)
                if write::already_exists(&error) || write::rejection(&error).is_some() =>
            {
                status
            }
            _ => return error.into(),
        };
        let text = format!("Error creating {what}: {}", status.message);
        let regarding = Regarding::new(Kind::VMI, &vmi.metadata);
        self.recorder.publish(regarding, Reason::FailedCreate, text).await;
        self.refused().insert(vmi.key.clone(), (NO_POD, status.message.clone()));
        ReconcileError::Refused(status.message.clone())
    }

    /// The claim with the state of an instance that has some beside its disks. It is made for the first one of a VM.
    async fn state(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        whole: &VirtualMachineInstance,
    ) -> Result<Option<String>, ReconcileError> {
        if self.launcher.started_by == StartedBy::NodeAgent || !state::is_kept(whole) {
            return Ok(None);
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &vmi.key.namespace);
        let labelled = claims.list(&ListParams::default().labels(&state::selector(whole))).await?;
        if let Some(claim) = state::find(whole, &labelled.items) {
            return Ok(Some(claim.name_any()));
        }
        let claim = state::claim(whole, self.config.current().state_storage_class.as_deref());
        match claims.create(&PostParams::default(), &claim).await {
            Ok(claim) => Ok(Some(claim.name_any())),
            Err(error) if write::is_conflict(&error) => {
                let name = format!("{}/{}", vmi.key.namespace, claim.name_any());
                let message = format!("PVC {name} is not of this VM, waiting for it to be deleted");
                self.refused().insert(vmi.key.clone(), (NO_POD, message.clone()));
                Err(ReconcileError::Waits(message))
            }
            Err(error) => Err(self.not_created(vmi, "the PVC of the VM's state", error).await),
        }
    }
}

/// Writes a label of an instance, or removes it. No other client writes these labels, so the patch applies to any version of
/// the object. The version after it.
async fn label(
    api: &Api<DynamicObject>,
    version: write::Version<'_>,
    name: &str,
    value: Value,
) -> Result<u64, kube::Error> {
    let version = write::Version { resource_version: "", ..version };
    let patched = write::patch(api, version, json!({"metadata": {"labels": {name: value}}})).await?;
    Ok(revision(&patched))
}

impl Reconcile for Controller {
    type Key = ObjectKey;
    type Error = ReconcileError;
    const NAME: &'static str = "virt-controller-vmi";

    async fn reconcile(&self, key: &ObjectKey) -> Result<Requeue, ReconcileError> {
        let Some(vmi) = self.vmis.get(key) else {
            self.refused().remove(key);
            self.waiting().remove(key);
            return Ok(None);
        };
        let pods = self.pods.owned_by(&vmi.uid);
        let pods: Vec<&LauncherPod> = pods.iter().map(|pod| &pod.value).collect();
        let consumers = self.consumers.owned_by(&vmi.uid);
        let own = consumers.iter().filter(|pod| pod.key.namespace == key.namespace);
        let consumers: Vec<&LauncherPod> = own.map(|pod| &pod.value).collect();
        let failure = self.refused().get(key).cloned();
        let wait = self.wait(&vmi, key);
        let now = Timestamp::now();
        let decision = decide(&Observed {
            vmi: &vmi,
            pods: &pods,
            consumers: &consumers,
            failure: failure.as_ref().map(|(reason, message)| (*reason, message.as_str())),
            wait: wait.as_ref(),
            launcher: &self.launcher,
            is_node_unresponsive: self.is_node_unresponsive(&vmi, now),
            now,
        });
        let api = Kind::VMI.namespaced(&self.client, &key.namespace);
        let mut version = write::Version::from(&vmi.metadata);
        let written = self.write_status(&api, &vmi, &decision).await?;
        let mut shown = written.as_ref().map_or(0, revision);
        if let Some(now) = written.as_ref().and_then(|now| now.metadata.resource_version.as_deref()) {
            version.resource_version = now;
        }
        for (why, reason) in [
            (&decision.unschedulable, Reason::FailedScheduling),
            (&decision.unresponsive, Reason::NodeUnresponsive),
        ] {
            if let Some(why) = why {
                let regarding = Regarding::new(Kind::VMI, &vmi.metadata);
                self.recorder.publish(regarding, reason, why.clone()).await;
            }
        }
        let mut requeue = None;
        for step in &decision.steps {
            match step {
                Step::CreatePod(node) => {
                    let known = failure.as_ref().map(|(_, why)| why.as_str());
                    requeue = self.start(&api, &vmi, Purpose::Launch(node.as_deref()), known).await?;
                }
                Step::HandOver(node) => {
                    shown = label(&api, version, NODE_LABEL, json!(node)).await?.max(shown);
                }
                Step::MarkOutdated(is_outdated) => {
                    let value = if *is_outdated { json!("") } else { Value::Null };
                    shown = label(&api, version, OUTDATED_LABEL, value).await?.max(shown);
                }
                Step::CreateConsumer => {
                    let known = failure.as_ref().map(|(_, why)| why.as_str());
                    requeue = self.start(&api, &vmi, Purpose::Consume, known).await?;
                }
                Step::DeletePod(uid) => self.delete_pod(&self.pods, &pods, uid).await?,
                Step::DeleteConsumer(uid) => self.delete_pod(&self.consumers, &consumers, uid).await?,
                Step::Release => {
                    let finalizers = vmi.metadata.finalizers.iter();
                    let others: Vec<&String> = finalizers.filter(|one| *one != VMI_FINALIZER).collect();
                    let patch = json!({"metadata": {"finalizers": others}});
                    shown = revision(&write::patch(&api, version, patch).await?).max(shown);
                }
            }
        }
        self.vmis.shows(shown, &[]).await;
        Ok(requeue)
    }
}
