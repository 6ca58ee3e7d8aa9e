//! KubeVirt's byte streams: websockets whose sub-protocol kube's own do not know.

use hyper::header::{self, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::error::{ClientError, refused};
use super::{Client, whole};

/// The sub-protocol of KubeVirt's byte streams: raw bytes in binary frames.
const PLAIN: HeaderValue = HeaderValue::from_static("plain.kubevirt.io");

/// A connection to the requested stream.
pub(crate) type Connection = TokioIo<Upgraded>;

impl Client {
    /// Opens one of KubeVirt's byte streams.
    pub(crate) async fn stream(&self, path: &str) -> Result<WebSocketStream<Connection>, ClientError> {
        let key = generate_key();
        let request = Request::get(path)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &key)
            .header(header::SEC_WEBSOCKET_PROTOCOL, PLAIN)
            .body(Body::empty())
            .map_err(ClientError::Request)?;
        let response = self
            .in_time(async {
                let response = self.begin(request).await?;
                match response.status() {
                    StatusCode::SWITCHING_PROTOCOLS => Ok(response),
                    code => Err(refused(code, &whole(response).await?)),
                }
            })
            .await?;
        check(&response, &key)?;
        let upgraded = hyper::upgrade::on(response).await;
        let upgraded = upgraded.map_err(|error| ClientError::Http(error.into()))?;
        Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await)
    }
}

/// Whether it is our handshake that was answered (RFC 6455, 4.1).
fn check(response: &Response<Body>, key: &str) -> Result<(), ClientError> {
    let has = |name: header::HeaderName, wanted: &str| {
        let value = response.headers().get(&name).and_then(|value| value.to_str().ok());
        value.is_some_and(|value| value.eq_ignore_ascii_case(wanted))
    };
    let accepted = response.headers().get(header::SEC_WEBSOCKET_ACCEPT);
    match () {
        () if !has(header::UPGRADE, "websocket") => Err(ClientError::Upgrade("Upgrade")),
        () if accepted
            .is_none_or(|accepted| accepted.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes()) =>
        {
            Err(ClientError::Upgrade("Sec-WebSocket-Accept"))
        }
        () if response.headers().get(header::SEC_WEBSOCKET_PROTOCOL) != Some(&PLAIN) => {
            Err(ClientError::Upgrade("Sec-WebSocket-Protocol"))
        }
        () => Ok(()),
    }
}
