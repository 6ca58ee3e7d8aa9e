//! Counts outdated instances, and evicts their Pods as [`decide()`] says.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::watcher;
use serde_json::{Value, json};
use tracing::info;
use vireo_api::decode;
use vireo_api::v1::{KubeVirt, ObjectMeta, VirtualMachineInstance};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::informer::{Cached, Informer};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, write};

use super::{Attempts, Observed, Strategy, Workload, decide, is_marked};
use crate::ReconcileError;
use crate::config::oldest;
use crate::vmi::LauncherPod;

const COMPONENT: &str = "virtualmachine-controller";
/// What is reconciled: there is one installation.
const WORKLOADS: &str = "workloads";
/// How long changes of instances are gathered, each of which would have all of them counted.
const GATHERING: Duration = Duration::from_secs(1);
/// The field of the status with the number of outdated instances.
const COUNT: &str = "outdatedVirtualMachineInstanceWorkloads";

/// A KubeVirt object, as far as this controller reads it.
#[derive(Debug)]
pub struct Installation {
    metadata: ObjectMeta,
    strategy: Strategy,
    /// Whether all components are of its release.
    is_rolled_out: bool,
    /// The number of outdated instances in its status.
    outdated: Option<i64>,
}

#[expect(clippy::unnecessary_wraps, reason = "an informer reads objects that may not be readable")]
fn read(object: Value) -> Result<Installation, serde_json::Error> {
    let KubeVirt { metadata, spec, status, .. } = decode::object::<KubeVirt>(object).object;
    let is_rolled_out = metadata.deletion_timestamp.is_none()
        && status.phase == "Deployed"
        && status.observed_deployment_id == status.target_deployment_id;
    let outdated = status.outdated_virtual_machine_instance_workloads;
    // virt-operator names what is not valid.
    let strategy = Strategy::new(&spec).unwrap_or_default();
    Ok(Installation { metadata, strategy, is_rolled_out, outdated })
}

/// The controller.
pub struct Controller {
    client: Client,
    image: String,
    installations: Arc<Informer<Installation>>,
    vmis: Arc<Informer<VirtualMachineInstance>>,
    pods: Arc<Informer<LauncherPod>>,
    recorder: EventRecorder,
    queue: Arc<WorkQueue<String>>,
    attempts: Mutex<Attempts>,
    outdated: AtomicUsize,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Controller").field("image", &self.image).finish_non_exhaustive()
    }
}

impl Controller {
    /// A controller for the launcher image of this release that reads caches of instances and their Pods, which the caller
    /// keeps.
    pub fn new(
        client: Client,
        vmis: Arc<Informer<VirtualMachineInstance>>,
        pods: Arc<Informer<LauncherPod>>,
        image: String,
    ) -> Self {
        let queue: Arc<WorkQueue<String>> = controller::queue();
        let installations = Informer::new(Kind::KUBEVIRT.all(&client), watcher::Config::default(), read);
        let changed = Arc::clone(&queue);
        installations.on_change(move |_| changed.add(WORKLOADS.to_owned()));
        let changed = Arc::clone(&queue);
        vmis.on_change(move |vmi| {
            let was = |one: &Option<Arc<Cached<VirtualMachineInstance>>>| {
                one.as_ref().is_some_and(|vmi| is_marked(vmi))
            };
            if was(&vmi.before) != was(&vmi.after) {
                changed.add_after(WORKLOADS.to_owned(), GATHERING);
            }
        });
        let recorder = EventRecorder::new(client.clone(), COMPONENT, None);
        let (attempts, outdated) = Default::default();
        Self { client, image, installations, vmis, pods, recorder, queue, attempts, outdated }
    }

    /// How many instances are outdated, as far as is known.
    pub fn outdated(&self) -> usize {
        self.outdated.load(Ordering::Relaxed)
    }

    /// Controls until it is dropped.
    pub async fn run(&self) {
        let control = async {
            self.installations.synced().await;
            self.vmis.synced().await;
            self.pods.synced().await;
            controller::run(self, &self.queue, 1).await;
        };
        tokio::join!(self.installations.run(), control);
    }

    /// Evicts a Pod. Its eviction may be denied, by a PodDisruptionBudget, or by virt-api as the eviction strategy of the
    /// instance says.
    async fn evict(&self, vmi: &VirtualMachineInstance, pod: &LauncherPod) {
        let (ObjectMeta { name, uid, .. }, namespace) = (&pod.metadata, &vmi.metadata.namespace);
        // Clusters take it for the version of Eviction that they serve, which changed with Kubernetes 1.22.
        let eviction = json!({
            "metadata": {"namespace": namespace, "name": name}, "deleteOptions": {"preconditions": {"uid": uid}},
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction");
        let request = Request::post(path).header(CONTENT_TYPE, "application/json");
        let Ok(request) = request.body(eviction.to_string().into_bytes()) else { return };
        let (reason, text) = match self.client.request::<Value>(request).await {
            Ok(_) => (
                Reason::SuccessfulEvict,
                "Initiated eviction of VMI as part of automated workload update".to_owned(),
            ),
            // It is gone, or another one has its name.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => return,
            Err(error) => {
                (Reason::FailedEvict, format!("Error deleting VMI during automated workload update: {error}"))
            }
        };
        info!(namespace, name = vmi.metadata.name, pod = name, "{text}");
        self.recorder.publish(Regarding::new(Kind::VMI, &vmi.metadata), reason, text).await;
    }

    /// Writes the number of outdated instances into the status of the installation.
    async fn write(&self, installation: &Installation, outdated: usize) -> Result<(), kube::Error> {
        let (before, after) = (installation.outdated, i64::try_from(outdated).unwrap_or(i64::MAX));
        if before == Some(after) {
            return Ok(());
        }
        let metadata = &installation.metadata;
        // virt-operator writes the other fields.
        let version = write::Version { resource_version: "", ..metadata.into() };
        let api = Kind::KUBEVIRT.namespaced(&self.client, &metadata.namespace);
        write::patch_status(&api, version, &json!({}), &json!({ COUNT: after })).await.map(drop)
    }
}

impl Reconcile for Controller {
    type Key = String;
    type Error = ReconcileError;
    const NAME: &'static str = "virt-controller-workload-update";

    async fn reconcile(&self, _: &String) -> Result<Requeue, ReconcileError> {
        let marked = self.vmis.all();
        let marked = marked.iter().filter(|vmi| is_marked(vmi));
        let marked: Vec<_> = marked.map(|vmi| (vmi, self.pods.owned_by(&vmi.uid))).collect();
        let workloads: Vec<Workload<'_>> = marked
            .iter()
            .map(|(vmi, pods)| Workload {
                vmi: &vmi.value,
                pods: pods.iter().map(|pod| &pod.value).collect(),
            })
            .collect();
        let installation = oldest(&self.installations, |one| one.metadata.creation_timestamp.as_ref());
        let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let decision = decide(&Observed {
            workloads: &workloads,
            image: &self.image,
            strategy: installation.as_ref().map(|one| one.strategy).unwrap_or_default(),
            is_rolled_out: installation.as_ref().is_some_and(|one| one.is_rolled_out),
            attempts: &attempts,
            now: Timestamp::now(),
        });
        self.outdated.store(decision.outdated, Ordering::Relaxed);
        if let Some(installation) = &installation {
            self.write(installation, decision.outdated).await?;
        }
        *self.attempts.lock().unwrap_or_else(PoisonError::into_inner) = decision.attempts;
        for (vmi, pod) in decision.evict {
            self.evict(vmi, pod).await;
        }
        Ok(decision.recheck)
    }
}
