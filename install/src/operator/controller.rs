//! The controller of the installation.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::{Value, json};
use thiserror::Error;
use tracing::{info, warn};
use vireo_api::v1::KubeVirt;
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::informer::{Cached, Informer, whole};
use vireo_client::program::chain;
use vireo_client::queue::WorkQueue;
use vireo_client::write;
use vireo_client::{Kind, ObjectKey};
use vireo_operators::Problem;
use vireo_operators::admission::{self, kubevirt};
use vireo_operators::certificates::{CertificateError, Certificates, INTERVAL, Strategy};

use super::customize::customize;
use super::definition::update_definition;
use super::discovery::Served;
use super::installed::{Installed, describe, hash, key};
use super::nodes;
use super::rollout::{ApplyTarget as _, is_available, roll_out, stages};
use super::status::{Observed, Target, status, superfluous};
use super::uninstall::{self, Removal};
use crate::installation::{Cluster, Images, Installation, registry, tag};
use crate::objects::{NAMESPACE, objects};

/// The finalizer of KubeVirt objects; KubeVirt's.
const FINALIZER: &str = "kubevirt.io/foregroundDeleteKubeVirt";
/// What is reconciled: there is one installation.
const INSTALLATION: &str = "installation";
/// Until the API server is asked again for what it did not do.
const RETRY: Duration = Duration::from_secs(30);

