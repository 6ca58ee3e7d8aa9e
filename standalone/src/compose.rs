//! The API server of `vireo standalone`, and the clients of it in this process.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use axum::Router;
use axum::http::HeaderValue;
use tokio::runtime::Handle;
use vireo_apiserver::auth::{KNOWN, User};
use vireo_apiserver::client::InProcess;
use vireo_apiserver::flow_control::FlowControl;
use vireo_apiserver::http::{Measures, Server};
use vireo_apiserver::rbac::roles::RolesNow;
use vireo_apiserver::resource::Registry;
use vireo_apiserver::served_resources::ServedResourcesCache;
use vireo_apiserver::store::Store;
use vireo_handler::storage::AllowedPaths;
use vireo_operators::admission::Admission;
use vireo_operators::config::LiveConfig;

use crate::admit::VirtAdmission;
use crate::cdi::CdiApi;
use crate::pod_log::PodLog;
use crate::virt_api::VirtApi;
use vireo_install::policy;

/// What an API server is composed of.
#[derive(Debug)]
pub struct Parts {
    /// The objects.
    pub store: Arc<Store>,
    /// What is always served.
    pub registry: Arc<Registry>,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Which paths of this node objects may name.
    pub allowed: AllowedPaths,
    /// CDI's API server, with the tokens of users.
    pub cdi: Arc<CdiApi>,
    /// The node agent's endpoints.
    pub node: Router,
    /// What is counted of requests.
    pub measures: Measures,
    /// How many requests are answered at the same time.
    pub flow_control: FlowControl,
}

impl Parts {
    /// The server of these parts, by the reference that its parts have to it. It must be called in a runtime.
    pub fn server(self, server: &Weak<Server>) -> Server {
        let Self { store, registry, state_dir, allowed, cdi, node, measures, flow_control } = self;
        let virt_api = part_client(server, policy::VIRT_API, "virt-api");
        Server {
            store: Arc::clone(&store),
            tokens: Arc::clone(&cdi.tokens),
            state_dir,
            admission: Arc::new(VirtAdmission {
                allowed,
                virt: Admission::new(virt_api.clone(), LiveConfig::default()).for_single_host(),
                runtime: Handle::current(),
            }),
            services: vec![
                Arc::clone(&cdi) as _,
                Arc::new(VirtApi::new(virt_api, node.clone())),
                Arc::new(PodLog { store, node: node.clone() }),
            ],
            proxies: vec![cdi],
            served: ServedResourcesCache::new(registry),
            roles: RolesNow::default(),
            metrics: node,
            measures,
            flow_control,
        }
    }
}

/// A client of the API server in this process, as a ServiceAccount of a component.
pub fn client(api: &Arc<Server>, (namespace, name): (&str, &str), component: &'static str) -> kube::Client {
    let service = InProcess::new(Arc::clone(api), User::service_account(namespace, name));
    kube::Client::new(service.with_user_agent(HeaderValue::from_static(component)), namespace)
}

/// The same for a part of the server, which does not keep the server.
pub fn part_client(
    api: &Weak<Server>,
    (namespace, name): (&str, &str),
    component: &'static str,
) -> kube::Client {
    let service = InProcess::part_of(Weak::clone(api), User::service_account(namespace, name));
    kube::Client::new(service.with_user_agent(HeaderValue::from_static(component)), namespace)
}

/// The client of placement.
pub fn scheduler(api: &Arc<Server>) -> kube::Client {
    let service = InProcess::new(Arc::clone(api), User::named(policy::SCHEDULER, &[KNOWN]));
    kube::Client::new(service.with_user_agent(HeaderValue::from_static("kube-scheduler")), "default")
}
