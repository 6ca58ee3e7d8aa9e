//! The node agents of a cluster: each is found by its Pod, and reached over TLS.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tracing::debug;
use vireo_api::names::COMPONENT_LABEL;
use vireo_client::tls::TlsFiles;

use super::{ApiError, NodeAgents};
use crate::certificates::AGENT_SERVER_NAME;

/// The port of node agents; KubeVirt's.
pub const PORT: u16 = 8186;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The node agents that run in a namespace.
pub struct PodAgents {
    /// Finds their Pods.
    pub client: Client,
    /// Their namespace.
    pub namespace: String,
    /// How they are spoken to.
    pub tls: Arc<TlsFiles<ClientConfig>>,
}

impl std::fmt::Debug for PodAgents {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("PodAgents").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl NodeAgents for PodAgents {
    fn send(&self, node: &str, request: Request) -> BoxFuture<'static, Response> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let (node, tls) = (node.to_owned(), Arc::clone(&self.tls));
        Box::pin(async move {
            match forward(&pods, &node, &tls, request).await {
                Ok(response) => response,
                Err(error) => {
                    let message = format!("cannot reach virt-handler of the node {node:?}: {error}");
                    ApiError::unavailable(message).into_response()
                }
            }
        })
    }
}

/// The address of the node agent of a node.
async fn address(pods: &Api<Pod>, node: &str) -> Result<String, Failure> {
    let its = ListParams::default()
        .labels(&format!("{COMPONENT_LABEL}=virt-handler"))
        .fields(&format!("spec.nodeName={node}"));
    let found = pods.list(&its).await?;
    let running = found.items.into_iter().filter_map(|pod| pod.status);
    let mut running = running.filter(|status| status.phase.as_deref() == Some("Running"));
    running.find_map(|status| status.pod_ip).ok_or_else(|| "it does not run".into())
}

async fn forward(
    pods: &Api<Pod>,
    node: &str,
    tls: &TlsFiles<ClientConfig>,
    mut request: Request,
) -> Result<Response, Failure> {
    let address = address(pods, node).await?;
    let stream = TcpStream::connect((address.as_str(), PORT)).await?;
    // Small frames of a console must not wait for each other.
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(AGENT_SERVER_NAME)?;
    let stream = TlsConnector::from(tls.current()?).connect(name, stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "a connection to a node agent ended");
        }
    });
    let client = request.extensions_mut().remove::<OnUpgrade>();
    request.headers_mut().insert(header::HOST, HeaderValue::from_static(AGENT_SERVER_NAME));
    let mut response = sender.send_request(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let agent = response.extensions_mut().remove::<OnUpgrade>();
        if let (Some(client), Some(agent)) = (client, agent) {
            tokio::spawn(splice(client, agent));
        }
    }
    Ok(response.map(Body::new))
}

/// Passes the bytes of two upgraded connections on; each direction ends by itself.
async fn splice(client: OnUpgrade, agent: OnUpgrade) {
    let spliced = async {
        let (client, agent) = tokio::try_join!(client, agent)?;
        let (mut client, mut agent) = (TokioIo::new(client), TokioIo::new(agent));
        tokio::io::copy_bidirectional(&mut client, &mut agent).await?;
        Ok::<(), Failure>(())
    };
    if let Err(error) = spliced.await {
        debug!(%error, "a spliced connection ended");
    }
}
