//! The way to an API server.

use std::io;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::kubeconfig::{Cluster, ConfigError};

const HTTPS: u16 = 443;

/// A server that is known by its certificate.
pub(crate) struct Tls {
    uri: Uri,
    name: ServerName<'static>,
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
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?
            .with_root_certificates(roots);
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
        Ok(Self { uri, name, config: Arc::new(config), authorization })
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
