//! The API server of a test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use futures_util::FutureExt as _;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Api, Client, Config, Error, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use vireo_apiserver::auth::User;
use vireo_apiserver::client::InProcess;
use vireo_apiserver::resource::Registry;
use vireo_client::Kind;
use vireo_client::informer::{Informer, whole};
use vireo_operators::Controllers;
use vireo_operators::config::{ClusterConfig, LiveConfig};
use vireo_operators::vmi::Launcher;

use super::super::World;
use vireo_install::policy::{VIRT_API, VIRT_CONTROLLER, policy};
use vireo_install::resource::crd::custom_resource_definitions;

/// Names the kubeconfig of the server to test.
const KUBECONFIG: &str = "VIREO_TEST_KUBECONFIG";
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
const RBAC: (&str, &str) = ("rbac.authorization.k8s.io", "v1");

pub(super) const CLUSTER_ROLE: Kind = Kind::new(RBAC, "ClusterRole", "clusterroles");
const ROLE: Kind = Kind::new(RBAC, "Role", "roles");
pub(super) const ROLE_BINDING: Kind = Kind::new(RBAC, "RoleBinding", "rolebindings");
const CLUSTER_ROLE_BINDING: Kind = Kind::new(RBAC, "ClusterRoleBinding", "clusterrolebindings");
pub(super) const DEFINITION: Kind =
    Kind::new(("apiextensions.k8s.io", "v1"), "CustomResourceDefinition", "customresourcedefinitions");
pub(super) const EVENT: Kind = Kind::new(("", "v1"), "Event", "events");
/// What tests look at.
const WATCHED: [Kind; 6] =
    [Kind::REPLICA_SET, Kind::POOL, Kind::VM, Kind::VMI, Kind::CONTROLLER_REVISION, EVENT];

/// What is behind the clients.
enum Server {
    InProcess(World),
    Kubeconfig {
        config: Box<Config>,
        /// Held while the controllers of this test control all namespaces of the server.
        _lock: File,
    },
}

/// An API server with KubeVirt's resources and roles, and a namespace of the test on it.
pub(super) struct Cluster {
    pub(super) admin: Client,
    pub(super) namespace: String,
    caches: BTreeMap<&'static str, Arc<Informer<Value>>>,
    /// The UIDs of all objects that there ever were, by resource.
    seen: Arc<Mutex<BTreeMap<&'static str, BTreeSet<String>>>>,
    changes: watch::Receiver<u64>,
    tasks: Mutex<JoinSet<()>>,
    server: Server,
}

/// Runs a test. What it leaves behind is deleted from a server that others use.
pub(super) async fn on_a_server(test: impl AsyncFnOnce(&Cluster)) {
    let cluster = match std::env::var_os(KUBECONFIG) {
        None => Cluster::in_process().await,
        Some(path) => Cluster::of_kubeconfig(Path::new(&path)).await,
    };
    run(cluster, test).await;
}

/// Runs a test of what only standalone has.
pub(super) async fn in_process(test: impl AsyncFnOnce(&Cluster)) {
    run(Cluster::in_process().await, test).await;
}

async fn run(cluster: Cluster, test: impl AsyncFnOnce(&Cluster)) {
    let done = AssertUnwindSafe(test(&cluster)).catch_unwind().await;
    cluster.tasks.lock().unwrap().abort_all();
    let deleted = match cluster.server {
        Server::InProcess(_) => Ok(()),
        Server::Kubeconfig { .. } => {
            let namespaces = Kind::NAMESPACE.all(&cluster.admin);
            namespaces.delete(&cluster.namespace, &DeleteParams::default()).await.map(drop)
        }
    };
    done.unwrap_or_else(|panic| resume_unwind(panic));
    deleted.unwrap();
}

impl Cluster {
    async fn in_process() -> Self {
        let world = World::new();
        let admin = Client::new(InProcess::new(Arc::clone(&world.server), User::administrator()), "default");
        Self::of(admin, Server::InProcess(world)).await
    }

    async fn of_kubeconfig(path: &Path) -> Self {
        eprintln!("on the server of {}", path.display());
        let file = File::open(path).unwrap();
        let lock = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await.unwrap().unwrap();
        let kubeconfig = Kubeconfig::read_from(path).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let admin = Client::try_from(config.clone()).unwrap();
        for definition in custom_resource_definitions() {
            put(&DEFINITION.all(&admin), definition).await;
        }
        for object in policy().iter().filter(|object| object.name.contains("kubevirt")) {
            let kind = match &*object.resource.kind {
                "ClusterRole" => CLUSTER_ROLE,
                _ => CLUSTER_ROLE_BINDING,
            };
            put(&kind.all(&admin), object.value.clone()).await;
        }
        Self::of(admin, Server::Kubeconfig { config: Box::new(config), _lock: lock }).await
    }

