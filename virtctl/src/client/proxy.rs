//! The way to an upload proxy, which may be another server than that of the kubeconfig.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::tls::Tls;
use super::{ANSWER_LIMIT, ClientError, refused};

/// Read at once.
const PART: usize = 256 << 10;
/// How long it may take to say that an image may come.
const PATIENCE: Duration = Duration::from_secs(3);
const PATH: &str = "/v1beta1/upload";

/// Where images are sent to.
pub(crate) struct Proxy {
    pub(super) tls: Tls,
}

impl Proxy {
    /// For people.
    pub(crate) fn url(&self) -> String {
        self.tls.url()
    }

    /// Sends an image of a length; `tell` learns how much is sent.
    pub(crate) async fn upload(
        &self,
        token: &str,
        (file, length): (File, u64),
        tell: impl FnMut(u64) + Send + 'static,
    ) -> Result<(), ClientError> {
        let failed = |source| ClientError::Server { server: self.tls.url(), source };
        let stream = TcpStream::connect((self.tls.host(), self.tls.port())).await.map_err(failed)?;
        let stream = TokioIo::new(self.tls.connect(stream).await.map_err(failed)?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(ClientError::Http)?;
        let connection = tokio::spawn(connection);
        // Who is refused learns why before anything is sent, and not by a connection that breaks.
        let (go, wait) = oneshot::channel();
        let go = Mutex::new(Some(go));
        // What shrinks or grows meanwhile must not pass for the image that was meant.
        let parts = futures_util::stream::unfold(
            (file.take(length), 0, tell, Some(wait)),
            move |(mut file, sent, mut tell, wait)| async move {
                if let Some(wait) = wait {
                    // A server that knows nothing of this says nothing.
                    let _ = timeout(PATIENCE, wait).await;
                }
                let mut part = Vec::with_capacity(PART);
                match file.read_buf(&mut part).await {
                    Ok(0) if sent < length => {
                        Some((Err(std::io::Error::other("the image shrinks")), (file, sent, tell, None)))
                    }
                    Ok(0) => None,
                    Ok(read) => {
                        let sent = sent + read as u64;
                        tell(sent);
                        Some((Ok(Frame::data(Bytes::from(part))), (file, sent, tell, None)))
                    }
                    Err(error) => Some((Err(error), (file, sent, tell, None))),
                }
            },
        );
        let mut request = Request::post(PATH)
            .header(header::HOST, self.tls.authority())
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(header::CONTENT_LENGTH, length)
            .header(header::EXPECT, "100-continue")
            .body(StreamBody::new(Box::pin(parts)))
            .map_err(ClientError::Request)?;
        hyper::ext::on_informational(&mut request, move |answer| {
            if answer.status() == StatusCode::CONTINUE
                && let Some(go) = go.lock().unwrap_or_else(PoisonError::into_inner).take()
            {
                // Nobody waits any more where this comes late.
                let _ = go.send(());
            }
        });
        let response = sender.send_request(request).await.map_err(ClientError::Http)?;
        let code = response.status();
        let body =
            Limited::new(response.into_body(), ANSWER_LIMIT).collect().await.map_err(ClientError::Body)?;
        connection.abort();
        if code.is_success() { Ok(()) } else { Err(refused(code, &body.to_bytes())) }
    }
}
