//! The listener: TLS, who is asking, and limits on unauthenticated connections.

mod lingering;
mod timeouts;
mod unauthenticated;

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::response::IntoResponse as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::auth::{PUBLIC, Tokens, User, bearer, user_of_certificate};
use crate::flow_control::{Kept, PriorityLevel};
use crate::http::{self, ApiError, Proxied, Server};
use crate::pki::LiveTls;
use lingering::Lingering;
pub use timeouts::ClientTimeouts;
use unauthenticated::{ConnectionSlot, Connections};

/// The largest head of a request. Unauthenticated clients send them, too.
const MAX_HEAD: usize = 64 << 10;
/// How soon it is tried again when no connection can be taken, as when no file descriptor is left.
const PAUSE: Duration = Duration::from_millis(200);

/// Who is let in.
#[derive(Debug)]
pub struct SecureServing {
    /// TLS with the authority that issues client certificates.
    pub tls: LiveTls,
    /// What others show.
    pub tokens: Arc<Tokens>,
    /// How long they may take.
    pub timeouts: ClientTimeouts,
}

/// Serves until the listener is dropped.
pub async fn serve(listener: TcpListener, serving: SecureServing, server: Arc<Server>) -> io::Result<()> {
    let serving = Arc::new(serving);
    let connections = Connections::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "no connection can be taken");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let acceptor = TlsAcceptor::from(serving.tls.get());
        let (serving, server) = (Arc::clone(&serving), Arc::clone(&server));
        connections.spawn(|slot| async move {
            let slot = Arc::new(slot);
            if let Err(error) = connection(stream, &acceptor, (serving, slot), server).await {
                debug!(error, "a connection ended");
            }
        });
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    (serving, slot): (Arc<SecureServing>, Arc<ConnectionSlot>),
    server: Arc<Server>,
) -> Result<(), String> {
    // Small frames of a console must not wait for each other.
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let timeouts = serving.timeouts;
    // The kernel closes the connection then.
    rustix::net::sockopt::set_tcp_user_timeout(&stream, timeouts.unread())
        .map_err(|error| error.to_string())?;
    let keeping = Arc::new(Kept::default());
    let kept = Arc::downgrade(&keeping);
    let stream = Lingering::over(stream, timeouts.rest()).keeping(keeping);
    let stream = tokio::time::timeout(timeouts.head(), acceptor.accept(stream));
    let stream = stream.await.map_err(|_| "no TLS in time".to_owned())?.map_err(|error| error.to_string())?;
    // Only certificates of our own authority come this far.
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certified = chain.first().and_then(|certificate| user_of_certificate(certificate));
    if certified.is_some() {
        slot.known();
    }
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (serving, slot, server) = (Arc::clone(&serving), Arc::clone(&slot), Arc::clone(&server));
        let (certified, kept) = (certified.clone(), Weak::clone(&kept));
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(timeouts);
            request.extensions_mut().insert(Weak::clone(&kept));
            let path = request.uri().path();
            if let Some(proxy) = server.proxies.iter().find(|proxy| proxy.serves(path)) {
                let Some(Proxied { flow, answer }) = Arc::clone(proxy).answer(request) else {
                    return Ok::<_, Infallible>(ApiError::unauthorized().into_response());
                };
                slot.known();
                return Ok(match server.flow_control.long_running(PriorityLevel::Users, &flow) {
                    Ok(_permit) => answer.await,
                    Err(rejected) => ApiError::from(rejected).closing().into_response(),
                });
            }
            let Some(user) = user(&serving, certified.as_ref(), &request) else {
                return Ok(ApiError::unauthorized().into_response());
            };
            if user != User::anonymous() {
                slot.known();
            }
            Ok(http::answer(server, user, request).await)
        }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.head())
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
        .map_err(|error| error.to_string())
}

/// The user of a request. Unauthenticated requests may only read public paths, whatever roles allow.
fn user(serving: &SecureServing, certified: Option<&User>, request: &Request) -> Option<User> {
    if let Some(user) = certified {
        return Some(user.clone());
    }
    match request.headers().get(header::AUTHORIZATION) {
        None => Some(User::anonymous()).filter(|_| PUBLIC.contains(&request.uri().path())),
        Some(value) => serving.tokens.user_of(bearer(value)?),
    }
}

#[cfg(test)]
mod tests {
    use rustls::ServerConfig;

    use super::*;

    #[test]
    fn invalid_credentials_are_rejected() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::server::ResolvesServerCertUsingSni::new()));
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(crate::store::Store::open(&dir.path().join("store")).unwrap());
        let tokens = Arc::new(Tokens::of_a_test(dir.path(), store));
        let serving = SecureServing { tls: LiveTls::new(tls), tokens, timeouts: ClientTimeouts::default() };
        let request = |path: &str, token: Option<&str>| {
            let request = Request::builder().uri(path);
            let request = match token {
                Some(token) => request.header("Authorization", token),
                None => request,
            };
            request.body(Body::empty()).unwrap()
        };
        for (path, token, certified, expected) in [
            ("/api", None, true, true),
            ("/api", None, false, false),
            ("/version", None, false, true),
            ("/healthz", None, false, true),
            ("/api", Some("Bearer right"), false, true),
            ("/api", Some("bearer right"), false, true),
            ("/api", Some("BEARER  right"), false, true),
            ("/api", Some("Bearer wrong"), false, false),
            ("/api", Some("bearer wrong"), false, false),
            ("/api", Some("Basic right"), false, false),
            ("/api", Some("Bearer "), false, false),
            ("/api", Some("right"), false, false),
            ("/version", Some("Bearer wrong"), false, false),
        ] {
            let certified = certified.then(User::administrator);
            let user = user(&serving, certified.as_ref(), &request(path, token));
            assert_eq!(user.is_some(), expected, "{path} {token:?}");
        }
    }
}
