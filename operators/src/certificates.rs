//! The certificates of the components: one authority, and a Secret for each that needs one.
//!
//! A certificate is renewed when a third of its life is left. The components read their files again when they change. The
//! authority does not change yet.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use thiserror::Error;
use tracing::info;
use vireo_api::names::MANAGED_BY;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::virt_api::agents;

/// The Secret of the authority; KubeVirt's name.
const AUTHORITY: &str = "kubevirt-ca";
/// Seconds that the authority lives.
const AUTHORITY_LIFE: i64 = 10 * 365 * 24 * 60 * 60;
/// Seconds that a certificate lives.
const LIFE: i64 = 90 * 24 * 60 * 60;
/// Clocks may differ by this many seconds.
const SKEW: i64 = 5 * 60;
/// Interval of checks.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// The name of the configurations of webhooks.
pub const WEBHOOK_CONFIGURATION: &str = "virt-api";

/// A certificate that a component has.
#[derive(Debug, Clone, Copy)]
pub struct Certificate {
    /// Its Secret; KubeVirt's name.
    pub secret: &'static str,
    /// Its common name.
    name: &'static str,
    /// The name of the server; none for a client.
    server: Option<&'static str>,
}

/// All of them.
pub const CERTIFICATES: [Certificate; 3] = [VIRT_API, VIRT_HANDLER, VIRT_API_CLIENT];
/// virt-api's, which the API server sees.
pub const VIRT_API: Certificate = Certificate {
    secret: "kubevirt-virt-api-certs",
    name: "virt-api",
    server: Some("virt-api.kubevirt.svc"),
};
/// The node agents', which virt-api sees.
pub const VIRT_HANDLER: Certificate = Certificate {
    secret: "kubevirt-virt-handler-server-certs",
    name: "virt-handler",
    server: Some(agents::SERVER_NAME),
};
/// virt-api's, which the node agents see.
pub const VIRT_API_CLIENT: Certificate =
    Certificate { secret: "kubevirt-virt-handler-certs", name: "virt-api", server: None };

/// Why there are no certificates.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A request to the API server failed.
    #[error("a request to the API server failed")]
    Api(#[from] kube::Error),
    /// A certificate cannot be made.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// A Secret has other data than this program writes.
    #[error("the Secret {0} cannot be read: delete it, and it is made again")]
    Damaged(&'static str),
}

/// A certificate and its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pair {
    certificate: String,
    key: String,
}

/// Makes certificates.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
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

fn authority_params(now: i64) -> CertificateParams {
    let mut params = params(AUTHORITY, now, AUTHORITY_LIFE);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

impl Authority {
    fn make(now: i64) -> Result<Pair, CertificateError> {
        let key = KeyPair::generate()?;
        let certificate = authority_params(now).self_signed(&key)?;
        let key = pem("PRIVATE KEY", &key.serialize_der());
        Ok(Pair { certificate: pem("CERTIFICATE", certificate.der()), key })
    }

    fn of(pair: &Pair) -> Result<Self, CertificateError> {
        let key = PrivatePkcs8KeyDer::from_pem_slice(pair.key.as_bytes());
        let key = key.map_err(|_| CertificateError::Damaged(AUTHORITY))?;
        let issuer = Issuer::new(authority_params(0), KeyPair::try_from(&key)?);
        Ok(Self { certificate: pair.certificate.clone(), issuer })
    }

    fn issue(&self, wanted: Certificate, now: i64) -> Result<Pair, CertificateError> {
        let mut params = params(wanted.name, now, LIFE);
        match wanted.server {
            Some(name) => {
                let names = vec![name.to_owned(), format!("{name}.cluster.local")];
                params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }
            None => params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = pem("PRIVATE KEY", &key.serialize_der());
        Ok(Pair { certificate: pem("CERTIFICATE", certificate.der()), key })
    }
}

/// Whether a certificate is to be made again. `authority` is what its Secret names as its authority.
fn is_due(pair: &Pair, authority: &str, of: &Authority, now: i64) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pair.certificate.as_bytes()) else { return true };
    let Ok((_, certificate)) = X509Certificate::from_der(&der) else { return true };
    let (from, until) =
        (certificate.validity().not_before.timestamp(), certificate.validity().not_after.timestamp());
    let left = until.saturating_sub(now);
    authority != of.certificate || left < until.saturating_sub(from) / 3
}

