//! The Pods of an instance: creates and deletes them, with what they need.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::controller::Requeue;
use vireo_client::events::{Reason, Regarding};
use vireo_client::informer::{Cached, Informer, revision};
use vireo_client::{Kind, ObjectKey, write};

use super::super::consumer::consumer_pod;
use super::super::image_volumes::ImageVolumes;
use super::super::{
    Claim, Claims, ImageDelivery, LauncherPod, NamespaceLimits, PodInputs, StartedBy, claims, launcher_pod,
    networks, state,
};
use super::Controller;
use crate::ReconcileError;
use crate::config::ClusterConfig;
use crate::deletion::Deletion;

/// How soon it is looked again for something that an instance waits for.
const WAIT: Duration = Duration::from_secs(5);

/// What a Pod of an instance is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose<'a> {
    /// To run its launcher, on a node where that is given.
    Launch(Option<&'a str>),
    /// To be the first consumer of its claims.
    Consume,
}

impl Controller {
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
                // The cache does not show yet that it is gone, or a consumer of other claims waits for it.
                let message = format!("PVC {namespace}/{name} does not exist");
                return Err(self.waits(vmi, message));
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
                return Err(self.waits(vmi, message));
            };
            let resource = definition.annotations().get(networks::RESOURCE_ANNOTATION).cloned();
            found.insert(key, resource.filter(|resource| !resource.is_empty()));
        }
        Ok(found)
    }

    /// Creates a Pod of an instance, or tells when it is to be tried again. `known` is what the status says that it waits
    /// for.
    pub(super) async fn start(
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

    /// The limits that launchers of a namespace are to have.
    async fn limits(&self, namespace: &str, config: &ClusterConfig) -> Result<NamespaceLimits, kube::Error> {
        // A single host has no quotas.
        let limits = match self.launcher.started_by {
            StartedBy::NodeAgent => NamespaceLimits::default(),
            StartedBy::Kubelet => {
                let quotas: Api<ResourceQuota> = Api::namespaced(self.client.clone(), namespace);
                match quotas.list(&ListParams::default()).await {
                    // The server has none.
                    Err(kube::Error::Api(status)) if status.code == 404 => NamespaceLimits::default(),
                    listed => NamespaceLimits::of(&listed?.items),
                }
            }
        };
        let selector = config.auto_cpu_limit.as_ref();
        if selector.is_none() && limits.memory.is_none() {
            return Ok(limits);
        }
        let namespace = Kind::NAMESPACE.all(&self.client).get(namespace).await?;
        Ok(limits.labelled(&namespace.metadata.labels.unwrap_or_default(), selector))
    }

    async fn create_pod(
        &self,
        api: &Api<DynamicObject>,
        vmi: &Cached<VirtualMachineInstance>,
        purpose: Purpose<'_>,
    ) -> Result<Option<Pod>, ReconcileError> {
        let config = self.config.current();
        // The cache has not all of the specification. What does not depend on it is asked for meanwhile.
        let (object, limits) =
            tokio::try_join!(api.get_opt(&vmi.key.name), self.limits(&vmi.key.namespace, &config))?;
        let Some(object) = object else { return Ok(None) };
        if object.uid().as_deref() != Some(vmi.uid.as_str()) {
            return Ok(None);
        }
        let whole: VirtualMachineInstance = serde_json::from_value(serde_json::to_value(object)?)?;
        let claims = self.claims(vmi, &whole).await?;
        let node = if let Purpose::Launch(node) = purpose { node } else { None };
        let networks = self.networks(vmi, &whole).await?;
        let images = self.image_volumes.as_ref().map_or(ImageDelivery::Containers, ImageVolumes::delivery);
        let inputs = PodInputs { node, claims: &claims, images, limits };
        let mut pod = launcher_pod(&whole, &self.launcher, &config, inputs)?;
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
                self.failures().remove(&vmi.key);
                Ok(Some(pod))
            }
            Err(error) if purpose == Purpose::Consume && write::already_exists(&error) => {
                Err(self.name_taken(vmi, &pods, &pod.name_any(), error).await?)
            }
            Err(error) => Err(self.not_created(vmi, "pod", error).await),
        }
    }

    /// Why a Pod cannot be created whose name is taken. By one of the instance's own that the cache does not show yet, or that has
    /// been deleted meanwhile: another attempt is due. By one of another owner: it waits for that to be deleted.
    async fn name_taken(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        pods: &Api<Pod>,
        name: &str,
        error: kube::Error,
    ) -> Result<ReconcileError, kube::Error> {
        // virt-controller may list Pods, and not get them.
        let of_this_name = ListParams::default().fields(&format!("metadata.name={name}"));
        let existing = pods.list(&of_this_name).await?.items;
        let is_own = |pod: &Pod| {
            pod.owner_references().iter().any(|one| one.uid == vmi.uid && one.controller == Some(true))
        };
        if existing.iter().all(is_own) {
            return Ok(error.into());
        }
        let pod = format!("{}/{name}", vmi.key.namespace);
        let message = format!("Pod {pod} is not of this VMI, waiting for it to be deleted");
        let regarding = Regarding::new(Kind::VMI, &vmi.metadata);
        self.recorder.publish(regarding, Reason::FailedCreate, message.clone()).await;
        Ok(self.waits(vmi, message))
    }

    /// Has the status say what an instance waits for, of which no cache tells.
    fn waits(&self, vmi: &Cached<VirtualMachineInstance>, message: String) -> ReconcileError {
        self.failures().insert(vmi.key.clone(), message.clone());
        ReconcileError::Waits(message)
    }

    /// Deletes one of some Pods of an instance, which a cache has.
    pub(super) async fn delete_pod(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        cache: &Informer<LauncherPod>,
        pods: &[&LauncherPod],
        uid: &str,
    ) -> Result<(), ReconcileError> {
        let Some(pod) = pods.iter().find(|pod| pod.metadata.uid == uid) else { return Ok(()) };
        let vireo_api::v1::ObjectMeta { name, namespace, .. } = &pod.metadata;
        let api = Kind::POD.namespaced(&self.client, namespace);
        let deletion = Deletion { what: "virtual machine pod", name, uid };
        let regarding = Regarding::new(Kind::VMI, &vmi.metadata);
        let left = deletion.carry_out(&api, &self.recorder, regarding).await?;
        let gone = [(ObjectKey::new(namespace, name), uid.to_owned())];
        let gone = if left.is_some() { &[][..] } else { &gone };
        cache.shows(left.as_ref().map_or(0, revision), gone).await;
        Ok(())
    }

    /// Writes an annotation of one of some Pods. No other client writes it, so the patch applies to any version of the Pod.
    pub(super) async fn annotate_pod(
        &self,
        pods: &[&LauncherPod],
        uid: &str,
        (name, value): (&str, &str),
    ) -> Result<(), ReconcileError> {
        let Some(pod) = pods.iter().find(|pod| pod.metadata.uid == uid) else { return Ok(()) };
        let api = Kind::POD.namespaced(&self.client, &pod.metadata.namespace);
        let version = write::Version { resource_version: "", ..write::Version::from(&pod.metadata) };
        let patch = json!({"metadata": {"annotations": {name: value}}});
        let written = write::patch(&api, version, patch).await?;
        self.pods.shows(revision(&written), &[]).await;
        Ok(())
    }

    /// Tells why something that an instance needs could not be created.
    async fn not_created(
        &self,
        vmi: &Cached<VirtualMachineInstance>,
        what: &str,
        error: kube::Error,
    ) -> ReconcileError {
        let Some(status) = write::rejection(&error) else { return error.into() };
        let text = format!("Error creating {what}: {}", status.message);
        let regarding = Regarding::new(Kind::VMI, &vmi.metadata);
        self.recorder.publish(regarding, Reason::FailedCreate, text).await;
        self.failures().insert(vmi.key.clone(), status.message.clone());
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
            Err(error) if write::already_exists(&error) => {
                let name = format!("{}/{}", vmi.key.namespace, claim.name_any());
                let message = format!("PVC {name} is not of this VM, waiting for it to be deleted");
                Err(self.waits(vmi, message))
            }
            Err(error) => Err(self.not_created(vmi, "the PVC of the VM's state", error).await),
        }
    }
}
