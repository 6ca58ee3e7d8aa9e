//! The certificates of the components: an authority, and a Secret for each component that needs one.
//!
//! The components read their files again when they change.

mod strategy;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use thiserror::Error;
use tracing::{info, warn};
use vireo_api::names::MANAGED_BY;

pub use vireo_certificates::Lifetime;
use vireo_certificates::{Authorities, Change, Pair, Rotation, Subject};

pub use self::strategy::Strategy;

/// The Secret of the authority; KubeVirt's name.
const AUTHORITY: &str = "kubevirt-ca";
/// Keys of its Secret: the authority that is announced, beside the one that issues.
const NEXT: (&str, &str) = ("next.crt", "next.key");
/// Seconds until the components have read what a Secret says: the kubelet writes changes into the files of a Pod within some
/// two minutes.
const PROPAGATION: i64 = 4 * 60;
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
    /// The name of the server; none for a client, and for a server of metrics alone.
    server: Option<&'static str>,
    /// Whether it is that of a server of metrics.
    has_metrics: bool,
}

impl Certificate {
    /// The names of the server.
    fn names(&self) -> Vec<String> {
        let own = self.server.into_iter().flat_map(|name| [name.to_owned(), format!("{name}.cluster.local")]);
        own.chain(self.has_metrics.then(|| METRICS_SERVER_NAME.to_owned())).collect()
    }

    fn subject(&self) -> Subject {
        Subject { name: self.name.to_owned(), organizations: Vec::new(), names: self.names() }
    }
}

/// All of them.
pub const CERTIFICATES: [Certificate; 5] =
    [VIRT_API, VIRT_HANDLER, VIRT_API_CLIENT, VIRT_CONTROLLER, VIRT_OPERATOR];
/// The name of each server of metrics in its certificate: Prometheus asks all of them by one name, that of their Service.
pub const METRICS_SERVER_NAME: &str = "kubevirt-prometheus-metrics.kubevirt.svc";
/// virt-api's, which the API server sees.
pub const VIRT_API: Certificate = Certificate {
    secret: "kubevirt-virt-api-certs",
    name: "virt-api",
    server: Some("virt-api.kubevirt.svc"),
    has_metrics: true,
};
/// The server name of node agents in their certificates.
pub const AGENT_SERVER_NAME: &str = "virt-handler.kubevirt.svc";
/// The node agents', which virt-api sees.
pub const VIRT_HANDLER: Certificate = Certificate {
    secret: "kubevirt-virt-handler-server-certs",
    name: "virt-handler",
    server: Some(AGENT_SERVER_NAME),
    has_metrics: true,
};
/// virt-api's, which the node agents see.
pub const VIRT_API_CLIENT: Certificate =
    Certificate { secret: "kubevirt-virt-handler-certs", name: "virt-api", server: None, has_metrics: false };
/// virt-controller's, which Prometheus sees.
pub const VIRT_CONTROLLER: Certificate = Certificate {
    secret: "kubevirt-controller-certs",
    name: "virt-controller",
    server: None,
    has_metrics: true,
};
/// virt-operator's, which Prometheus sees.
pub const VIRT_OPERATOR: Certificate =
    Certificate { secret: "kubevirt-operator-certs", name: "virt-operator", server: None, has_metrics: true };

