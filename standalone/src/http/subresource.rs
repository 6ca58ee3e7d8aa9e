//! Consoles and screens: asked of the node agent, whose answers are KubeVirt's already.

use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::response::Response;
use tower::ServiceExt as _;

use super::target::Stream;
use super::{Refusal, Server};
use crate::meta::is_dns_name;

/// Passes the request on to the node agent.
pub(super) async fn serve(
    server: &Server,
    stream: Stream,
    mut request: Request,
) -> Result<Response, Refusal> {
    if request.method() != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    let Stream { namespace, name, what } = stream;
    // Then they need no escape in a path.
    if !is_dns_name(&namespace) || !is_dns_name(&name) {
        return Err(Refusal::nowhere());
    }
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{what}{query}");
    let uri: Uri = path.parse().map_err(|_| Refusal::bad_request("the query cannot be passed on"))?;
    *request.uri_mut() = uri;
    match server.node.clone().oneshot(request).await {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}
