//! Authorities, and the certificates that they issue.

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::Error;

/// Clocks may differ by this many seconds.
const SKEW: i64 = 5 * 60;

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Pair {
    fn new(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: pem("PRIVATE KEY", &key.serialize_der()),
        }
    }

    /// Whether the key is that of the certificate.
    pub fn is_consistent(&self) -> bool {
        let key = PrivatePkcs8KeyDer::from_pem_slice(self.key.as_bytes());
        let Some(key) = key.ok().and_then(|key| KeyPair::try_from(&key).ok()) else { return false };
        let Ok(der) = CertificateDer::from_pem_slice(self.certificate.as_bytes()) else { return false };
        let certificate = X509Certificate::from_der(&der);
        certificate
            .is_ok_and(|(_, certificate)| certificate.public_key().raw == key.subject_public_key_info())
    }
}

/// Who a certificate is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The common name: of a client, the name of the user.
    pub name: String,
    /// Organizations: of a client, the groups of the user.
    pub organizations: Vec<String>,
    /// Names and addresses of a server; none for a client.
    pub names: Vec<String>,
}

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// When it was made, in seconds since 1970.
    pub made: i64,
    /// When it ends to be valid.
    pub until: i64,
    /// The names and addresses of its server.
    pub names: Vec<String>,
    /// The identifier of its own key, which authorities have.
    own_key: Vec<u8>,
    /// The identifier of the key of its issuer.
    issuer_key: Vec<u8>,
}

impl Facts {
    /// Those of a certificate in PEM; none where it is no certificate.
    pub fn of(certificate: &str) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let validity = certificate.validity();
        let (mut names, mut own_key, mut issuer_key) = (Vec::new(), Vec::new(), Vec::new());
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(all) => {
                    names.extend(all.general_names.iter().filter_map(|name| match name {
                        GeneralName::DNSName(name) => Some((*name).to_owned()),
                        GeneralName::IPAddress(address) => address_text(address),
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

    /// Those of each certificate in a text.
    pub fn all(text: &str) -> impl Iterator<Item = Self> {
        split(text).filter_map(Self::of)
    }

    /// Whether an authority has issued it.
    pub fn is_issued_by(&self, authority: &Self) -> bool {
        !authority.own_key.is_empty() && self.issuer_key == authority.own_key
    }
}

fn address_text(bytes: &[u8]) -> Option<String> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|address| address.to_string())
}

/// The certificates of a bundle in PEM, each with its lines.
pub fn split(bundle: &str) -> impl Iterator<Item = &str> {
    bundle
        .split_inclusive("-----END CERTIFICATE-----\n")
        .filter(|part| part.starts_with("-----BEGIN CERTIFICATE-----"))
}

/// Bytes as PEM (RFC 7468).
pub fn pem(label: &str, der: &[u8]) -> String {
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

fn authority_params(name: &str, now: i64, life: i64) -> CertificateParams {
    let mut params = params(name, now, life);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// A new authority that lives for `life` seconds.
pub(crate) fn make(name: &str, now: i64, life: i64) -> Result<Pair, Error> {
    let key = KeyPair::generate()?;
    Ok(Pair::new(&authority_params(name, now, life).self_signed(&key)?, &key))
}

/// A certificate that no authority has issued, and lives for `life` seconds.
///
/// # Errors
/// When none can be made.
pub fn self_signed(wanted: &Subject, now: i64, life: i64) -> Result<Pair, Error> {
    let key = KeyPair::generate()?;
    Ok(Pair::new(&leaf_params(wanted, now, life)?.self_signed(&key)?, &key))
}

fn leaf_params(wanted: &Subject, now: i64, life: i64) -> Result<CertificateParams, Error> {
    let mut params = params(&wanted.name, now, life);
    for organization in &wanted.organizations {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    params.extended_key_usages = match wanted.names.is_empty() {
        true => vec![ExtendedKeyUsagePurpose::ClientAuth],
        false => vec![ExtendedKeyUsagePurpose::ServerAuth],
    };
    params.subject_alt_names = CertificateParams::new(wanted.names.clone())?.subject_alt_names;
    Ok(params)
}

/// A new certificate of an authority that lives for `life` seconds.
pub(crate) fn issue(
    (name, authority): (&str, &Pair),
    wanted: &Subject,
    now: i64,
    life: i64,
) -> Result<Pair, Error> {
    let key = PrivatePkcs8KeyDer::from_pem_slice(authority.key.as_bytes()).map_err(|_| Error::Key)?;
    // Of the authority's certificate, only the name and the key identifier matter, which are the same for all times.
    let issuer = Issuer::new(authority_params(name, 0, 0), KeyPair::try_from(&key)?);
    let params = leaf_params(wanted, now, life)?;
    let key = KeyPair::generate()?;
    Ok(Pair::new(&params.signed_by(&key, &issuer)?, &key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn server() -> Subject {
        let names = ["a.example", "127.0.0.1", "::1"].map(str::to_owned).into();
        Subject { name: "a".to_owned(), organizations: Vec::new(), names }
    }

    #[test]
    fn servers_have_names_and_clients_have_groups() {
        let authority = make("ca", NOW, 100).unwrap();
        let client =
            Subject { name: "b".to_owned(), organizations: vec!["group".to_owned()], names: Vec::new() };
        for wanted in [server(), client] {
            let issued = issue(("ca", &authority), &wanted, NOW, 50).unwrap();
            let der = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
            let (_, certificate) = X509Certificate::from_der(&der).unwrap();
            let usage = certificate.extended_key_usage().unwrap().unwrap().value;
            let is_client = wanted.names.is_empty();
            assert_eq!((usage.server_auth, usage.client_auth), (!is_client, is_client), "{wanted:?}");
            let groups = certificate.subject().iter_organization().map(|group| group.as_str().unwrap());
            assert_eq!(groups.collect::<Vec<_>>(), wanted.organizations);
            assert_eq!(Facts::of(&issued.certificate).unwrap().names, wanted.names);
        }
        let nonsense = Pair { certificate: String::new(), key: "nonsense".to_owned() };
        assert!(matches!(issue(("ca", &nonsense), &server(), NOW, 50), Err(Error::Key)));
    }

    #[test]
    fn a_certificate_says_who_issued_it() {
        let (first, second) = (make("ca", NOW, 100).unwrap(), make("ca", NOW, 100).unwrap());
        let facts = |pair: &Pair| Facts::of(&pair.certificate).unwrap();
        let issued = facts(&issue(("ca", &first), &server(), NOW, 50).unwrap());
        assert_eq!((issued.made, issued.until), (NOW, NOW + 50));
        assert!(issued.is_issued_by(&facts(&first)));
        assert!(!issued.is_issued_by(&facts(&second)));
        assert_eq!(Facts::of("nonsense"), None);
    }
}