/// Why certificates cannot be read or issued.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A request to the API server failed.
    #[error("a request to the API server failed")]
    Api(#[from] kube::Error),
    /// A certificate cannot be made.
    #[error(transparent)]
    Make(#[from] vireo_certificates::Error),
    /// A Secret has other data than this program writes.
    #[error("the Secret {0} cannot be read: delete it, and it is made again")]
    Damaged(&'static str),
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

    /// Checks them once. The certificates of the authorities, in PEM, which the API server is to know.
    ///
    /// # Errors
    /// When the API server cannot be reached, or denies it.
    pub async fn reconcile(&self, strategy: Strategy, now: i64) -> Result<String, CertificateError> {
        let mut known = Vec::new();
        for wanted in CERTIFICATES {
            known.push((wanted, self.secrets().get_opt(wanted.secret).await?));
        }
        let in_use: Vec<Option<String>> =
            known.iter().map(|(_, secret)| Some(pair(secret.as_ref()?)?.certificate)).collect();
        let authorities = self.authorities(&in_use, strategy.authority, now).await?;
        let bundle = authorities.bundle();
        for (wanted, secret) in known {
            let current = secret.as_ref().and_then(pair);
            let is_valid =
                |pair: &Pair| !authorities.is_due(&pair.certificate, &wanted.subject(), strategy.server, now);
            let valid = current.filter(is_valid);
            let is_new = valid.is_none();
            let trusted = secret.as_ref().and_then(|secret| text(secret, "ca.crt"));
            if !is_new && trusted.as_deref() == Some(bundle.as_str()) {
                continue;
            }
            let pair = match valid {
                Some(pair) => pair,
                None => authorities.issue(&wanted.subject(), strategy.server, now)?,
            };
            self.write(wanted.secret, data(&pair, &bundle)).await?;
            if is_new {
                info!(secret = wanted.secret, "made a certificate");
            }
        }
        Ok(bundle)
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

    /// The authorities, after at most one step of their rotation.
    async fn authorities(
        &self,
        in_use: &[Option<String>],
        lifetime: Lifetime,
        now: i64,
    ) -> Result<Authorities, CertificateError> {
        let Some(secret) = self.secrets().get_opt(AUTHORITY).await? else {
            let made = Authorities::make(AUTHORITY, lifetime, now)?;
            let secret = self.secret(AUTHORITY, authority_data(&made));
            // One virt-operator works at a time.
            self.secrets().create(&PostParams::default(), &secret).await?;
            info!(secret = AUTHORITY, "made an authority");
            return Ok(made);
        };
        let mut authorities = stored(&secret).ok_or(CertificateError::Damaged(AUTHORITY))?;
        if let Some(change) = authorities.rotate(in_use, rotation(lifetime), now)? {
            self.write(AUTHORITY, authority_data(&authorities)).await?;
            match change {
                Change::Made => warn!(secret = AUTHORITY, "the authority had ended: made another one"),
                Change::Announced => info!(secret = AUTHORITY, "announced the next authority"),
                Change::Issues => info!(secret = AUTHORITY, "the next authority issues certificates"),
                Change::Forgot => info!(secret = AUTHORITY, "the former authority is no longer trusted"),
            }
        }
        Ok(authorities)
    }

    fn secret(&self, name: &str, data: Data) -> Secret {
        Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.namespace.clone()),
                labels: Some([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(data),
            ..Secret::default()
        }
    }

    async fn write(&self, name: &str, data: Data) -> Result<(), CertificateError> {
        let params = PatchParams::apply(MANAGED_BY.1).force();
        let secret = self.secret(name, data);
        self.secrets().patch(name, &params, &Patch::Apply(&secret)).await?;
        Ok(())
    }
}

/// A certificate that no authority has issued, and its key, in PEM: for a server whose clients need none that they know, such
/// as the kubelet.
///
/// # Errors
/// When none can be made.
pub fn self_signed(wanted: Certificate, now: i64) -> Result<(String, String), CertificateError> {
    let made = vireo_certificates::self_signed(&wanted.subject(), now, Strategy::default().server.duration)?;
    Ok((made.certificate, made.key))
}

fn rotation(lifetime: Lifetime) -> Rotation {
    Rotation { lifetime, propagation: PROPAGATION }
}

type Data = BTreeMap<String, ByteString>;

fn data(pair: &Pair, trusted: &str) -> Data {
    let texts = [("tls.crt", &*pair.certificate), ("tls.key", &*pair.key), ("ca.crt", trusted)];
    texts.map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec()))).into()
}

fn authority_data(authorities: &Authorities) -> Data {
    let mut data = data(&authorities.issuing, &authorities.bundle());
    if let Some(next) = &authorities.announced {
        for (key, text) in [(NEXT.0, &next.certificate), (NEXT.1, &next.key)] {
            data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec()));
        }
    }
    data
}

/// The authorities that a Secret has.
fn stored(secret: &Secret) -> Option<Authorities> {
    let issuing = pair(secret)?;
    let announced = text(secret, NEXT.0).zip(text(secret, NEXT.1));
    let announced = announced.map(|(certificate, key)| Pair { certificate, key });
    let known = |certificate: &&str| {
        *certificate != issuing.certificate
            && announced.as_ref().is_none_or(|next| *certificate != next.certificate)
    };
    let trusted = text(secret, "ca.crt").unwrap_or_default();
    let former = vireo_certificates::split(&trusted).filter(known).map(str::to_owned).collect();
    Some(Authorities { name: AUTHORITY, issuing, announced, former })
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok()
}

fn pair(secret: &Secret) -> Option<Pair> {
    Some(Pair { certificate: text(secret, "tls.crt")?, key: text(secret, "tls.key")? })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    /// A certificate that is valid now: that of its authority, its own and its key, in PEM.
    pub(crate) fn issued(wanted: Certificate) -> (String, String, String) {
        let (strategy, now) = (Strategy::default(), jiff::Timestamp::now().as_second());
        let authorities = Authorities::make(AUTHORITY, strategy.authority, now).unwrap();
        let pair = authorities.issue(&wanted.subject(), strategy.server, now).unwrap();
        (authorities.issuing.certificate, pair.certificate, pair.key)
    }

    #[test]
    fn authorities_are_stored_as_they_are() {
        let lifetime = Strategy::default().authority;
        let due = NOW + lifetime.duration - lifetime.renew_before;
        let mut authorities = Authorities::make(AUTHORITY, lifetime, NOW).unwrap();
        let mut changes = Vec::new();
        for now in [due, due + PROPAGATION] {
            changes.extend(authorities.rotate(&[], rotation(lifetime), now).unwrap());
            let secret = Secret { data: Some(authority_data(&authorities)), ..Secret::default() };
            assert_eq!(stored(&secret).as_ref(), Some(&authorities));
        }
        assert_eq!(changes, [Change::Announced, Change::Issues]);
        assert_eq!(authorities.former.len(), 1);
        assert_eq!(stored(&Secret::default()), None);
    }

    /// No other component may answer as a node agent, or as virt-api.
    #[test]
    fn each_component_has_names_of_its_own() {
        for wanted in CERTIFICATES {
            let names = wanted.names();
            let is_client = wanted.secret == VIRT_API_CLIENT.secret;
            assert_eq!(names.is_empty(), is_client, "{}", wanted.secret);
            assert_eq!(names.iter().any(|name| name == METRICS_SERVER_NAME), !is_client);
            let is_agent = names.iter().any(|name| name == AGENT_SERVER_NAME);
            assert_eq!(is_agent, wanted.secret == VIRT_HANDLER.secret);
        }
    }
}
