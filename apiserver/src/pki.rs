//! The certificate authority of one server: what it proves itself with, and what it gives its administrator.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;

use crate::auth::{ADMINISTRATORS, User};
use crate::files::{FileError, write_atomically};
use crate::pem::pem;

/// The name of the authority. It must be unique: OpenSSL identifies issuers by name.
const NAME: &str = "vireo-ca";

/// Why certificates cannot be read or made.
#[derive(Debug, Error)]
pub enum PkiError {
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] FileError),
    /// A file cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// The TLS library does not take them.
    #[error("the certificates cannot be used")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// The authority.
#[derive(Debug)]
pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    // There is no rotation: state and certificates are created and removed together.
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2124, 1, 1);
    params.use_authority_key_identifier_extension = true;
    params
}

impl Authority {
    /// Reads the authority of a directory, or makes it.
    ///
    /// # Errors
    /// When its files cannot be read or written.
    pub fn of(directory: &Path) -> Result<Self, PkiError> {
        let (key_path, certificate_path) = (directory.join("ca.key"), directory.join("ca.crt"));
        if !certificate_path.exists() {
            let key = KeyPair::generate()?;
            let mut authority = params(NAME);
            authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
            let certificate = authority.self_signed(&key)?;
            // The certificate last: where it is, the key is.
            write_atomically(&key_path, pem("PRIVATE KEY", &key.serialize_der()).as_bytes())?;
            write_atomically(&certificate_path, pem("CERTIFICATE", certificate.der()).as_bytes())?;
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| PkiError::Read { path, source }
        };
        let key = PrivatePkcs8KeyDer::from_pem_file(&key_path).map_err(failed(&key_path))?;
        let key = KeyPair::try_from(&key)?;
        let certificate =
            CertificateDer::from_pem_file(&certificate_path).map_err(failed(&certificate_path))?;
        let mut authority = params(NAME);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self { certificate, issuer: Issuer::new(authority, key) })
    }

    /// Its certificate, as PEM.
    pub fn certificate(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    /// A certificate for an administrator.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn administrator(&self) -> Result<Identity, PkiError> {
        let mut who = params(&User::administrator().name);
        who.distinguished_name.push(DnType::OrganizationName, ADMINISTRATORS);
        who.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = who.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: pem("PRIVATE KEY", &key.serialize_der()),
        })
    }

    /// The TLS configuration of a server with these names and addresses; clients may authenticate with a certificate of this authority.
    ///
    /// # Errors
    /// When the certificate cannot be made.
    pub fn server(&self, names: &[String], addresses: &[IpAddr]) -> Result<ServerConfig, PkiError> {
        let tls = |error: &dyn std::error::Error| PkiError::Tls(error.to_string().into());
        let mut server = params("vireo");
        let names = names.iter().cloned().chain(addresses.iter().map(ToString::to_string));
        // rcgen distinguishes addresses from names.
        server.subject_alt_names = CertificateParams::new(names.collect::<Vec<_>>())?.subject_alt_names;
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &self.issuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(|error| tls(&error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| tls(&error))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls(&error))?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone()], key)
            .map_err(|error| tls(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_made_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let first = Authority::of(dir.path()).unwrap();
        let second = Authority::of(dir.path()).unwrap();
        assert_eq!(first.certificate(), second.certificate());
        assert!(second.administrator().unwrap().certificate.starts_with("-----BEGIN CERTIFICATE-----\n"));
        second.server(&["localhost".to_owned()], &[IpAddr::from([127, 0, 0, 1])]).unwrap();
        std::fs::write(dir.path().join("ca.key"), "nonsense").unwrap();
        assert!(Authority::of(dir.path()).is_err());
    }
}
