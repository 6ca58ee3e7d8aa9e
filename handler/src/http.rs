//! The local endpoint: VMIs as KubeVirt's API serves them, and their consoles, on a unix socket.

mod agent;
mod console;
mod error;
mod freeze;
mod lifecycle;
mod log;
mod monitoring;
mod portforward;
mod relay;
mod usbredir;
mod vnc;
mod vsock;

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Path as Segments, State};
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{get, put};
use axum::{Json, Router};
use tokio::net::UnixListener;
use vireo_api::v1::{API_VERSION, ListMeta, VirtualMachineInstance, VirtualMachineInstanceList};

use crate::manifests::{Key, Rejection};
use crate::node::Node;
use error::ApiError;

#[cfg(any(test, fuzzing))]
pub(crate) use agent::fuzz;
pub use monitoring::monitoring_router;
pub(crate) use usbredir::UsbSlots;

pub use vireo_client::metrics::METRICS;

/// Binds the endpoint. The caller holds the lock of the state directory, so an existing socket is a leftover.
///
/// # Errors
/// When the socket cannot be created.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves the endpoint.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: UnixListener, node: Arc<Node>) -> io::Result<()> {
    axum::serve(listener, router(node)).await
}

/// The routes of the endpoint.
pub fn router(node: Arc<Node>) -> Router {
    let vmis = "/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances";
    let console = "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/console";
    let vnc = "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/vnc";
    let usbredir = "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/usbredir";
    let vsock = "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/vsock";
    let port = "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/portforward/{port}";
    let vmi = "/v1/namespaces/{namespace}/virtualmachineinstances/{name}";
    let lifecycle = "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{command}";
    Router::new()
        .route("/apis/kubevirt.io/v1/virtualmachineinstances", get(list_all))
        .route(vmis, get(list))
        .route(&format!("{vmis}/{{name}}"), get(one))
        .route(console, get(console::attach))
        .route(vnc, get(vnc::attach))
        .route(&format!("{vnc}/screenshot"), get(vnc::screenshot))
        .route(usbredir, get(usbredir::attach))
        .route(vsock, get(vsock::attach))
        .route(port, get(portforward::tcp))
        .route(&format!("{port}/{{protocol}}"), get(portforward::either))
        .route(&format!("{vmi}/guestosinfo"), get(agent::info))
        .route(&format!("{vmi}/userlist"), get(agent::users))
        .route(&format!("{vmi}/filesystemlist"), get(agent::filesystems))
        .route(&format!("{vmi}/freeze"), put(freeze::freeze))
        .route(&format!("{vmi}/unfreeze"), put(freeze::unfreeze))
        .route(&format!("{vmi}/log"), get(log::serve))
        .route(lifecycle, put(lifecycle::lifecycle))
        .route(METRICS, get(metrics))
        .fallback(path_not_found)
        .method_not_allowed_fallback(other_method)
        .with_state(node)
}

async fn metrics(State(node): State<Arc<Node>>) -> Response {
    node.metrics.serve(&node.settings.node_name, node.vmis(), &node.state).await
}

async fn list_all(State(node): State<Arc<Node>>) -> Json<VirtualMachineInstanceList> {
    Json(list_of(node.vmis().iter().map(|vmi| VirtualMachineInstance::clone(vmi)).collect()))
}

async fn list(
    State(node): State<Arc<Node>>,
    Segments(namespace): Segments<String>,
) -> Json<VirtualMachineInstanceList> {
    let vmis = node.vmis();
    let inside = vmis.iter().filter(|vmi| vmi.metadata.namespace == namespace);
    Json(list_of(inside.map(|vmi| VirtualMachineInstance::clone(vmi)).collect()))
}

fn list_of(items: Vec<VirtualMachineInstance>) -> VirtualMachineInstanceList {
    VirtualMachineInstanceList {
        api_version: API_VERSION.to_owned(),
        kind: "VirtualMachineInstanceList".to_owned(),
        metadata: ListMeta::default(),
        items,
        ..VirtualMachineInstanceList::default()
    }
}

async fn one(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
) -> Result<Json<VirtualMachineInstance>, ApiError> {
    find(&node, namespace, name).map(|vmi| Json(VirtualMachineInstance::clone(&vmi)))
}

async fn other_method() -> ApiError {
    ApiError::method_not_allowed(
        "VMIs are changed through their manifests; this endpoint reads them and controls their lifecycle",
    )
}

async fn path_not_found(uri: Uri) -> ApiError {
    ApiError::not_found(format!("the server could not find the requested resource: {}", uri.path()))
}

fn find(node: &Node, namespace: String, name: String) -> Result<Arc<VirtualMachineInstance>, ApiError> {
    let key = Key { namespace, name };
    node.vmi(&key).ok_or_else(|| vmi_not_found(&key, &node.rejections()))
}

/// The error for a VMI that does not exist, with the problems of its manifest if that was rejected.
fn vmi_not_found(key: &Key, rejections: &[Rejection]) -> ApiError {
    let mut message = format!("virtualmachineinstance.kubevirt.io \"{}\" not found", key.name);
    let of_it = |rejection: &&Rejection| rejection.namespace == key.namespace && rejection.name == key.name;
    if let Some(rejection) = rejections.iter().find(of_it) {
        let problems: Vec<_> = rejection.problems.iter().map(ToString::to_string).collect();
        message.push_str(&format!(": its manifest {} is refused: {}", rejection.file, problems.join("; ")));
    }
    ApiError::not_found(message)
}

#[cfg(test)]
mod tests;
