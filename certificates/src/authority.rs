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
use x509_parser::extensions::{GeneralName, ParsedExtension};
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
    /// The names of its server.
    pub(super) names: Vec<String>,
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
        let (mut names, mut own_key, mut issuer_key) = (Vec::new(), Vec::new(), Vec::new());
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(all) => {
                    names.extend(all.general_names.iter().filter_map(|name| match name {
                        GeneralName::DNSName(name) => Some((*name).to_owned()),
                        _ => None,
                    }));
                }
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
            names,
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

/// The same as what [`issue`] makes, signed by its own key.
pub(super) fn self_signed(wanted: Certificate, now: i64, life: i64) -> Result<Pair, CertificateError> {
    let key = KeyPair::generate()?;
    let certificate = leaf_params(wanted, now, life)?.self_signed(&key)?;
    Ok(Pair {
        certificate: pem("CERTIFICATE", certificate.der()),
        key: pem("PRIVATE KEY", &key.serialize_der()),
    })
}

fn leaf_params(wanted: Certificate, now: i64, life: i64) -> Result<CertificateParams, CertificateError> {
    let (mut params, names) = (params(wanted.name, now, life), wanted.names());
    params.extended_key_usages = match names.is_empty() {
        true => vec![ExtendedKeyUsagePurpose::ClientAuth],
        false => vec![ExtendedKeyUsagePurpose::ServerAuth],
    };
    params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
    Ok(params)
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
    let params = leaf_params(wanted, now, life)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let key = pem("PRIVATE KEY", &key.serialize_der());
    Ok(Pair { certificate: pem("CERTIFICATE", certificate.der()), key })
}

#[cfg(test)]
mod tests {
    use super::super::{
        AGENT_SERVER_NAME, CERTIFICATES, METRICS_SERVER_NAME, VIRT_API, VIRT_API_CLIENT, VIRT_HANDLER,
    };
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
            let is_client = wanted.secret == VIRT_API_CLIENT.secret;
            assert_eq!((usage.server_auth, usage.client_auth), (!is_client, is_client), "{}", wanted.secret);
            let names = Facts::of(&issued.certificate).unwrap().names;
            assert_eq!(names, wanted.names());
            assert_eq!(names.iter().any(|name| name == METRICS_SERVER_NAME), !is_client);
            // No other component may answer as a node agent, or as virt-api.
            let is_agent = names.iter().any(|name| name == AGENT_SERVER_NAME);
            assert_eq!(is_agent, wanted.secret == VIRT_HANDLER.secret);
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
