//! What is installed in the cluster: applied, watched, deleted.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;
use tracing::info;
use vireo_client::informer::{Cached, Informer, revision};
use vireo_client::{Kind, ObjectKey};

use super::controller::OperatorError;
use super::rollout::{ApplyTarget, Live};
use crate::objects::{INSTALLED_BY, NAMESPACE};

const RBAC: (&str, &str) = ("rbac.authorization.k8s.io", "v1");
/// The group of APIServices. The API server that serves it panics at a server-side apply in Kubernetes 1.20.
const AGGREGATION: &str = "apiregistration.k8s.io";
const ADMISSION: (&str, &str) = ("admissionregistration.k8s.io", "v1");

/// Kinds of what is installed, in the whole cluster.
const CLUSTER_KINDS: [Kind; 8] = [
    Kind::new(("apiextensions.k8s.io", "v1"), "CustomResourceDefinition", "customresourcedefinitions"),
    Kind::new(RBAC, "ClusterRole", "clusterroles"),
    Kind::new(RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    Kind::new(RBAC, "Role", "roles"),
    Kind::new(RBAC, "RoleBinding", "rolebindings"),
    Kind::new((AGGREGATION, "v1"), "APIService", "apiservices"),
    Kind::new(ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    Kind::new(ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
];
/// Kinds of what is installed in the namespace of the components.
const NAMESPACE_KINDS: [Kind; 4] = [
    Kind::new(("", "v1"), "ServiceAccount", "serviceaccounts"),
    Kind::new(("", "v1"), "Service", "services"),
    Kind::new(("apps", "v1"), "Deployment", "deployments"),
    Kind::new(("apps", "v1"), "DaemonSet", "daemonsets"),
];

/// What an object was, when it was applied last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Applied {
    /// Hash of what was applied.
    hash: u64,
    version: Version,
}

/// The version of an object that virt-operator applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// The generation, which changes with the desired state alone.
    Generation(i64),
    /// The resource version, for kinds without a generation.
    Revision(u64),
}

fn version(generation: Option<i64>, revision: u64) -> Version {
    generation.map_or(Version::Revision(revision), Version::Generation)
}

/// The installed objects of a kind.
struct Managed {
    kind: Kind,
    objects: Arc<Informer<Live>>,
}

/// The objects of an installation, in the cluster.
pub(super) struct Installed {
    client: Client,
    managed: Vec<Managed>,
    /// By kind and key.
    applied: Mutex<BTreeMap<(&'static str, ObjectKey), Applied>>,
}

/// The hash of an object.
pub(super) fn hash(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Namespace and name of an object.
pub(super) fn key(object: &Value) -> ObjectKey {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    ObjectKey::new(text("namespace"), text("name"))
}

/// Kind and name of an object.
pub(super) fn describe(object: &Value) -> String {
    format!("{} {}", object["kind"].as_str().unwrap_or_default(), key(object).name)
}

/// How this program names itself where it writes.
fn manager() -> Option<String> {
    Some(INSTALLED_BY.1.to_owned())
}

/// Creates an object, or merges it into the one that is there.
async fn create_or_merge(
    api: &Api<DynamicObject>,
    name: &str,
    object: &Value,
) -> Result<DynamicObject, kube::Error> {
    let whole = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
    let params = PostParams { field_manager: manager(), dry_run: false };
    match api.create(&params, &whole).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let params = PatchParams { field_manager: manager(), ..PatchParams::default() };
            api.patch(name, &params, &Patch::Merge(object)).await
        }
        created => created,
    }
}

impl Installed {
    /// Those of a cluster with these kinds beside those that every cluster has. `changed` is called when one of them changes.
    pub(super) fn new(
        client: Client,
        further_kinds: impl Iterator<Item = Kind>,
        changed: impl Fn() + Clone + Send + Sync + 'static,
    ) -> Self {
        let config = watcher::Config::default().labels(&format!("{}={}", INSTALLED_BY.0, INSTALLED_BY.1));
        let managed = |kind: Kind, is_namespaced: bool| {
            let api = if is_namespaced { kind.namespaced(&client, NAMESPACE) } else { kind.all(&client) };
            let objects = Informer::new(api, config.clone(), Live::read);
            let changed = changed.clone();
            objects.on_change(move |_| changed());
            Managed { kind, objects }
        };
        let in_namespace = NAMESPACE_KINDS.into_iter().chain(further_kinds);
        let managed = CLUSTER_KINDS
            .into_iter()
            .map(|kind| managed(kind, false))
            .chain(in_namespace.map(|kind| managed(kind, true)))
            .collect();
        Self { client, managed, applied: Mutex::default() }
    }

    /// Watches them until it is dropped.
    pub(super) async fn run(&self) {
        let watches: FuturesUnordered<_> = self.managed.iter().map(|managed| managed.objects.run()).collect();
        watches.for_each(|()| async {}).await;
    }

    /// Waits until all of them are known.
    pub(super) async fn synced(&self) {
        for managed in &self.managed {
            managed.objects.synced().await;
        }
    }

    fn applied(&self) -> MutexGuard<'_, BTreeMap<(&'static str, ObjectKey), Applied>> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, object: &Value) -> Option<&Managed> {
        self.managed.iter().find(|managed| object["kind"] == managed.kind.kind)
    }

    fn cached(&self, object: &Value) -> Option<Arc<Cached<Live>>> {
        self.find(object)?.objects.get(&key(object))
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        match namespace {
            "" => kind.all(&self.client),
            namespace => kind.namespaced(&self.client, namespace),
        }
    }

    /// All of them, with their kinds.
    pub(super) fn all(&self) -> Vec<(Kind, Arc<Cached<Live>>)> {
        let of = |managed: &Managed| managed.objects.all();
        let kinds = self.managed.iter();
        kinds.flat_map(|managed| of(managed).into_iter().map(|live| (managed.kind, live))).collect()
    }

    /// Deletes an object, which may be gone.
    pub(super) async fn delete(&self, kind: Kind, key: &ObjectKey) -> Result<(), OperatorError> {
        let api = self.api(kind, &key.namespace);
        match api.delete(&key.name, &DeleteParams::background()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => {
                deleted.map_err(|error| OperatorError::Api("cannot delete an object", error))?;
                info!(kind = kind.kind, object = %key, "deleted an object");
                Ok(())
            }
        }
    }

    /// All of them are gone.
    pub(super) fn forget(&self) {
        self.applied().clear();
    }
}