/// Why the installation is not as it should be.
#[derive(Debug, Error)]
pub enum OperatorError {
    /// A request to the API server failed.
    #[error("{0}")]
    Api(&'static str, #[source] kube::Error),
    /// The API server refuses an object.
    #[error("cannot apply {0}")]
    Apply(String, #[source] kube::Error),
    /// The certificates cannot be kept.
    #[error("cannot keep the certificates")]
    Certificates(#[from] CertificateError),
}

/// A check of the certificates.
#[derive(Clone)]
struct Checked {
    /// The certificates of the authorities, in PEM.
    authority: String,
    strategy: Strategy,
    at: Instant,
}

/// Keeps the installation of a cluster.
pub struct Operator {
    client: Client,
    images: Images,
    certificates: Certificates,
    served: Served,
    installations: Arc<Informer<KubeVirt>>,
    /// Whether each node accepts Pods.
    nodes: Arc<Informer<bool>>,
    installed: Installed,
    queue: Arc<WorkQueue<String>>,
    authority: Mutex<Option<Checked>>,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Operator").field("images", &self.images).finish_non_exhaustive()
    }
}

/// Identifies what is installed. Its authority, which is replaced from time to time, is no part of it.
fn deployment_id(objects: &[Value], authority: &str) -> String {
    let encoded = STANDARD.encode(authority);
    let text = json!(objects).to_string().replace(&encoded, "");
    format!("{:016x}", hash(&json!(text)))
}

#[expect(clippy::unnecessary_wraps, reason = "an informer reads objects that may not be readable")]
fn accepts_pods(node: Value) -> Result<bool, serde_json::Error> {
    Ok(node["spec"]["unschedulable"] != true)
}

impl Operator {
    /// The operator of a cluster, which installs these images.
    ///
    /// # Errors
    /// When the API server has no discovery.
    pub async fn new(client: &Client, images: Images) -> Result<Self, kube::Error> {
        let served = Served::discover(client).await?;
        let queue = controller::queue();
        let changed: Arc<WorkQueue<String>> = Arc::clone(&queue);
        let changed = move || changed.add(INSTALLATION.to_owned());
        let installed = Installed::new(client.clone(), served.kinds(), changed);
        let installations = Informer::new(Kind::KUBEVIRT.all(client), watcher::Config::default(), whole);
        let changed = Arc::clone(&queue);
        installations.on_change(move |_| changed.add(INSTALLATION.to_owned()));
        let nodes = Informer::new(Kind::NODE.all(client), watcher::Config::default(), accepts_pods);
        let certificates = Certificates::new(client.clone(), NAMESPACE);
        Ok(Self {
            client: client.clone(),
            images,
            certificates,
            served,
            installations,
            nodes,
            installed,
            queue,
            authority: Mutex::default(),
        })
    }

    /// Keeps the installation until the cluster serves other kinds: then another operator has to be made.
    pub async fn run(&self) {
        let work = async {
            self.installations.synced().await;
            self.nodes.synced().await;
            self.installed.synced().await;
            controller::run(self, &self.queue, 1).await;
        };
        let keep = async {
            let definition = self.keep_definition();
            tokio::join!(self.installed.run(), self.installations.run(), self.nodes.run(), work, definition);
        };
        tokio::select! {
            () = keep => {}
            () = self.served.changed(&self.client) => {}
        }
    }

    /// Updates the definition of KubeVirt objects, once.
    async fn keep_definition(&self) {
        while let Err(error) = update_definition(&self.client).await {
            warn!(
                error = &error as &dyn std::error::Error,
                "cannot update the definition of KubeVirt objects; it is tried again"
            );
            tokio::time::sleep(RETRY).await;
        }
    }

    fn checked(&self) -> MutexGuard<'_, Option<Checked>> {
        self.authority.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The authorities of the certificates, which are made where they are due.
    async fn authority(&self, strategy: Strategy) -> Result<String, OperatorError> {
        let known = self.checked().clone();
        let is_recent = |checked: &Checked| checked.strategy == strategy && checked.at.elapsed() < INTERVAL;
        if let Some(checked) = known.filter(is_recent) {
            return Ok(checked.authority);
        }
        let authority = self.certificates.reconcile(strategy, Timestamp::now().as_second()).await?;
        *self.checked() = Some(Checked { authority: authority.clone(), strategy, at: Instant::now() });
        Ok(authority)
    }

    /// The KubeVirt object of the cluster: the oldest in the namespace of the components. And the others, with the reason why
    /// they are not it.
    fn installations(&self) -> (Option<Arc<Cached<KubeVirt>>>, Vec<Superfluous>) {
        let mut all = self.installations.all();
        all.sort_by_key(|one| (one.metadata.creation_timestamp.clone(), one.key.clone()));
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| one.key.namespace == NAMESPACE);
        let mut here = here.into_iter();
        let first = here.next();
        let elsewhere = elsewhere.into_iter().map(|one| (one, WRONG_NAMESPACE));
        (first, here.map(|one| (one, ANOTHER)).chain(elsewhere).collect())
    }

    async fn keep(&self) -> Result<Requeue, OperatorError> {
        let (active, superfluous) = self.installations();
        for (one, why) in superfluous {
            self.reject(&one, why).await?;
        }
        let Some(active) = active else { return Ok(None) };
        if active.metadata.deletion_timestamp.is_some() {
            return self.remove(&active).await;
        }
        if !active.metadata.finalizers.iter().any(|one| one == FINALIZER) {
            self.set_finalizer(&active, true).await?;
        }
        let kept = self.install(&active).await;
        if let Err(error) = &kept {
            self.write(&active, &Observed::Failed(chain(error)), None).await?;
        }
        kept.map(|()| Some(INTERVAL))
    }

    async fn install(&self, active: &Cached<KubeVirt>) -> Result<(), OperatorError> {
        let wanted = match self.wanted(active).await {
            Ok(wanted) => wanted,
            Err(Unusable::Invalid(problems)) => {
                let texts: Vec<String> =
                    problems.iter().map(|one| format!("{}: {}", one.field, one.message)).collect();
                return self.write(active, &Observed::Failed(texts.join(", ")), None).await;
            }
            Err(Unusable::Other(error)) => return Err(error),
        };
        let (objects, target) = wanted;
        let is_update = !active.status.observed_deployment_id.is_empty();
        let stages = stages(objects, is_update);
        let pending: Vec<String> =
            roll_out(&self.installed, &stages).await?.into_iter().map(describe).collect();
        if pending.is_empty() {
            self.prune(stages.iter().flatten()).await?;
        }
        let is_down = |object: &&Value| !is_available(object, self.installed.live(object).as_ref());
        let unavailable = stages.iter().flatten().filter(is_down).map(describe);
        // What is not applied yet cannot be available.
        let unavailable = unavailable.filter(|one| !pending.contains(one)).collect();
        self.write(active, &Observed::Installing { pending, unavailable }, Some(&target)).await
    }

    /// What is to be installed.
    async fn wanted(&self, active: &Cached<KubeVirt>) -> Result<(Vec<Value>, Target), Unusable> {
        let given = serde_json::to_value(&active.value).unwrap_or_default();
        let valid = kubevirt::validate(&given).map_err(Unusable::Invalid)?;
        let strategy = Strategy::new(&valid.spec).map_err(Unusable::Invalid)?;
        let authority = self.authority(strategy).await.map_err(Unusable::Other)?;
        let nodes = self.nodes.all().iter().filter(|node| node.value).count();
        let Served { disruption_budgets, monitoring } = self.served;
        let cluster = Cluster { nodes, disruption_budgets, monitoring };
        let installation = Installation::new(&valid, &self.images, &cluster, authority);
        let mut objects = objects(&installation);
        customize(&mut objects, &valid.spec.customize_components.patches)
            .map_err(|problem| Unusable::Invalid(vec![problem]))?;
        let target = Target {
            id: deployment_id(&objects, &installation.authority),
            registry: registry(&installation.images.components).to_owned(),
            version: tag(&installation.images.components).to_owned(),
            generation: active.metadata.generation,
            without_effect: kubevirt::without_effect(&valid).iter().map(ToString::to_string).collect(),
        };
        Ok((objects, target))
    }

    /// Deletes what is no longer installed.
    async fn prune(&self, wanted: impl Iterator<Item = &Value>) -> Result<(), OperatorError> {
        let wanted: BTreeSet<(&str, ObjectKey)> =
            wanted.filter_map(|object| Some((object["kind"].as_str()?, key(object)))).collect();
        for (kind, live) in self.installed.all() {
            if !live.is_deleting && !wanted.contains(&(kind.kind, live.key.clone())) {
                self.installed.delete(kind, &live.key).await?;
            }
        }
        Ok(())
    }

    /// Removes the installation, step by step.
    async fn remove(&self, active: &Cached<KubeVirt>) -> Result<Requeue, OperatorError> {
        if !active.metadata.finalizers.iter().any(|one| one == FINALIZER) {
            return Ok(None);
        }
        let all = self.installed.all();
        let is_whole =
            all.iter().any(|(kind, live)| kind.kind == "CustomResourceDefinition" && !live.is_deleting);
        // virt-api denies the deletion then; it may have been away.
        if is_whole && kubevirt::blocks_uninstall(active) {
            let left = admission::workload(&self.client).await;
            let left = left.map_err(|error| OperatorError::Api("cannot list workloads", error))?;
            if let Some(kind) = left {
                let why = format!("waiting until no {} are left", kind.plural);
                self.write(active, &Observed::Removing(why), None).await?;
                return Ok(Some(Duration::from_secs(5)));
            }
        }
        let given =
            all.into_iter().map(|(kind, live)| (kind.kind, live.is_deleting, (kind, live.key.clone())));
        match uninstall::next(given.collect()) {
            Removal::Delete(objects) => {
                self.write(active, &Observed::Removing("deleting objects".to_owned()), None).await?;
                for (kind, key) in objects {
                    self.installed.delete(kind, &key).await?;
                }
                Ok(Some(Duration::from_secs(5)))
            }
            Removal::Wait(objects) => {
                let names = objects.iter().map(|(kind, key)| format!("{} {key}", kind.kind));
                let why = format!("waiting for the deletion of: {}", names.collect::<Vec<_>>().join(", "));
                self.write(active, &Observed::Removing(why), None).await?;
                Ok(Some(Duration::from_secs(5)))
            }
            Removal::Done => {
                let cleaned = nodes::clean(&self.client).await;
                cleaned.map_err(|error| OperatorError::Api("cannot remove the labels of nodes", error))?;
                self.certificates.delete().await?;
                self.installed.forget();
                *self.checked() = None;
                self.write(active, &Observed::Removed, None).await?;
                self.set_finalizer(active, false).await?;
                info!("the installation is removed");
                Ok(None)
            }
        }
    }

    async fn set_finalizer(&self, active: &Cached<KubeVirt>, wanted: bool) -> Result<(), OperatorError> {
        let others = active.metadata.finalizers.iter().filter(|one| *one != FINALIZER).cloned();
        let finalizers: Vec<String> = others.chain(wanted.then(|| FINALIZER.to_owned())).collect();
        let patch = Patch::Merge(json!({"metadata": {"uid": active.uid, "finalizers": finalizers}}));
        let api = Kind::KUBEVIRT.namespaced(&self.client, &active.key.namespace);
        let patched = api.patch(&active.key.name, &PatchParams::default(), &patch).await;
        patched
            .map(drop)
            .map_err(|error| OperatorError::Api("cannot change the finalizers of the KubeVirt object", error))
    }

    async fn write(
        &self,
        active: &Cached<KubeVirt>,
        observed: &Observed,
        target: Option<&Target>,
    ) -> Result<(), OperatorError> {
        let after = status(&active.status, observed, target, &now());
        self.write_status(active, &after).await
    }

    async fn reject(&self, one: &Cached<KubeVirt>, why: (&str, &str)) -> Result<(), OperatorError> {
        // Its finalizer may be of a time when it was the one of the cluster.
        if one.metadata.deletion_timestamp.is_some()
            && one.metadata.finalizers.iter().any(|name| name == FINALIZER)
        {
            return self.set_finalizer(one, false).await;
        }
        self.write_status(one, &superfluous(&one.status, why, &now())).await
    }

    async fn write_status(
        &self,
        one: &Cached<KubeVirt>,
        after: &vireo_api::v1::KubeVirtStatus,
    ) -> Result<(), OperatorError> {
        let api = Kind::KUBEVIRT.namespaced(&self.client, &one.key.namespace);
        let version = write::Version { name: &one.key.name, uid: &one.uid, resource_version: "" };
        match write::change_status(&api, version, &one.status, after).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            written => {
                written.map(drop).map_err(|error| OperatorError::Api("cannot write the status", error))
            }
        }
    }
}

/// A KubeVirt object that is not the one of the cluster, and why.
type Superfluous = (Arc<Cached<KubeVirt>>, (&'static str, &'static str));

const ANOTHER: (&str, &str) = ("ExistingDeployment", "There is an active KubeVirt deployment");
const WRONG_NAMESPACE: (&str, &str) =
    ("WrongNamespace", "virt-operator installs KubeVirt in the namespace kubevirt: create the object there");

/// Why it is not known what is to be installed.
enum Unusable {
    /// The KubeVirt object is not valid.
    Invalid(Vec<Problem>),
    Other(OperatorError),
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Reconcile for Operator {
    type Key = String;
    type Error = OperatorError;
    const NAME: &'static str = "virt-operator";

    async fn reconcile(&self, _: &String) -> Result<Requeue, OperatorError> {
        self.keep().await.inspect_err(|error| {
            warn!(
                error = error as &dyn std::error::Error,
                "the installation is not as it should be; it is tried again"
            )
        })
    }
}
