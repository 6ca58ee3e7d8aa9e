//! KubeVirt's API server, mounted in this one.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use kube::Client;
use serde_json::Value;
use tower::ServiceExt as _;
use vireo_apiserver::http::{self, Answer, ApiError, ApiService, ResourcePath};
use vireo_operators::virt_api::{self, Endpoint, GROUP, NodeAgents, Path, VERSIONS, discovery};

/// [`virt_api::VirtApi`] as a service of this server.
#[derive(Debug)]
pub struct VirtApi(virt_api::VirtApi);

impl VirtApi {
    /// Acts as the user of a client; `agent` is the node agent's endpoint.
    pub fn new(client: Client, agent: Router) -> Self {
        Self(virt_api::VirtApi::new(client, Arc::new(LocalAgent(agent))))
    }
}

/// The agent of the one node.
#[derive(Debug)]
struct LocalAgent(Router);

impl NodeAgents for LocalAgent {
    fn send(&self, _: &str, request: Request) -> Answer<Response> {
        let agent = self.0.clone();
        Box::pin(async move {
            match agent.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}

/// What is served at a path that the server has read, and authorizes.
fn endpoint(path: &ResourcePath) -> Result<Endpoint, ApiError> {
    let path = Path {
        version: &path.version,
        namespace: path.namespace.as_deref(),
        resource: &path.resource,
        name: path.name.as_deref(),
        subresource: path.subresource(),
    };
    Endpoint::at(&path).map_err(|_| ApiError::path_not_found())
}

impl ApiService for VirtApi {
    fn groups(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        vec![(GROUP, VERSIONS.to_vec())]
    }

    fn resources(&self, group: &str, version: &str) -> Vec<Value> {
        if group == GROUP && VERSIONS.contains(&version) { discovery::resources() } else { Vec::new() }
    }

    fn paths(&self) -> Vec<String> {
        discovery::paths()
    }

    fn endpoint(&self, path: &ResourcePath) -> Option<Result<http::Endpoint, ApiError>> {
        let kind = |endpoint: Endpoint| match endpoint.is_connection() {
            true => http::Endpoint::Connection,
            false => http::Endpoint::Request,
        };
        (path.group == GROUP).then(|| endpoint(path).map(kind))
    }

    fn serve(self: Arc<Self>, path: ResourcePath, request: Request) -> Answer<Result<Response, ApiError>> {
        Box::pin(async move { Ok(self.0.serve(endpoint(&path)?, request).await) })
    }
}
