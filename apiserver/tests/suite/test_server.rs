//! The server of tests, and its clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Status;
use kube::{Api, Client, Error};
use prometheus_client::registry::Registry as Metrics;
use vireo_apiserver::admission::{Admission, AdmitAll};
use vireo_apiserver::auth::{Signer, Tokens, User};
use vireo_apiserver::client::InProcess;
use vireo_apiserver::flow_control::FlowControl;
use vireo_apiserver::http::{ApiService, Measures, Server};
use vireo_apiserver::rbac::defaults::Policy;
use vireo_apiserver::rbac::roles::RolesNow;
use vireo_apiserver::resource::Registry;
use vireo_apiserver::served_resources::ServedResourcesCache;
use vireo_apiserver::store::Store;
use vireo_apiserver::{definitions, objects, rbac};

/// A server without a listener.
pub(crate) struct TestServer {
    pub(crate) server: Arc<Server>,
    _dir: tempfile::TempDir,
    _controllers: tokio::task::JoinSet<()>,
}

impl TestServer {
    pub(crate) fn start() -> Self {
        Self::start_with(Arc::new(AdmitAll), Vec::new())
    }

    pub(crate) fn start_with(admission: Arc<dyn Admission>, services: Vec<Arc<dyn ApiService>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let registry = Arc::new(Registry::default());
        let store = Store::open(&dir.path().join("store")).unwrap();
        let store = Arc::new(store.recorded_by(Arc::clone(&registry) as _));
        objects::prepare(&store).unwrap();
        rbac::bootstrap::prepare(&store, &Policy::default()).unwrap();
        let signer = Signer::of(&dir.path().join("sa.key")).unwrap();
        let tokens = Arc::new(Tokens::new("token".to_owned(), signer, Arc::clone(&store)));
        let mut controllers = tokio::task::JoinSet::new();
        controllers.spawn(definitions::run(Arc::clone(&store)));
        let server = Arc::new(Server {
            store,
            tokens,
            admission,
            services,
            proxies: Vec::new(),
            state_dir: dir.path().to_owned(),
            served: ServedResourcesCache::new(registry),
            roles: RolesNow::default(),
            metrics: Router::new(),
            measures: Measures::default(),
            flow_control: FlowControl::default(),
        });
        Self { server, _dir: dir, _controllers: controllers }
    }

    pub(crate) fn in_process(&self, user: User) -> InProcess {
        InProcess::new(Arc::clone(&self.server), user)
    }

    pub(crate) fn client(&self, user: User) -> Client {
        Client::new(self.in_process(user), "default")
    }

    pub(crate) fn admin(&self) -> Client {
        self.client(User::administrator())
    }

    /// How many watches go on.
    pub(crate) fn watches(&self) -> u32 {
        let mut metrics = Metrics::default();
        self.server.measures.register(
            &mut metrics,
            Arc::clone(&self.server.store),
            self.server.flow_control.clone(),
        );
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &metrics).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("apiserver_longrunning_requests{"));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u32>().unwrap()).sum()
    }
}

pub(crate) fn maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

pub(crate) fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("key".to_owned(), name.to_owned())])),
        ..ConfigMap::default()
    }
}

/// The status of a request that the server refused.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    match result {
        Err(Error::Api(status)) => *status,
        other => panic!("the server should refuse, not answer {other:?}"),
    }
}
