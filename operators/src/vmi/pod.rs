//! A launcher Pod as the controller reads it.

use serde::Deserialize;
use serde_json::Value;
use vireo_api::names::{COMPUTE, LAUNCHER_IMAGE_ANNOTATION};
use vireo_api::v1::{Condition, ObjectMeta};

/// The networks that Multus attaches a Pod to beside the network of Pods.
pub(super) const NETWORKS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";
/// The memory that a launcher Pod requests beside that of the guest, in bytes; KubeVirt's.
pub(super) const OVERHEAD_ANNOTATION: &str = "kubevirt.io/memory-overhead-bytes";

/// The condition of a Pod that says whether it is bound to a node.
pub(super) const POD_SCHEDULED: &str = "PodScheduled";

/// What matters of a launcher Pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LauncherPod {
    /// Name, UID and owners.
    pub metadata: ObjectMeta,
    /// Where it is to run.
    pub spec: PodSpec,
    /// What was observed of it.
    pub status: PodStatus,
}

/// What matters of a Pod's specification.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The node that it is bound to; empty until it is bound.
    pub node_name: String,
    /// Its containers but the init containers.
    pub containers: Vec<Container>,
}

/// What matters of a container.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Name.
    pub name: String,
    /// Its image.
    pub image: String,
}

/// What matters of a Pod's status.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    pub phase: String,
    /// Why it is in this phase, such as `Evicted`.
    pub reason: String,
    /// The same for people.
    pub message: String,
    /// Such as `PodScheduled`.
    pub conditions: Vec<Condition>,
    /// One for each container.
    pub container_statuses: Vec<ContainerStatus>,
    /// One for each init container.
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// What matters of a container's status.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    /// The container.
    pub name: String,
    /// What it does.
    pub state: ContainerState,
}

/// One of these is there.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// It was not started yet.
    pub waiting: Option<Waiting>,
    /// It runs.
    pub running: Option<Value>,
    /// It has ended.
    pub terminated: Option<Terminated>,
}

/// How a container has ended.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terminated {
    /// 0 for success.
    pub exit_code: i64,
    /// Such as `Error`.
    pub reason: String,
    /// What it said last.
    pub message: String,
}

/// Why a container was not started yet.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Such as `ContainerCreating` or `ErrImagePull`.
    pub reason: String,
    /// The same for people.
    pub message: String,
}

impl LauncherPod {
    /// Reads a Pod for a cache.
    ///
    /// # Errors
    /// When it is not a Pod.
    pub fn read(object: Value) -> Result<Self, serde_json::Error> {
        let mut pod: Self = serde_json::from_value(object)?;
        let metadata = &mut pod.metadata;
        // The instance has all of the others.
        metadata.labels.clear();
        let kept = [LAUNCHER_IMAGE_ANNOTATION, OVERHEAD_ANNOTATION, NETWORKS_ANNOTATION];
        metadata.annotations.retain(|name, _| kept.contains(&name.as_str()));
        Ok(pod)
    }

    /// The networks that Multus is asked for; empty where it is not.
    pub fn networks(&self) -> &str {
        self.metadata.annotations.get(NETWORKS_ANNOTATION).map_or("", String::as_str)
    }

    /// The memory that it requests beside that of the guest.
    pub fn overhead(&self) -> Option<u64> {
        self.metadata.annotations.get(OVERHEAD_ANNOTATION)?.parse().ok()
    }

    /// Whether its containers have ended for good.
    pub fn is_final(&self) -> bool {
        super::is_final(&self.status.phase)
    }

    /// Whether one of its containers may run, as far as its node has reported.
    pub fn may_run(&self) -> bool {
        let containers = &self.status.container_statuses;
        let have_ended =
            !containers.is_empty() && containers.iter().all(|one| one.state.terminated.is_some());
        !self.is_final() && !have_ended
    }

    /// Whether it is being deleted.
    pub fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The node that it is bound to.
    pub fn node(&self) -> Option<&str> {
        Some(self.spec.node_name.as_str()).filter(|node| !node.is_empty())
    }

    /// The image of its launcher.
    pub fn image(&self) -> &str {
        let launcher = self.spec.containers.iter().find(|one| one.name == COMPUTE);
        launcher.map_or("", |container| container.image.as_str())
    }

    /// Whether it was made for another image than this. The image that it was made for is compared, as admission of the
    /// cluster may have given it one that is pulled from elsewhere.
    pub fn is_outdated(&self, image: &str) -> bool {
        let made_for = self.metadata.annotations.get(LAUNCHER_IMAGE_ANNOTATION);
        let made_for = made_for.map_or_else(|| self.image(), String::as_str);
        !made_for.is_empty() && made_for != image
    }

    /// A condition of its status.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|one| one.r#type == kind)
    }

    /// Why it is not bound to a node.
    pub fn unbound(&self) -> Option<&Condition> {
        self.condition(POD_SCHEDULED).filter(|condition| condition.status == "False")
    }

    /// Whether the process of a container runs.
    pub fn runs(&self, container: &str) -> bool {
        let mut all = self.status.container_statuses.iter();
        all.any(|one| one.name == container && one.state.running.is_some())
    }

    /// Why an init container failed.
    pub fn init_failure(&self) -> Option<&Terminated> {
        let mut ended =
            self.status.init_container_statuses.iter().filter_map(|one| one.state.terminated.as_ref());
        ended.find(|ended| ended.exit_code != 0)
    }

    /// Whether the process of any container runs or has run, an init container's too.
    pub fn has_started_any(&self) -> bool {
        let mut all = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        all.any(|one| one.state.running.is_some() || one.state.terminated.is_some())
    }

    /// Why an image cannot be pulled, or a container cannot be made of it.
    pub fn container_failure(&self) -> Option<&Waiting> {
        const FAILURES: [&str; 9] = [
            "ErrImagePull",
            "ImagePullBackOff",
            "ErrImageNeverPull",
            "ImageInspectError",
            "RegistryUnavailable",
            "InvalidImageName",
            "CreateContainerConfigError",
            "CreateContainerError",
            "RunContainerError",
        ];
        let all = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        let mut waiting = all.filter_map(|one| one.state.waiting.as_ref());
        waiting.find(|waiting| FAILURES.contains(&waiting.reason.as_str()))
    }
}
