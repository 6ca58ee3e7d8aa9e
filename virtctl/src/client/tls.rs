//! The way to an API server.

mod anyone;

use std::io;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::kubeconfig::{Cluster, ConfigError};

const HTTPS: u16 = 443;

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

/// A server that is known by its certificate.
pub(crate) struct Tls {
    uri: Uri,
    name: ServerName<'static>,
    roots: Arc<RootCertStore>,
    config: Arc<ClientConfig>,
    authorization: Option<HeaderValue>,
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    read.map_err(|error| ConfigError::Certificates(error.to_string()))
}

impl Tls {
    /// Makes ready what a kubeconfig says.
    pub(crate) fn of(cluster: Cluster) -> Result<Self, ConfigError> {
        let unusable = |error: &dyn std::error::Error| ConfigError::Certificates(error.to_string());
        let uri: Uri =
            cluster.url.parse().map_err(|_| ConfigError::Cluster("has a server that is no URL"))?;
        if uri.scheme_str() != Some("https") {
            return Err(ConfigError::Cluster("has a server that is not at https://"));
        }
        if uri.path() != "/" {
            return Err(ConfigError::Cluster("has a server below a path, which virtctl does not know"));
        }
        let host = uri.host().ok_or(ConfigError::Cluster("has a server without a host"))?;
        let name = cluster.server_name.unwrap_or_else(|| bare(host).to_owned());
        let name = ServerName::try_from(name).map_err(|error| unusable(&error))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(&cluster.authority)? {
            roots.add(root).map_err(|error| unusable(&error))?;
        }
        let roots = Arc::new(roots);
        let config = builder().map_err(|error| unusable(&error))?.with_root_certificates(Arc::clone(&roots));
        let config = match cluster.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| unusable(&error))?;
                config
                    .with_client_auth_cert(certificates(&certificate)?, key)
                    .map_err(|error| unusable(&error))?
            }
        };
        let authorization = match cluster.token {
            None => None,
            Some(token) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                    .map_err(|_| ConfigError::Certificates("the token has odd characters".to_owned()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self { uri, name, roots, config: Arc::new(config), authorization })
    }

    /// The way to another server, for which the same authority vouches, or nobody if that is not asked for. It is not
    /// told who one is.
    pub(crate) fn elsewhere(&self, url: &str, insecure: bool) -> Result<Self, ConfigError> {
        let wrong = |why: &str| ConfigError::Proxy { url: url.to_owned(), why: why.to_owned() };
        let whole = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
        let uri: Uri = whole.parse().map_err(|_| wrong("is no URL"))?;
        if uri.scheme_str() != Some("https") || uri.path() != "/" || uri.query().is_some() {
            return Err(wrong("is not of the form https://host:port"));
        }
        let host = uri.host().ok_or_else(|| wrong("has no host"))?;
        let name = match uri.authority() == self.uri.authority() {
            true => self.name.clone(),
            false => {
                ServerName::try_from(bare(host).to_owned()).map_err(|error| wrong(&error.to_string()))?
            }
        };
        let builder = builder().map_err(|error| wrong(&error.to_string()))?;
        let config = match insecure {
            false => builder.with_root_certificates(Arc::clone(&self.roots)).with_no_client_auth(),
            true => {
                let whoever = Arc::new(anyone::Anyone::new());
                builder.dangerous().with_custom_certificate_verifier(whoever).with_no_client_auth()
            }
        };
        Ok(Self { uri, name, roots: Arc::clone(&self.roots), config: Arc::new(config), authorization: None })
    }

    /// For people.
    pub(crate) fn url(&self) -> String {
        self.uri.to_string()
    }

    /// Where to connect to.
    pub(crate) fn host(&self) -> &str {
        bare(self.uri.host().unwrap_or_default())
    }

    /// Where to connect to.
    pub(crate) fn port(&self) -> u16 {
        self.uri.port_u16().unwrap_or(HTTPS)
    }

    /// Host and port as requests name them.
    pub(crate) fn authority(&self) -> String {
        self.uri.authority().map(ToString::to_string).unwrap_or_default()
    }

    /// What lets one in beside a certificate.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        self.authorization.clone()
    }

    /// Agrees on TLS.
    pub(crate) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsConnector::from(Arc::clone(&self.config)).connect(self.name.clone(), stream).await
    }
}

/// An IPv6 address without the brackets that a URL needs.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
