//! Requests to the virt-handler of this machine, over its unix socket.

use std::io;
use std::path::PathBuf;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, http::HeaderValue};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::cli::Server;

/// The sub-protocol of KubeVirt's byte streams: raw bytes in binary frames.
const PLAIN: &str = "plain.kubevirt.io";
/// No answer is larger.
const ANSWER_LIMIT: usize = 16 << 20;
/// The host that requests name; a unix socket has none.
const HOST: &str = "vireo.local";

/// A virt-handler's endpoint.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(
        "no virt-handler answers at {socket}: is it running, and is --state-dir (VIREO_STATE_DIR) right?"
    )]
    Connect { socket: PathBuf, source: io::Error },
    #[error("the request to virt-handler failed")]
    Http(#[source] hyper::Error),
    #[error("the request cannot be made of these names")]
    Request(#[source] hyper::http::Error),
    #[error("the answer of virt-handler could not be read")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer of virt-handler is no JSON")]
    Json(#[source] serde_json::Error),
    /// What the server says of it, a `metav1.Status`.
    #[error("{message}")]
    Refused { code: StatusCode, message: String },
    #[error("the stream could not be opened")]
    WebSocket(#[source] Box<tungstenite::Error>),
}

impl Client {
    pub(crate) fn new(server: &Server) -> Self {
        Self { socket: server.state_dir.join("handler.sock") }
    }

    async fn connect(&self) -> Result<UnixStream, ClientError> {
        let connected = UnixStream::connect(&self.socket).await;
        connected.map_err(|source| ClientError::Connect { socket: self.socket.clone(), source })
    }

    /// GETs a JSON document.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, ClientError> {
        let body = self.get_bytes(path, "application/json").await?;
        serde_json::from_slice(&body).map_err(ClientError::Json)
    }

    /// GETs anything, of the media type `accept`.
    pub(crate) async fn get_bytes(&self, path: &str, accept: &str) -> Result<Bytes, ClientError> {
        let stream = TokioIo::new(self.connect().await?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(ClientError::Http)?;
        let connection = tokio::spawn(connection);
        let request = Request::get(path)
            .header(header::HOST, HOST)
            .header(header::ACCEPT, accept)
            .body(Empty::<Bytes>::new())
            .map_err(ClientError::Request)?;
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
    pub(crate) async fn stream(&self, path: &str) -> Result<WebSocketStream<UnixStream>, ClientError> {
        let websocket = |error| ClientError::WebSocket(Box::new(error));
        let mut request = format!("ws://{HOST}{path}").into_client_request().map_err(websocket)?;
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
    let message = message.unwrap_or_else(|| format!("virt-handler answered {code}"));
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
