//! The controller of VirtualMachineInstances: carries out what [`decide()`] says.

mod pods;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::api::DynamicObject;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use serde_json::{Value, json};
use vireo_api::names::{COMPONENT_LABEL, CONSUMER, LAUNCHER, NODE_LABEL, OUTDATED_LABEL, VMI_FINALIZER};
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::informer::{Cached, Informer, revision};
use vireo_client::metrics::{MetricSet, Syncs};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey, write};

use self::pods::Purpose;
use super::image_volumes::ImageVolumes;
use super::pod::NETWORKS_ANNOTATION;
use super::pod_events::PodEvents;
use super::{Decision, Launcher, LauncherPod, Observed, StartedBy, Step, Wait, decide};
use crate::config::LiveConfig;
use crate::data_volume::StorageCache;
use crate::node::{self, Node};
use crate::{ReconcileError, attachments, metrics};

const COMPONENT: &str = "virtualmachine-controller";
/// How many instances are reconciled at a time.
const WORKERS: usize = 8;

/// Why the Pod of an instance is not created, of which no cache tells.
type Failures = HashMap<ObjectKey, String>;

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
    /// What keeps Pods from their start, where the kubelet starts launchers.
    pod_events: Option<PodEvents>,
    recorder: EventRecorder,
    queue: Arc<WorkQueue<ObjectKey>>,
    failures: Arc<Mutex<Failures>>,
    syncs: Syncs,
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
        let failures: Arc<Mutex<Failures>> = Arc::default();
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
        let pod_events = (launcher.started_by == StartedBy::Kubelet).then(PodEvents::default);
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
            pod_events,
            recorder,
            queue,
            failures,
            syncs: Syncs::new("virt-controller"),
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

    /// Adds the metrics of launcher Pods, as far as it knows them.
    pub(crate) fn add_metrics(&self, set: &mut MetricSet) {
        for pod in self.pods.all().iter().filter(|pod| !pod.is_final()) {
            if let Some(vmi) = pod.owner.as_ref().filter(|owner| owner.kind == Kind::VMI.kind) {
                metrics::add_launcher(set, &pod.key.namespace, &vmi.name, pod);
            }
        }
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

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
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
            self.failures().remove(key);
            self.waiting().remove(key);
            if let Some(events) = &self.pod_events {
                events.forget(key);
            }
            self.syncs.forget(&key.namespace, &key.name);
            return Ok(None);
        };
        self.syncs.count(&key.namespace, &key.name);
        let pods = self.pods.owned_by(&vmi.uid);
        let pods: Vec<&LauncherPod> = pods.iter().map(|pod| &pod.value).collect();
        let consumers = self.consumers.owned_by(&vmi.uid);
        let own = consumers.iter().filter(|pod| pod.key.namespace == key.namespace);
        let consumers: Vec<&LauncherPod> = own.map(|pod| &pod.value).collect();
        let failure = self.failures().get(key).cloned();
        let wait = self.wait(&vmi, key);
        let now = Timestamp::now();
        let (warning, look_again) = match &self.pod_events {
            Some(events) => events.warning(&self.client, &vmi, &pods, now).await,
            None => (None, None),
        };
        let decision = decide(&Observed {
            vmi: &vmi,
            pods: &pods,
            consumers: &consumers,
            failure: failure.as_deref(),
            wait: wait.as_ref(),
            warning: warning.as_ref(),
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
        let mut requeue = decision.again.or(look_again);
        for step in &decision.steps {
            match step {
                Step::CreatePod(node) => {
                    requeue =
                        self.start(&api, &vmi, Purpose::Launch(node.as_deref()), failure.as_deref()).await?;
                }
                Step::HandOver(node) => {
                    shown = label(&api, version, NODE_LABEL, json!(node)).await?.max(shown);
                }
                Step::MarkOutdated(is_outdated) => {
                    let value = if *is_outdated { json!("") } else { Value::Null };
                    shown = label(&api, version, OUTDATED_LABEL, value).await?.max(shown);
                }
                Step::CreateConsumer => {
                    requeue = self.start(&api, &vmi, Purpose::Consume, failure.as_deref()).await?;
                }
                Step::AttachNetworks(uid, networks) => {
                    self.annotate_pod(&pods, uid, (NETWORKS_ANNOTATION, networks)).await?;
                }
                Step::DeletePod(uid) => self.delete_pod(&vmi, &self.pods, &pods, uid).await?,
                Step::DeleteConsumer(uid) => self.delete_pod(&vmi, &self.consumers, &consumers, uid).await?,
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
