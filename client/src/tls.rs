//! TLS between Vireo's components: certificates in files that are read again when they change, and an HTTP server.
//!
//! A directory has `tls.crt`, `tls.key` and `ca.crt`, as a Secret of the type `kubernetes.io/tls` is mounted.

mod policy;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::Request;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tracing::{debug, warn};

pub use policy::{TlsPolicy, TlsSettings, is_unavailable};

/// How long a client may take to agree on TLS, and to send the head of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// How soon it is tried again when no connection can be taken.
const PAUSE: Duration = Duration::from_millis(200);
/// The largest number of connections at a time.
const CONNECTIONS: usize = 4096;

/// Why TLS cannot be configured.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The TLS library does not take the certificates.
    #[error("the certificates cannot be used")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> TlsError {
    TlsError::Unusable(Box::new(error))
}

/// The certificate of the client of a connection, which the authority of its clients has issued.
#[derive(Debug, Clone)]
pub struct ClientCertificate(pub Option<CertificateDer<'static>>);

/// Which clients a server takes.
#[derive(Debug, Clone)]
pub enum Clients {
    /// Those with a certificate of the authority in `ca.crt`.
    Certified,
    /// All; none is asked for a certificate.
    Anonymous,
    /// All; certificates that are shown must be of one of these authorities, in PEM.
    Any(Vec<u8>),
}

/// What was made of the files when they had changed last, by the settings of then.
#[derive(Debug)]
struct Current<T> {
    changed: SystemTime,
    settings: TlsSettings,
    config: Arc<T>,
}

/// The certificate files of a component.
#[derive(Debug)]
pub struct TlsFiles<T> {
    directory: PathBuf,
    make: fn(&Path, &Clients, &TlsSettings) -> Result<T, TlsError>,
    clients: Clients,
    policy: TlsPolicy,
    current: Mutex<Option<Current<T>>>,
}

impl TlsFiles<ServerConfig> {
    /// Those of a server.
    pub fn server(directory: PathBuf, clients: Clients, policy: TlsPolicy) -> Self {
        Self { directory, make: server_config, clients, policy, current: Mutex::default() }
    }

    /// The same with a certificate and its key, in PEM, for as long as the directory has none.
    ///
    /// # Errors
    /// When they cannot be used.
    pub fn with_initial(self, certificate: &str, key: &str) -> Result<Self, TlsError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(unusable)?;
        let verifier = verifier(&self.directory, &self.clients)?;
        let settings = self.policy.current();
        let config = Arc::new(server_config_of(verifier, chain.map_err(unusable)?, key, &settings)?);
        let current = Current { changed: SystemTime::UNIX_EPOCH, settings, config };
        Ok(Self { current: Mutex::new(Some(current)), ..self })
    }
}

impl TlsFiles<ClientConfig> {
    /// Those of a client.
    pub fn client(directory: PathBuf) -> Self {
        let policy = TlsPolicy::default();
        Self {
            directory,
            make: client_config,
            clients: Clients::Certified,
            policy,
            current: Mutex::default(),
        }
    }
}

impl<T> TlsFiles<T> {
    /// The configuration of the files as they are now. While new ones cannot be used, that of the former stays.
    ///
    /// # Errors
    /// When none could be used yet.
    pub fn current(&self) -> Result<Arc<T>, TlsError> {
        let path = self.directory.join("tls.crt");
        let changed = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
        let settings = self.policy.current();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &*current
            && current.settings == settings
            && changed.as_ref().is_ok_and(|changed| *changed == current.changed)
        {
            return Ok(Arc::clone(&current.config));
        }
        if let (Err(error), Some(current)) = (&changed, &*current)
            && error.kind() == io::ErrorKind::NotFound
        {
            return Ok(Arc::clone(&current.config));
        }
        let made = (self.make)(&self.directory, &self.clients, &settings);
        match (made, changed, &*current) {
            (Ok(config), Ok(changed), _) => {
                let config = Arc::new(config);
                *current = Some(Current { changed, settings, config: Arc::clone(&config) });
                Ok(config)
            }
            (Ok(config), Err(_), None) => Ok(Arc::new(config)),
            (made, _, Some(current)) => {
                if let Err(error) = made {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot use the new certificate; the former one stays in use"
                    );
                }
                Ok(Arc::clone(&current.config))
            }
            (Err(error), _, None) => Err(error),
        }
    }
}

fn read(path: PathBuf) -> Result<Vec<u8>, TlsError> {
    std::fs::read(&path).map_err(|source| TlsError::Read { path, source: source.into() })
}

fn certificates(path: PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path.clone())?).collect();
    found.map_err(|source| TlsError::Read { path, source: source.into() })
}

fn key(path: PathBuf) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path.clone())?)
        .map_err(|source| TlsError::Read { path, source: source.into() })
}

fn roots(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

fn server_config(
    directory: &Path,
    clients: &Clients,
    settings: &TlsSettings,
) -> Result<ServerConfig, TlsError> {
    let verifier = verifier(directory, clients)?;
    let chain = certificates(directory.join("tls.crt"))?;
    server_config_of(verifier, chain, key(directory.join("tls.key"))?, settings)
}

/// What decides on the certificates of clients.
fn verifier(directory: &Path, clients: &Clients) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = |authorities: Vec<CertificateDer<'static>>| {
        let roots = Arc::new(roots(authorities)?);
        Ok(WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)))
    };
    Ok(match clients {
        Clients::Certified => verifier(certificates(directory.join("ca.crt"))?)?.build().map_err(unusable)?,
        Clients::Anonymous => WebPkiClientVerifier::no_client_auth(),
        Clients::Any(pem) => {
            let authorities: Result<_, _> = CertificateDer::pem_slice_iter(pem).collect();
            let verifier = verifier(authorities.map_err(unusable)?)?.allow_unauthenticated();
            verifier.build().map_err(unusable)?
        }
    })
}

fn server_config_of(
    verifier: Arc<dyn ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    settings: &TlsSettings,
) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(settings.provider()))
        .with_protocol_versions(settings.versions())
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn client_config(directory: &Path, _: &Clients, _: &TlsSettings) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots(certificates(directory.join("ca.crt"))?)?)
        .with_client_auth_cert(certificates(directory.join("tls.crt"))?, key(directory.join("tls.key"))?)
        .map_err(unusable)
}

/// Serves routes over TLS until it is dropped. Requests have a [`ClientCertificate`]; connections may be upgraded.
///
/// # Errors
/// When there is no certificate at the start.
pub async fn serve(
    listener: TcpListener,
    files: Arc<TlsFiles<ServerConfig>>,
    router: Router,
) -> Result<(), TlsError> {
    files.current()?;
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let permit = Arc::clone(&permits).acquire_owned().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "no connection can be taken");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (files, router) = (Arc::clone(&files), router.clone());
        tokio::spawn(async move {
            if let Err(error) = connection(stream, &files, router).await {
                debug!(error, "a connection ended");
            }
            drop(permit);
        });
    }
}

async fn connection(
    stream: TcpStream,
    files: &TlsFiles<ServerConfig>,
    router: Router,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Small frames of a console must not wait for each other.
    stream.set_nodelay(true)?;
    let acceptor = TlsAcceptor::from(files.current()?);
    let accepted = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await;
    let stream = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificate = ClientCertificate(chain.first().map(|certificate| certificate.clone().into_owned()));
    let service = router.map_request(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(certificate.clone());
        request
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .with_upgrades()
        .await?;
    Ok(())
}
