//! Consoles, displays, USB devices, VSOCK and other ports, pauses and resets: the agent of the node answers, as KubeVirt's API does.

use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::response::Response;
use futures_util::future::BoxFuture;
use serde_json::Value;
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::events::{Reason, Regarding};
use vireo_client::{Kind, ObjectKey};

use super::endpoint::{CONTROLS, NodeEndpoint};
use super::{ApiError, VirtApi, read};

/// The agents of the nodes.
pub trait NodeAgents: std::fmt::Debug + Send + Sync {
    /// Has the agent of a node answer a request. Its path is one of the agent; its connection may be upgraded.
    fn send(&self, node: &str, request: Request) -> BoxFuture<'static, Response>;
}

pub(super) async fn serve(
    server: &VirtApi,
    NodeEndpoint { key, subresource, of_vm }: NodeEndpoint,
    mut request: Request,
) -> Result<Response, ApiError> {
    let expected = if CONTROLS.contains(&subresource.as_str()) { Method::PUT } else { Method::GET };
    if request.method() != expected {
        return Err(ApiError::method_not_allowed());
    }
    if of_vm {
        has_vmi(server, &key).await?;
    }
    let vmi = scheduled_vmi(server, &key).await?;
    let ObjectKey { namespace, name } = &key;
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{subresource}{query}");
    *request.uri_mut() =
        path.parse::<Uri>().map_err(|_| ApiError::bad_request("the query cannot be passed on"))?;
    let response = server.nodes.send(&vmi.status.node_name, request).await;
    if let Some((reason, message)) = event(&subresource).filter(|_| response.status().is_success()) {
        server.recorder.publish(Regarding::new(Kind::VMI, &vmi.metadata), reason, message).await;
    }
    Ok(response)
}

/// The VMI, which has a node.
async fn scheduled_vmi(server: &VirtApi, key: &ObjectKey) -> Result<VirtualMachineInstance, ApiError> {
    let found = Kind::VMI.namespaced(&server.client, &key.namespace).get_opt(&key.name).await?;
    let Some(found) = found else {
        // By the name that KubeVirt has for it here.
        let message = format!("virtualmachineinstance.kubevirt.io {:?} not found", key.name);
        return Err(ApiError::not_found(message));
    };
    let vmi: VirtualMachineInstance = read(found)?;
    match vmi.status.node_name.as_str() {
        "" => Err(ApiError::conflict(Kind::VMI, &key.name, "VMI is not running")),
        _ => Ok(vmi),
    }
}

/// Whether a VM has a VMI, which has its name.
async fn has_vmi(server: &VirtApi, key: &ObjectKey) -> Result<(), ApiError> {
    let vm = Kind::VM.namespaced(&server.client, &key.namespace).get(&key.name).await?;
    match vm.data.pointer("/status/created").and_then(Value::as_bool) {
        Some(true) => Ok(()),
        _ => Err(ApiError::conflict(Kind::VM, &key.name, "VMI is not started")),
    }
}

/// The event of what leaves no trace in the status of a VMI.
fn event(subresource: &str) -> Option<(Reason, &'static str)> {
    match subresource {
        "reset" => Some((Reason::Reset, "VirtualMachineInstance reset")),
        "softreboot" => Some((Reason::SoftRebooted, "VirtualMachineInstance was asked to reboot")),
        _ => None,
    }
}
