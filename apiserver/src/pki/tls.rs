//! TLS of a server whose certificates change.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::{Current, PkiError};

/// The TLS configuration for connections that begin now. Clones are the same.
#[derive(Debug, Clone)]
pub struct LiveTls(Arc<RwLock<Arc<ServerConfig>>>);

impl LiveTls {
    /// With this configuration until there is another.
    pub fn new(config: ServerConfig) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(config))))
    }

    /// Connections that begin from now on get this one.
    pub fn set(&self, config: ServerConfig) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    pub(crate) fn get(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Current {
    /// The TLS configuration of the server; clients may authenticate with a certificate of every authority that is trusted.
    ///
    /// # Errors
    /// When the TLS library does not take the certificates.
    pub fn server_config(&self) -> Result<ServerConfig, PkiError> {
        let tls = |error: &dyn std::error::Error| PkiError::Tls(error.to_string().into());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.authorities.bundle().as_bytes()) {
            let certificate = certificate.map_err(|error| tls(&error))?;
            roots.add(certificate).map_err(|error| tls(&error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| tls(&error))?;
        let certificate = CertificateDer::from_pem_slice(self.server.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.server.key.as_bytes());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls(&error))?
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![certificate.map_err(|error| tls(&error))?],
                key.map_err(|error| tls(&error))?,
            )
            .map_err(|error| tls(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}
