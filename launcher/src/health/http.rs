//! One GET, of whose answer only the head is read.

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{HeaderMap, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use url::Url;
use vireo_proto::launcher::probe_request::HttpGet;

use super::dns::Names;
use super::{Failure, Target, dial, tls};
use crate::fault::chain;

/// Bytes of an answer's head.
const HEAD: usize = 64 << 10;
/// Redirections in a row.
const REDIRECTIONS: usize = 10;
/// What servers know the probes of Kubernetes by.
const AGENT: &str = "kube-probe/vireo";

/// The request to send.
#[derive(Debug)]
pub(super) struct Request {
    url: Url,
    headers: HeaderMap,
}

impl TryFrom<HttpGet> for Request {
    type Error = String;

    fn try_from(get: HttpGet) -> Result<Self, String> {
        let to = Target::try_from(&get.to.unwrap_or_default())?;
        let scheme = if get.tls { "https" } else { "http" };
        let url = Url::parse(&format!("{scheme}://{}:{}{}", to.host, to.port, get.path));
        let url = url.map_err(|error| format!("invalid path {:?}: {error}", get.path))?;
        if target(&url) != Some(to) {
            return Err(format!("invalid path {:?}", get.path));
        }
        let mut headers = HeaderMap::new();
        for header in &get.headers {
            let name = HeaderName::from_bytes(header.name.as_bytes());
            let value = HeaderValue::from_bytes(header.value.as_bytes());
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(format!("invalid header {:?}", header.name));
            };
            headers.append(name, value);
        }
        Ok(Self { url, headers })
    }
}

/// Whether it is answered with 200 to 399. The caller has a deadline.
pub(super) async fn get(request: Request, names: &Names) -> Result<(), Failure> {
    let Request { mut url, headers } = request;
    for _ in 0..=REDIRECTIONS {
        let answer = once(&url, &headers, names).await?;
        match redirection(&url, &answer) {
            Some(next) => url = next,
            None if (200..400).contains(&answer.status().as_u16()) => return Ok(()),
            None => return Err(format!("HTTP probe failed with statuscode: {}", answer.status().as_u16())),
        }
    }
    Err(format!("stopped after {REDIRECTIONS} redirects"))
}

/// The target of a redirection to the same host.
fn redirection<B>(from: &Url, answer: &Response<B>) -> Option<Url> {
    let sends = [
        StatusCode::MOVED_PERMANENTLY,
        StatusCode::FOUND,
        StatusCode::SEE_OTHER,
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ];
    let location = answer.headers().get(LOCATION).filter(|_| sends.contains(&answer.status()))?;
    let next = from.join(location.to_str().ok()?).ok()?;
    (matches!(next.scheme(), "http" | "https") && next.host() == from.host()).then_some(next)
}

/// One answer, and where it leads to.
#[cfg(any(test, fuzzing))]
pub(super) async fn fuzz(stream: tokio::io::DuplexStream) {
    let url = Url::parse("http://10.0.2.2:80/healthz?a=b").expect("a URL");
    let Ok(answer) = exchange(stream, &url, &HeaderMap::new()).await else { return };
    if let Some(next) = redirection(&url, &answer) {
        assert_eq!(next.host(), url.host(), "it leads to another host");
        let _ = target(&next);
    }
}

fn target(url: &Url) -> Option<Target> {
    Some(Target { host: url.host()?.to_owned(), port: url.port_or_known_default()? })
}

async fn once(
    url: &Url,
    headers: &HeaderMap,
    names: &Names,
) -> Result<Response<hyper::body::Incoming>, Failure> {
    let target = target(url).ok_or("the URL has no host")?;
    let stream = dial(&target, names).await?;
    if url.scheme() == "https" {
        let connected = tls::connect(&target.host, stream).await;
        exchange(connected.map_err(|error| format!("cannot agree on TLS: {error}"))?, url, headers).await
    } else {
        exchange(stream, url, headers).await
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    url: &Url,
    headers: &HeaderMap,
) -> Result<Response<hyper::body::Incoming>, Failure> {
    let broken = |error: hyper::Error| format!("no HTTP answer: {}", chain(&error));
    let mut builder = http1::Builder::new();
    let (mut sender, connection) =
        builder.max_buf_size(HEAD).handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let target = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let mut request = hyper::Request::get(target)
        .body(Empty::<Bytes>::new())
        .map_err(|error| format!("no request can be made: {}", chain(&error)))?;
    let host = HeaderValue::from_str(url.authority()).map_err(|error| error.to_string())?;
    let own = [(HOST, host), (USER_AGENT, HeaderValue::from_static(AGENT))];
    let own = own.into_iter().chain([(ACCEPT, HeaderValue::from_static("*/*"))]);
    request.headers_mut().extend(own.filter(|(name, _)| !headers.contains_key(name)));
    request.headers_mut().extend(headers.clone());
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(sender.send_request(request));
    tokio::select! {
        biased;
        answer = &mut answer => answer.map_err(broken),
        // What was answered before it ended counts.
        ended = &mut connection => answer.await.map_err(|error| broken(ended.err().unwrap_or(error))),
    }
}
