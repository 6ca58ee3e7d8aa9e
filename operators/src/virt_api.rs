//! KubeVirt's API server: the subresources of VMs and VMIs, and its documents.
//!
//! [`VirtApi`] is a tower service for the group [`GROUP`], as an aggregated API server: the server in front authenticates and
//! authorizes the clients. It reads and writes objects with a client of its own.

pub mod agents;
mod body;
mod created;
pub mod discovery;
mod documents;
mod endpoint;
mod error;
mod expand;
pub mod front_proxy;
mod lifecycle;
mod memory_dump;
mod node;
mod object_graph;
pub mod server;
mod unserved;
mod volumes;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use kube::Client;
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::Service;
use vireo_api::v1::{VirtualMachine, VirtualMachineInstance};
use vireo_client::Kind;
use vireo_client::events::EventRecorder;

pub use endpoint::{Document, Endpoint, NodeEndpoint, Operation, Path, VolumeEndpoint};
pub use error::ApiError;
pub use node::NodeAgents;
pub use unserved::Unserved;

use crate::vm::{self, orphan};

/// The group of the subresources.
pub const GROUP: &str = "subresources.kubevirt.io";
/// Its versions, the preferred one first.
pub const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];
/// How often a write is tried whose object others change meanwhile.
const ATTEMPTS: usize = 5;

/// Tries a write again whose object others changed meanwhile.
async fn retry_on_conflict<T, F: Future<Output = Result<T, ApiError>>>(
    write: impl Fn() -> F,
) -> Result<T, ApiError> {
    for _ in 1..ATTEMPTS {
        match write().await {
            Err(error) if error.is_stale() => {}
            done => return done,
        }
    }
    write().await
}

/// KubeVirt's API server.
#[derive(Clone)]
pub struct VirtApi {
    client: Client,
    nodes: Arc<dyn NodeAgents>,
    recorder: Arc<EventRecorder>,
}

impl std::fmt::Debug for VirtApi {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("VirtApi").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl VirtApi {
    /// Acts as the user of a client.
    pub fn new(client: Client, nodes: Arc<dyn NodeAgents>) -> Self {
        let recorder = Arc::new(EventRecorder::new(client.clone(), "virt-api", None));
        Self { client, nodes, recorder }
    }

    /// Answers a request for an endpoint, whatever the path of the request.
    pub async fn serve(&self, endpoint: Endpoint, request: Request) -> Response {
        let served = match endpoint {
            Endpoint::Document(document) => documents::serve(self, document, request.method()).await,
            Endpoint::Lifecycle(key, operation) => lifecycle::serve(self, key, operation, request).await,
            Endpoint::Volume(endpoint) => volumes::serve(self, endpoint, request).await,
            Endpoint::MemoryDump(key, removes) => memory_dump::serve(self, key, removes, request).await,
            Endpoint::ExpandSpec(key) => expand::of_stored(self, key, request.method()).await,
            Endpoint::ExpandVmSpec(namespace) => expand::of_given(self, namespace, request).await,
            Endpoint::ObjectGraph(kind, key) => object_graph::serve(self, kind, key, request).await,
            Endpoint::Unserved(unserved) => Err(unserved.error()),
            Endpoint::Node(endpoint) => node::serve(self, endpoint, request).await,
        };
        served.unwrap_or_else(ApiError::into_response)
    }

    /// The VMI that a VM owns.
    async fn vmi_of(&self, vm: &VirtualMachine) -> Result<Option<VirtualMachineInstance>, ApiError> {
        let vmis = Kind::VMI.namespaced(&self.client, &vm.metadata.namespace);
        let Some(found) = vmis.get_opt(&vm.metadata.name).await? else { return Ok(None) };
        let vmi: VirtualMachineInstance = read(found)?;
        Ok(orphan::owns(&vm.metadata, &vmi.metadata).then_some(vmi))
    }
}

impl Service<Request> for VirtApi {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            if let Some(document) = discovery::document(request.uri().path()) {
                return Ok(json_response(StatusCode::OK, &document));
            }
            let path = Path::parse(request.uri().path()).ok_or_else(ApiError::path_not_found);
            Ok(match path.and_then(|path| Endpoint::at(&path)) {
                Ok(endpoint) => server.serve(endpoint, request).await,
                Err(error) => error.into_response(),
            })
        })
    }
}

/// An object of the API, typed.
fn read<T: DeserializeOwned>(object: DynamicObject) -> Result<T, ApiError> {
    let read = serde_json::to_value(object).and_then(serde_json::from_value);
    read.map_err(|error| ApiError::internal(format!("what is stored cannot be read: {error}")))
}

fn refused(kind: Kind, name: &str, rejection: vm::Rejection) -> ApiError {
    match rejection {
        vm::Rejection::BadRequest(message) => ApiError::bad_request(message),
        vm::Rejection::Conflict(message) => ApiError::conflict(kind, name, &message),
    }
}

fn requires_put(request: &Request) -> Result<(), ApiError> {
    if request.method() == Method::PUT { Ok(()) } else { Err(ApiError::method_not_allowed()) }
}

fn json_response(code: StatusCode, value: &Value) -> Response {
    (code, Json(value)).into_response()
}

/// 202: a controller carries it out.
fn accepted() -> Response {
    StatusCode::ACCEPTED.into_response()
}
