//! The upload proxy, which may be another server than that of the kubeconfig. It does not go by [`kube::Client`], which
//! sends no body in parts.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Frame};
use hyper::{Request, StatusCode, Uri, header};
use kube::Config;
use kube::config::AuthInfo;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::config::proxy_of_environment;
use super::error::{ClientError, refused, unreachable_or_failed};
use super::http::{Http, http};
use super::whole;

/// Read at once.
const PART: usize = 256 << 10;
/// How long the upload proxy may take to accept an image.
const PATIENCE: Duration = Duration::from_secs(3);
const PATH: &str = "/v1beta1/upload";

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Where images are sent to.
pub(crate) struct Proxy {
    uri: Uri,
    http: Http<Body>,
}

impl Proxy {
    /// One whose certificate the server's authorities sign. It gets none of the user's credentials.
    pub(super) fn new(server: &Config, url: &str, insecure: bool) -> Result<Self, ClientError> {
        let wrong = |why: &str| ClientError::Proxy { url: url.to_owned(), why: why.to_owned() };
        let whole = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
        let uri: Uri = whole.parse().map_err(|_| wrong("is not a valid URL"))?;
        if uri.scheme_str() != Some("https") || uri.path() != "/" || uri.query().is_some() {
            return Err(wrong("is not of the form https://host:port"));
        }
        let mut config = server.clone();
        config.auth_info = AuthInfo::default();
        if uri.authority() != server.cluster_url.authority() {
            (config.tls_server_name, config.accept_invalid_certs) = (None, false);
            config.proxy_url = proxy_of_environment(&uri)?;
        }
        if insecure {
            (config.accept_invalid_certs, config.root_cert) = (true, Some(Vec::new()));
        }
        let http = http(&config).map_err(|error| ClientError::Unusable(Box::new(error)))?;
        Ok(Self { uri, http })
    }

    /// For people.
    pub(crate) fn url(&self) -> String {
        self.uri.to_string()
    }

    /// Sends an image of a length; `report` is called with the number of bytes sent.
    pub(crate) async fn upload(
        &self,
        token: &str,
        (file, length): (File, u64),
        report: impl FnMut(u64) + Send + 'static,
    ) -> Result<(), ClientError> {
        // A rejected upload gets its error before anything is sent, instead of a broken connection.
        let (go, wait) = oneshot::channel();
        let go = Mutex::new(Some(go));
        // What shrinks or grows meanwhile must not pass for the image that was meant.
        let parts = futures_util::stream::unfold(
            (file.take(length), 0, report, Some(wait)),
            move |(mut file, sent, mut report, wait)| async move {
                if let Some(wait) = wait {
                    // A server without support for this does not respond.
                    let _ = timeout(PATIENCE, wait).await;
                }
                let mut chunk = Vec::with_capacity(PART);
                match file.read_buf(&mut chunk).await {
                    Ok(0) if sent < length => {
                        Some((Err(std::io::Error::other("the image shrinks")), (file, sent, report, None)))
                    }
                    Ok(0) => None,
                    Ok(read) => {
                        let sent = sent + read as u64;
                        report(sent);
                        Some((Ok(Frame::data(Bytes::from(chunk))), (file, sent, report, None)))
                    }
                    Err(error) => Some((Err(error), (file, sent, report, None))),
                }
            },
        );
        let mut request = Request::post(format!("{}{PATH}", self.url().trim_end_matches('/')))
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(header::CONTENT_LENGTH, length)
            .header(header::EXPECT, "100-continue")
            .body(Body::new(StreamBody::new(Box::pin(parts))))
            .map_err(ClientError::Request)?;
        hyper::ext::on_informational(&mut request, move |answer| {
            if answer.status() == StatusCode::CONTINUE
                && let Some(go) = go.lock().unwrap_or_else(PoisonError::into_inner).take()
            {
                // The receiver may be gone.
                let _ = go.send(());
            }
        });
        let sent = self.http.clone().oneshot(request).await;
        let reported = sent.map_err(|error| unreachable_or_failed(&self.uri, error))?;
        let code = reported.status();
        let body = whole(reported).await?;
        if code.is_success() { Ok(()) } else { Err(refused(code, &body)) }
    }
}