    async fn of(admin: Client, server: Server) -> Self {
        let namespace = format!("vireo-test-{:08x}", fastrand::u32(..));
        put(
            &Kind::NAMESPACE.all(&admin),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        )
        .await;
        let (changed, changes) = watch::channel(0);
        let changed = Arc::new(changed);
        let seen: Arc<Mutex<BTreeMap<&str, BTreeSet<String>>>> = Arc::default();
        let (mut caches, mut tasks) = (BTreeMap::new(), JoinSet::new());
        for kind in WATCHED {
            let api = kind.namespaced(&admin, &namespace);
            let cache = Informer::new(api, watcher::Config::default(), whole::<Value>);
            let (changed, seen) = (Arc::clone(&changed), Arc::clone(&seen));
            cache.on_change(move |change| {
                if let Some(after) = &change.after {
                    seen.lock().unwrap().entry(kind.plural).or_default().insert(after.uid.clone());
                }
                changed.send_modify(|count| *count += 1);
            });
            let running = Arc::clone(&cache);
            tasks.spawn(async move { running.run().await });
            caches.insert(kind.plural, cache);
        }
        // Resources of new definitions are not served at once.
        let all_synced = async {
            for cache in caches.values() {
                cache.synced().await;
            }
        };
        tokio::time::timeout(LIMIT, all_synced).await.expect("all resources are served");
        Self { admin, namespace, caches, seen, changes, tasks: Mutex::new(tasks), server }
    }

