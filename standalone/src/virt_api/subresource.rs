//! Consoles, screens, ports, pauses and resets: asked of the node agent, whose answers are KubeVirt's already.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::response::Response;
use serde_json::Value;
use tower::ServiceExt as _;
use vireo_api::v1::{VMI_KIND, VirtualMachineInstance};
use vireo_apiserver::http::ApiError;
use vireo_apiserver::meta::is_dns_name;
use vireo_apiserver::store::Store;

use super::{STEERING, Stream, VirtApi};
use crate::resource::kubevirt;
use crate::store_events::{self, About, Event};

/// Passes the request on to the node agent.
pub(super) async fn serve(server: &VirtApi, stream: Stream, request: Request) -> Result<Response, ApiError> {
    let Stream { namespace, name, what, of_machine } = stream;
    let expected = if STEERING.contains(&what.as_str()) { Method::PUT } else { Method::GET };
    if request.method() != expected {
        return Err(ApiError::method_not_allowed());
    }
    // Then they need no escape in a path.
    if !is_dns_name(&namespace) || !is_dns_name(&name) {
        return Err(ApiError::path_not_found());
    }
    if of_machine {
        started(&server.store, &namespace, &name)?;
    }
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{what}{query}");
    let response = ask_node(server, request, &path).await?;
    if response.status().is_success() {
        // Of a pause, the status tells.
        let (store, event) = (Arc::clone(&server.store), news(&what));
        let told = tokio::task::spawn_blocking(move || tell(&store, &namespace, &name, event));
        told.await.map_err(|error| ApiError::internal(format!("the event broke off: {error}")))??;
    }
    Ok(response)
}

/// Has the node agent answer a request at another path.
pub(super) async fn ask_node(
    server: &VirtApi,
    mut request: Request,
    path: &str,
) -> Result<Response, ApiError> {
    let uri: Uri = path.parse().map_err(|_| ApiError::bad_request("the query cannot be passed on"))?;
    *request.uri_mut() = uri;
    match server.node.clone().oneshot(request).await {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}

/// Whether a VirtualMachine has an instance, which has its name.
fn started(store: &Store, namespace: &str, name: &str) -> Result<(), ApiError> {
    let machine = store.get(&kubevirt::VMS.key(namespace, name));
    let machine = machine.ok_or_else(|| ApiError::not_found(&kubevirt::VMS, name))?;
    if machine.value.pointer("/status/created").and_then(Value::as_bool) == Some(true) {
        return Ok(());
    }
    Err(ApiError::conflict(&kubevirt::VMS, name, "VMI is not started"))
}

/// What happened to an instance that leaves no trace in its status.
fn news(what: &str) -> Option<Event> {
    let (reason, message) = match what {
        "reset" => ("Reset", "VirtualMachineInstance reset"),
        "softreboot" => ("SoftRebooted", "VirtualMachineInstance was asked to reboot"),
        _ => return None,
    };
    Some(Event::new(false, reason, message))
}

fn tell(store: &Store, namespace: &str, name: &str, event: Option<Event>) -> Result<(), ApiError> {
    let instance = store.get(&kubevirt::VMIS.key(namespace, name));
    let (Some(event), Some(instance)) = (event, instance) else { return Ok(()) };
    let instance: VirtualMachineInstance = serde_json::from_value(instance.value.clone())
        .map_err(|error| ApiError::internal(format!("the VMI cannot be read: {error}")))?;
    let host = instance.status.node_name.as_str();
    let about = About { kind: VMI_KIND, metadata: &instance.metadata, component: "virt-handler", host };
    Ok(store_events::write(store, &about, &event)?)
}
