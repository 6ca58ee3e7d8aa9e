//! The HTTP client below [`kube::Client`]. It is put together of kube's layers, as kube's own does not set `TCP_NODELAY`:
//! without it, keys typed at a console wait for the acknowledgement of earlier ones.

use std::error::Error;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::HeaderValue;
use hyper::rt::{Read, Write};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::ConfigExt as _;
use percent_encoding::percent_decode_str;
use tower::timeout::TimeoutLayer;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder, ServiceExt as _};

/// What a service may fail with.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Sends requests whose URI is absolute.
pub(super) type Http<B> = BoxCloneSyncService<Request<B>, Response<Incoming>, BoxError>;

/// A client of a server: its URL, credentials and impersonation added to every request.
pub(super) fn client(config: &Config) -> kube::Result<kube::Client> {
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .service(http(config)?);
    Ok(kube::Client::new(service, config.default_namespace.as_str()))
}

/// Connections by the configuration's proxy, authorities and client certificate.
pub(super) fn http<B>(config: &Config) -> kube::Result<Http<B>>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let Some(proxy) = config.proxy_url.clone() else { return over(tcp, config) };
    match proxy.scheme_str() {
        Some("socks5") => over(SocksV5::new(proxy, tcp), config),
        Some("http") => over(tunnel(proxy, tcp), config),
        Some("https") => over(tunnel(proxy, config.rustls_https_connector_with_connector(tcp)?), config),
        _ => Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy) }),
    }
}

fn over<C, B>(connector: C, config: &Config) -> kube::Result<Http<B>>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let limit = config.connect_timeout.map(TimeoutLayer::new);
    let connector = BoxCloneSyncService::new(ServiceBuilder::new().option_layer(limit).service(connector));
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    Ok(BoxCloneSyncService::new(client.map_err(Into::into)))
}

/// A tunnel through an HTTP proxy, with the user of its URL.
fn tunnel<C>(proxy: Uri, connector: C) -> Tunnel<C> {
    let user = proxy.authority().and_then(|authority| authority.as_str().rsplit_once('@'));
    let user = user.map(|(user, _)| STANDARD.encode(percent_decode_str(user).collect::<Vec<u8>>()));
    let value = user.and_then(|user| HeaderValue::from_str(&format!("Basic {user}")).ok());
    let tunnel = Tunnel::new(proxy, connector);
    match value {
        Some(value) => tunnel.with_auth(value),
        None => tunnel,
    }
}