impl ApplyTarget for Installed {
    type Error = OperatorError;

    fn is_applied(&self, object: &Value) -> bool {
        let (Some(managed), Some(live)) = (self.find(object), self.cached(object)) else { return false };
        let wanted = Applied { hash: hash(object), version: version(live.generation, live.revision) };
        self.applied().get(&(managed.kind.kind, key(object))) == Some(&wanted)
    }

    /// What others set in it beside that stays.
    async fn apply(&self, object: &Value) -> Result<(), OperatorError> {
        let Some(managed) = self.find(object) else { return Ok(()) };
        let key = key(object);
        let api = self.api(managed.kind, &key.namespace);
        let stored = if managed.kind.group == AGGREGATION {
            create_or_merge(&api, &key.name, object).await
        } else {
            let params = PatchParams::apply(INSTALLED_BY.1).force();
            api.patch(&key.name, &params, &Patch::Apply(object)).await
        };
        let stored = stored.map_err(|error| OperatorError::Apply(describe(object), error))?;
        let version = version(stored.metadata.generation, revision(&stored));
        self.applied().insert((managed.kind.kind, key), Applied { hash: hash(object), version });
        Ok(())
    }

    fn live(&self, object: &Value) -> Option<Live> {
        self.cached(object).map(|live| live.value.clone())
    }
}