/// Makes and renews the certificates of the components in a namespace.
#[derive(Clone)]
pub struct Certificates {
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Certificates").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Certificates {
    /// Those in a namespace.
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        Self { client, namespace: namespace.into() }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Checks them once. The certificate of the authority, in PEM, which the API server is to know.
    ///
    /// # Errors
    /// When the API server cannot be reached, or denies it.
    pub async fn reconcile(&self, now: i64) -> Result<String, CertificateError> {
        let authority = self.authority(now).await?;
        for wanted in CERTIFICATES {
            let known = self.secrets().get_opt(wanted.secret).await?;
            let current = known.as_ref().and_then(pair);
            let named = known.as_ref().and_then(|secret| text(secret, "ca.crt")).unwrap_or_default();
            if current.is_none_or(|pair| is_due(&pair, &named, &authority, now)) {
                self.write(wanted.secret, &authority.issue(wanted, now)?, &authority.certificate).await?;
                info!(secret = wanted.secret, "made a certificate");
            }
        }
        Ok(authority.certificate)
    }

    /// Deletes them.
    ///
    /// # Errors
    /// When the API server cannot be reached, or denies it.
    pub async fn delete(&self) -> Result<(), CertificateError> {
        for name in CERTIFICATES.iter().map(|one| one.secret).chain([AUTHORITY]) {
            match self.secrets().delete(name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                deleted => drop(deleted?),
            }
        }
        Ok(())
    }

    async fn authority(&self, now: i64) -> Result<Authority, CertificateError> {
        if let Some(secret) = self.secrets().get_opt(AUTHORITY).await? {
            return Authority::of(&pair(&secret).ok_or(CertificateError::Damaged(AUTHORITY))?);
        }
        let made = Authority::make(now)?;
        let secret = self.secret(AUTHORITY, &made, &made.certificate);
        match self.secrets().create(&PostParams::default(), &secret).await {
            // Another replica was first; its authority is the one.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let secret = self.secrets().get(AUTHORITY).await?;
                Authority::of(&pair(&secret).ok_or(CertificateError::Damaged(AUTHORITY))?)
            }
            created => {
                created?;
                info!(secret = AUTHORITY, "made an authority");
                Authority::of(&made)
            }
        }
    }

    fn secret(&self, name: &str, pair: &Pair, authority: &str) -> Secret {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = [("tls.crt", &*pair.certificate), ("tls.key", &*pair.key), ("ca.crt", authority)];
        Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.namespace.clone()),
                labels: Some([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(data.map(|(key, text)| (key.to_owned(), bytes(text))).into()),
            ..Secret::default()
        }
    }

    async fn write(&self, name: &str, pair: &Pair, authority: &str) -> Result<(), CertificateError> {
        let params = PatchParams::apply(MANAGED_BY.1).force();
        let secret = self.secret(name, pair, authority);
        self.secrets().patch(name, &params, &Patch::Apply(&secret)).await?;
        Ok(())
    }
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok()
}

fn pair(secret: &Secret) -> Option<Pair> {
    Some(Pair { certificate: text(secret, "tls.crt")?, key: text(secret, "tls.key")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn a_certificate_is_renewed_when_a_third_of_its_life_is_left() {
        let authority = Authority::of(&Authority::make(NOW).unwrap()).unwrap();
        let issued = authority.issue(VIRT_API, NOW).unwrap();
        let due = |now| is_due(&issued, &authority.certificate, &authority, now);
        assert_eq!(
            [0, LIFE / 2, LIFE * 3 / 4, LIFE * 2].map(|after| due(NOW + after)),
            [false, false, true, true]
        );
        assert!(is_due(&issued, "another authority", &authority, NOW));
        let nonsense = Pair { certificate: "nonsense".to_owned(), key: String::new() };
        assert!(is_due(&nonsense, &authority.certificate, &authority, NOW));
    }

    #[test]
    fn servers_have_names_and_clients_have_none() {
        let authority = Authority::of(&Authority::make(NOW).unwrap()).unwrap();
        for wanted in CERTIFICATES {
            let issued = authority.issue(wanted, NOW).unwrap();
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
        assert!(Authority::of(&Pair { certificate: String::new(), key: "nonsense".to_owned() }).is_err());
    }
}
