//! Authorities, and the certificates that they issue.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{AUTHORITY, Certificate, CertificateError};

/// Clocks may differ by this many seconds.
const SKEW: i64 = 5 * 60;

/// A certificate and its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// When it was made, in seconds since 1970.
    pub(super) made: i64,
    /// When it ends to be valid.
    pub(super) until: i64,
    /// The identifier of its own key, which authorities have.
    own_key: Vec<u8>,
    /// The identifier of the key of its issuer.
    issuer_key: Vec<u8>,
}

impl Facts {
    /// Those of a certificate in PEM; none where it is no certificate.
    pub(super) fn of(certificate: &str) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let validity = certificate.validity();
        let (mut own_key, mut issuer_key) = (Vec::new(), Vec::new());
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(key) => own_key = key.0.to_vec(),
                ParsedExtension::AuthorityKeyIdentifier(issuer) => {
                    issuer_key = issuer.key_identifier.as_ref().map(|key| key.0.to_vec()).unwrap_or_default();
                }
                _ => {}
            }
        }
        Some(Self {
            made: validity.not_before.timestamp().saturating_add(SKEW),
            until: validity.not_after.timestamp(),
            own_key,
            issuer_key,
        })
    }

    /// Whether an authority has issued it.
    pub(super) fn is_issued_by(&self, authority: &Self) -> bool {
        !authority.own_key.is_empty() && self.issuer_key == authority.own_key
    }
}

/// The certificates of a bundle in PEM, each with its lines.
pub(super) fn split(bundle: &str) -> impl Iterator<Item = &str> {
    bundle
        .split_inclusive("-----END CERTIFICATE-----\n")
        .filter(|part| part.starts_with("-----BEGIN CERTIFICATE-----"))
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem + &format!("-----END {label}-----\n")
}

fn params(name: &str, now: i64, life: i64) -> CertificateParams {
    let at = |seconds: i64| std::time::UNIX_EPOCH + Duration::from_secs(seconds.max(0).unsigned_abs());
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = at(now.saturating_sub(SKEW)).into();
    params.not_after = at(now.saturating_add(life)).into();
    params.use_authority_key_identifier_extension = true;
    params
}

fn authority_params(now: i64, life: i64) -> CertificateParams {
    let mut params = params(AUTHORITY, now, life);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// A new authority that lives for `life` seconds.
pub(super) fn make(now: i64, life: i64) -> Result<Pair, CertificateError> {
    let key = KeyPair::generate()?;
    let certificate = authority_params(now, life).self_signed(&key)?;
    let key = pem("PRIVATE KEY", &key.serialize_der());
    Ok(Pair { certificate: pem("CERTIFICATE", certificate.der()), key })
}

/// A new certificate of an authority that lives for `life` seconds.
pub(super) fn issue(
    authority: &Pair,
    wanted: Certificate,
    now: i64,
    life: i64,
) -> Result<Pair, CertificateError> {
    let key = PrivatePkcs8KeyDer::from_pem_slice(authority.key.as_bytes());
    let key = key.map_err(|_| CertificateError::Damaged(AUTHORITY))?;
    // Of the authority's certificate, only the name and the key identifier matter, which are the same for all times.
    let issuer = Issuer::new(authority_params(0, 0), KeyPair::try_from(&key)?);
    let mut params = params(wanted.name, now, life);
    match wanted.server {
        Some(name) => {
            let names = vec![name.to_owned(), format!("{name}.cluster.local")];
            params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        }
        None => params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
    }
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let key = pem("PRIVATE KEY", &key.serialize_der());
    Ok(Pair { certificate: pem("CERTIFICATE", certificate.der()), key })
}

#[cfg(test)]
mod tests {
    use super::super::{CERTIFICATES, VIRT_API};
    use super::*;

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn servers_have_names_and_clients_have_none() {
        let authority = make(NOW, 100).unwrap();
        for wanted in CERTIFICATES {
            let issued = issue(&authority, wanted, NOW, 50).unwrap();
            let der = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
            let (_, certificate) = X509Certificate::from_der(&der).unwrap();
            let usage = certificate.extended_key_usage().unwrap().unwrap().value;
            assert_eq!(
                (usage.server_auth, usage.client_auth),
                (wanted.server.is_some(), wanted.server.is_none())
            );
            let names = certificate.subject_alternative_name().unwrap();
            assert_eq!(names.is_some(), wanted.server.is_some(), "{}", wanted.secret);
        }
        let nonsense = Pair { certificate: String::new(), key: "nonsense".to_owned() };
        assert!(issue(&nonsense, VIRT_API, NOW, 50).is_err());
    }

    #[test]
    fn a_certificate_says_who_issued_it() {
        let (first, second) = (make(NOW, 100).unwrap(), make(NOW, 100).unwrap());
        let facts = |pair: &Pair| Facts::of(&pair.certificate).unwrap();
        let issued = facts(&issue(&first, VIRT_API, NOW, 50).unwrap());
        assert_eq!((issued.made, issued.until), (NOW, NOW + 50));
        assert!(issued.is_issued_by(&facts(&first)));
        assert!(!issued.is_issued_by(&facts(&second)));
        assert_eq!(Facts::of("nonsense"), None);
    }
}
