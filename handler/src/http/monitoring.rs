//! What is asked of a node agent of a cluster without a certificate, as of KubeVirt's: whether it works, and metrics.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::watch;
use vireo_api::names::{HEALTHZ, READYZ};

use super::{METRICS, metrics};
use crate::node::Node;

/// The routes for the kubelet and for Prometheus. `adopted` is whether the VMIs from before the restart are adopted: until
/// then, requests for them fail, so the node agent is not ready.
pub fn monitoring_router(node: Arc<Node>, adopted: watch::Receiver<bool>) -> Router {
    let ready = Router::new().route(READYZ, get(ready)).with_state(adopted);
    Router::new()
        .route(HEALTHZ, get(async || "ok"))
        .route(METRICS, get(metrics))
        .with_state(node)
        .merge(ready)
}

async fn ready(State(adopted): State<watch::Receiver<bool>>) -> (StatusCode, &'static str) {
    match *adopted.borrow() {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the VMIs of this node are not adopted yet"),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_node_agent_is_ready_once_its_vmis_are_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let (adopt, adopted) = watch::channel(false);
        let router = monitoring_router(Node::of_a_test(dir.path()), adopted);
        let code = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap().status().as_u16()
        };
        assert_eq!([code(HEALTHZ).await, code(METRICS).await, code(READYZ).await], [200, 200, 503]);
        adopt.send_replace(true);
        assert_eq!([code(HEALTHZ).await, code(READYZ).await], [200, 200]);
        let consoles = code("/apis/kubevirt.io/v1/virtualmachineinstances").await;
        assert_eq!(consoles, 404, "those need a certificate");
    }
}
