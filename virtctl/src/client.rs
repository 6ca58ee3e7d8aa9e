//! Requests: to the server that a kubeconfig names, or to the virt-handler of this machine over its unix socket.

mod kubeconfig;
mod proxy;
mod tls;

use std::io;
use std::path::PathBuf;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, http::HeaderValue};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::cli::Server;
use kubeconfig::{Cluster, ConfigError};
pub(crate) use proxy::Proxy;
use tls::Tls;

/// The sub-protocol of KubeVirt's byte streams: raw bytes in binary frames.
const PLAIN: &str = "plain.kubevirt.io";
/// No answer is larger.
const ANSWER_LIMIT: usize = 16 << 20;
/// The host that requests name; a unix socket has none.
const HOST: &str = "vireo.local";
/// Where a virt-handler is when nobody says.
const STATE_DIR: &str = "/var/lib/vireo";

/// Bytes both ways.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection to whatever was asked for.
pub(crate) type Connection = Box<dyn Io>;

/// What answers.
pub(crate) struct Client {
    endpoint: Endpoint,
    namespace: String,
}

enum Endpoint {
    /// A virt-handler's socket.
    Handler(PathBuf),
    /// An API server.
    Server(Box<Tls>),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(
        "no virt-handler answers at {socket}: is it running, and is --state-dir (VIREO_STATE_DIR) right?"
    )]
    Connect { socket: PathBuf, source: io::Error },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot connect to {server}")]
    Server { server: String, source: io::Error },
    #[error("virt-handler alone has no virtual machines: name the server by --kubeconfig or KUBECONFIG")]
    NoMachines,
    #[error("virt-handler alone has no version: name the server by --kubeconfig or KUBECONFIG")]
    NoVersion,
    #[error("the request failed")]
    Http(#[source] hyper::Error),
    #[error("the request cannot be made of these names")]
    Request(#[source] hyper::http::Error),
    #[error("the answer could not be read")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer is no JSON")]
    Json(#[source] serde_json::Error),
    /// What the server says of it, a `metav1.Status`.
    #[error("{message}")]
    Refused { code: StatusCode, message: String },
    #[error("the stream could not be opened")]
    WebSocket(#[source] Box<tungstenite::Error>),
}

impl Client {
    /// Chooses: a kubeconfig or a state directory on the command line, else `KUBECONFIG`, else the virt-handler of this
    /// machine.
    pub(crate) fn new(server: &Server) -> Result<Self, ClientError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let wanted = match (&server.kubeconfig, &server.state_dir) {
            (Some(file), _) => Some(file.clone().into_os_string()),
            (None, Some(_)) => None,
            (None, None) => variable("KUBECONFIG"),
        };
        let given = server.namespace.clone();
        if let Some(files) = wanted {
            let cluster = Cluster::read(&files, server.context.as_deref())?;
            let namespace =
                given.or_else(|| cluster.namespace.clone()).unwrap_or_else(|| "default".to_owned());
            return Ok(Self { endpoint: Endpoint::Server(Box::new(Tls::of(cluster)?)), namespace });
        }
        let directory = server.state_dir.clone().or_else(|| variable("VIREO_STATE_DIR").map(PathBuf::from));
        let socket = directory.unwrap_or_else(|| STATE_DIR.into()).join("handler.sock");
        Ok(Self {
            endpoint: Endpoint::Handler(socket),
            namespace: given.unwrap_or_else(|| "default".to_owned()),
        })
    }

    /// The same in another namespace, if one is said.
    pub(crate) fn within(mut self, namespace: Option<&str>) -> Self {
        self.namespace = namespace.map_or(self.namespace, str::to_owned);
        self
    }

    /// The namespace that is meant.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The path of a virtual machine instance.
    pub(crate) fn instance(&self, name: &str) -> String {
        format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances/{name}", self.namespace)
    }

    /// The path of a virtual machine.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn machine(&self, name: &str) -> Result<String, ClientError> {
        if matches!(self.endpoint, Endpoint::Handler(_)) {
            return Err(ClientError::NoMachines);
        }
        Ok(format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachines/{name}", self.namespace))
    }

    /// The path of a PersistentVolumeClaim.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn claim(&self, name: &str) -> Result<String, ClientError> {
        if matches!(self.endpoint, Endpoint::Handler(_)) {
            return Err(ClientError::NoMachines);
        }
        Ok(format!("/api/v1/namespaces/{}/persistentvolumeclaims/{name}", self.namespace))
    }

    /// The path of the server's version of KubeVirt.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn version(&self) -> Result<String, ClientError> {
        match self.endpoint {
            Endpoint::Handler(_) => Err(ClientError::NoVersion),
            Endpoint::Server(_) => Ok("/apis/subresources.kubevirt.io/v1/version".to_owned()),
        }
    }

    /// The path of a part of it: `console`, `vnc`, `portforward/22/tcp`.
    pub(crate) fn part(&self, name: &str, part: &str) -> String {
        let base = match self.endpoint {
            Endpoint::Handler(_) => "/v1",
            Endpoint::Server(_) => "/apis/subresources.kubevirt.io/v1",
        };
        format!("{base}/namespaces/{}/virtualmachineinstances/{name}/{part}", self.namespace)
    }

    async fn connect(&self) -> Result<Connection, ClientError> {
        match &self.endpoint {
            Endpoint::Handler(socket) => match UnixStream::connect(socket).await {
                Ok(stream) => Ok(Box::new(stream)),
                Err(source) => Err(ClientError::Connect { socket: socket.clone(), source }),
            },
            Endpoint::Server(tls) => {
                let failed = |source| ClientError::Server { server: tls.url(), source };
                let stream = TcpStream::connect((tls.host(), tls.port())).await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                Ok(Box::new(tls.connect(stream).await.map_err(failed)?))
            }
        }
    }

    /// The host that requests name, and what lets them in beside a certificate.
    fn head(&self) -> (String, Option<HeaderValue>) {
        match &self.endpoint {
            Endpoint::Handler(_) => (HOST.to_owned(), None),
            Endpoint::Server(tls) => (tls.authority(), tls.authorization()),
        }
    }

    /// GETs a JSON document.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, ClientError> {
        let body = self.get_bytes(path, "application/json").await?;
        serde_json::from_slice(&body).map_err(ClientError::Json)
    }

    /// GETs anything, of the media type `accept`.
    pub(crate) async fn get_bytes(&self, path: &str, accept: &str) -> Result<Bytes, ClientError> {
        let request = Request::get(path).header(header::ACCEPT, accept).body(Full::default());
        self.send(request.map_err(ClientError::Request)?).await
    }

    /// Asks something of a virtual machine: `start`, `stop`.
    pub(crate) async fn ask(&self, name: &str, what: &str, options: &Value) -> Result<(), ClientError> {
        self.put(&self.machine_part(name, what)?, options).await.map(drop)
    }

    /// The path of a part of a virtual machine: `start`, `expand-spec`, `portforward/22/tcp`.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn machine_part(&self, name: &str, part: &str) -> Result<String, ClientError> {
        let path = self.machine(name)?.replace("/apis/kubevirt.io/", "/apis/subresources.kubevirt.io/");
        Ok(format!("{path}/{part}"))
    }

    /// The path at which a virtual machine that is nowhere is expanded.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn expand(&self) -> Result<String, ClientError> {
        self.machine("").map(|_| {
            format!("/apis/subresources.kubevirt.io/v1/namespaces/{}/expand-vm-spec", self.namespace)
        })
    }

    /// The way to an upload proxy.
    ///
    /// # Errors
    /// When there can be none at a URL, or it is a virt-handler that answers.
    pub(crate) fn proxy(&self, url: &str, insecure: bool) -> Result<Proxy, ClientError> {
        match &self.endpoint {
            Endpoint::Handler(_) => Err(ClientError::NoMachines),
            Endpoint::Server(tls) => Ok(Proxy { tls: tls.elsewhere(url, insecure)? }),
        }
    }

    /// POSTs a JSON document.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Bytes, ClientError> {
        self.give(Request::post(path), body).await
    }

    async fn give(&self, request: hyper::http::request::Builder, body: &Value) -> Result<Bytes, ClientError> {
        let request = request.header(header::CONTENT_TYPE, "application/json");
        self.send(request.body(Full::from(body.to_string())).map_err(ClientError::Request)?).await
    }

    /// PUTs a JSON document.
    pub(crate) async fn put(&self, path: &str, body: &Value) -> Result<Bytes, ClientError> {
        self.give(Request::put(path), body).await
    }

    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Bytes, ClientError> {
        let stream = TokioIo::new(self.connect().await?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(ClientError::Http)?;
        let connection = tokio::spawn(connection);
        let (host, authorization) = self.head();
        let host = HeaderValue::from_str(&host).map_err(|error| ClientError::Request(error.into()))?;
        request.headers_mut().insert(header::HOST, host);
        request.headers_mut().extend(authorization.map(|value| (header::AUTHORIZATION, value)));
        let response = sender.send_request(request).await.map_err(ClientError::Http)?;
        let code = response.status();
        let body =
            Limited::new(response.into_body(), ANSWER_LIMIT).collect().await.map_err(ClientError::Body)?;
        connection.abort();
        let body = body.to_bytes();
        if !code.is_success() {
            return Err(refused(code, &body));
        }
        Ok(body)
    }

    /// Opens one of KubeVirt's byte streams.
    pub(crate) async fn stream(&self, path: &str) -> Result<WebSocketStream<Connection>, ClientError> {
        let websocket = |error| ClientError::WebSocket(Box::new(error));
        let (host, authorization) = self.head();
        let mut request = format!("ws://{host}{path}").into_client_request().map_err(websocket)?;
        request.headers_mut().extend(authorization.map(|value| (header::AUTHORIZATION, value)));
        request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PLAIN));
        match client_async(request, self.connect().await?).await {
            Ok((stream, _response)) => Ok(stream),
            Err(tungstenite::Error::Http(response)) => {
                Err(refused(response.status(), response.body().as_deref().unwrap_or_default()))
            }
            Err(error) => Err(websocket(error)),
        }
    }
}

fn refused(code: StatusCode, body: &[u8]) -> ClientError {
    let status: Option<Value> = serde_json::from_slice(body).ok();
    let message = status.as_ref().and_then(|status| status.get("message")?.as_str()).map(str::to_owned);
    let message = message.unwrap_or_else(|| format!("the server answered {code}"));
    ClientError::Refused { code, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_speaks_the_servers_words() {
        let body = br#"{"kind":"Status","message":"virtualmachineinstances \"x\" not found","code":404}"#;
        assert_eq!(
            refused(StatusCode::NOT_FOUND, body).to_string(),
            r#"virtualmachineinstances "x" not found"#
        );
        assert!(refused(StatusCode::BAD_GATEWAY, b"<html>").to_string().contains("502"));
    }
}