    /// A client of another user.
    pub(super) fn client_of(&self, user: &User) -> Client {
        match &self.server {
            Server::InProcess(world) => {
                Client::new(InProcess::new(Arc::clone(&world.server), user.clone()), &self.namespace)
            }
            Server::Kubeconfig { config, .. } => {
                let mut config = Config::clone(config);
                let groups = user.groups.iter().map(|group| ("impersonate-group", group));
                for (name, value) in groups.chain([("impersonate-user", &user.name)]) {
                    config
                        .headers
                        .push((HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
                }
                Client::try_from(config).unwrap()
            }
        }
    }

    /// Creates CustomResourceDefinitions, whose objects are served soon.
    pub(super) async fn define(&self, definitions: &[Value]) {
        if let Server::InProcess(world) = &self.server {
            let store = Arc::clone(&world.server.store);
            self.tasks.lock().unwrap().spawn(vireo_apiserver::definitions::run(store));
        }
        for definition in definitions {
            put(&DEFINITION.all(&self.admin), definition.clone()).await;
        }
    }

    /// Deletes objects with their owners, as the garbage collector of other servers does.
    pub(super) fn collect_garbage(&self) {
        if let Server::InProcess(world) = &self.server {
            let store = Arc::clone(&world.server.store);
            let registry = Arc::new(Registry::new(crate::resource::rows()));
            self.tasks.lock().unwrap().spawn(vireo_apiserver::garbage_collector::run(store, registry));
        }
    }

    /// Lets a user do something in a namespace.
    pub(super) async fn grant(&self, namespace: &str, user: &str, rules: Value) {
        let type_of = |kind: Kind| json!({"apiVersion": kind.api_version(), "kind": kind.kind});
        let group = RBAC.0;
        for (kind, rest) in [
            (ROLE, json!({"rules": rules})),
            (
                ROLE_BINDING,
                json!({"subjects": [{"kind": "User", "apiGroup": group, "name": user}],
                    "roleRef": {"kind": ROLE.kind, "apiGroup": group, "name": "granted"}}),
            ),
        ] {
            let mut object = type_of(kind);
            object["metadata"] = json!({"name": "granted", "namespace": namespace});
            json_patch::merge(&mut object, &rest);
            put(&kind.namespaced(&self.admin, namespace), object).await;
        }
    }

    /// The client of virt-controller.
    pub(super) fn virt_controller(&self) -> Client {
        let (namespace, name) = VIRT_CONTROLLER;
        self.client_of(&User::service_account(namespace, name))
    }

    /// The client of virt-api.
    pub(super) fn virt_api(&self) -> Client {
        let (namespace, name) = VIRT_API;
        self.client_of(&User::service_account(namespace, name))
    }

    /// Runs virt-controller's controllers until the end of the test.
    pub(super) fn start_controllers(&self) {
        self.start_controllers_of(crate::tests::launcher());
    }

    /// The same for launchers of another sort, until they are aborted.
    pub(super) fn start_controllers_of(&self, launcher: Launcher) -> AbortHandle {
        self.start_controllers_with(launcher, json!({}))
    }

    /// The same in a cluster with this configuration.
    pub(super) fn start_controllers_with(&self, launcher: Launcher, configuration: Value) -> AbortHandle {
        let (config, problems) = ClusterConfig::read(&serde_json::from_value(configuration).unwrap());
        assert_eq!(problems, []);
        let controllers = Controllers::new(&self.virt_controller(), launcher, LiveConfig::fixed(config));
        self.tasks.lock().unwrap().spawn(async move { controllers.run().await })
    }

    pub(super) fn all(&self, kind: Kind) -> Api<DynamicObject> {
        kind.all(&self.admin)
    }

    pub(super) fn api(&self, kind: Kind) -> Api<DynamicObject> {
        kind.namespaced(&self.admin, &self.namespace)
    }

    /// Creates an object of this name; `rest` is everything but its type and its name.
    pub(super) async fn create(&self, kind: Kind, name: &str, rest: Value) -> Value {
        self.try_create(kind, name, rest).await.unwrap()
    }

    pub(super) async fn try_create(&self, kind: Kind, name: &str, mut rest: Value) -> Result<Value, Error> {
        rest["apiVersion"] = json!(kind.api_version());
        rest["kind"] = json!(kind.kind);
        rest["metadata"]["name"] = json!(name);
        let object: DynamicObject = serde_json::from_value(rest).unwrap();
        let created = self.api(kind).create(&PostParams::default(), &object).await?;
        Ok(serde_json::to_value(created).unwrap())
    }

    /// Applies a JSON merge patch.
    pub(super) async fn patch(&self, kind: Kind, name: &str, patch: Value) -> Value {
        let patched = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        serde_json::to_value(patched.unwrap()).unwrap()
    }

    /// Writes a part of a status, as the node's agent does.
    pub(super) async fn patch_status(&self, kind: Kind, name: &str, status: Value) -> Value {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self.api(kind).patch_status(name, &PatchParams::default(), &patch).await;
        serde_json::to_value(patched.unwrap()).unwrap()
    }

    /// Scales through the subresource.
    pub(super) async fn scale(&self, kind: Kind, name: &str, replicas: i64) {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.api(kind).patch_scale(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(super) async fn delete(&self, kind: Kind, name: &str) {
        self.api(kind).delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// The objects of the test's namespace, by name.
    pub(super) fn objects(&self, kind: Kind) -> Vec<Value> {
        self.caches[kind.plural].all().iter().map(|object| object.value.clone()).collect()
    }

    /// One of them; null where it is not there.
    pub(super) fn object(&self, kind: Kind, name: &str) -> Value {
        let of = |object: &Value| object["metadata"]["name"] == name;
        self.objects(kind).into_iter().find(of).unwrap_or_default()
    }

    /// How many objects were ever there.
    pub(super) fn ever(&self, kind: Kind) -> usize {
        self.seen.lock().unwrap().get(kind.plural).map_or(0, BTreeSet::len)
    }

    /// The reasons of events, without those of launcher Pods that VMIs get.
    pub(super) fn reasons(&self) -> BTreeSet<String> {
        let events = self.objects(EVENT);
        let is_of_a_pod = |event: &&Value| {
            event["involvedObject"]["kind"] == Kind::VMI.kind
                && ["SuccessfulCreate", "FailedCreate"]
                    .contains(&event["reason"].as_str().unwrap_or_default())
        };
        let others = events.iter().filter(|event| !is_of_a_pod(event));
        others.filter_map(|event| Some(event["reason"].as_str()?.to_owned())).collect()
    }

    /// Waits until something holds.
    pub(super) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let mut changes = self.changes.clone();
        let waiting = async {
            while !holds() {
                changes.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(LIMIT, waiting).await.is_err() {
            let all: Vec<Value> = WATCHED.iter().flat_map(|kind| self.objects(*kind)).collect();
            panic!("{what} is not reached: {:#}", json!(all));
        }
    }
}

/// Creates an object or replaces it.
pub(super) async fn put(api: &Api<DynamicObject>, object: Value) {
    let mut object: DynamicObject = serde_json::from_value(object).unwrap();
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(Error::Api(status)) if status.code == 409 => {
            let existing = api.get(&object.name_any()).await.unwrap();
            object.metadata.resource_version = existing.metadata.resource_version;
            api.replace(&object.name_any(), &PostParams::default(), &object).await.unwrap();
        }
        Err(error) => panic!("{}: {error}", object.name_any()),
    }
}
