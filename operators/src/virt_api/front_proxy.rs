//! Requests that an aggregating API server passes on: who sends them, and whether they may.
//!
//! The API server authenticates the user, and itself by a certificate of the authority in the ConfigMap
//! `extension-apiserver-authentication`. It names the user in headers.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use percent_encoding::percent_decode_str;
use thiserror::Error;
use vireo_client::tls::ClientCertificate;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{ApiError, GROUP, Path};

const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// Why the settings of the API server cannot be used.
#[derive(Debug, Error)]
pub enum FrontProxyError {
    /// They cannot be read.
    #[error("cannot read the ConfigMap {NAMESPACE}/{CONFIG_MAP}")]
    Read(#[from] kube::Error),
    /// The API server aggregates no other servers.
    #[error(
        "the ConfigMap {NAMESPACE}/{CONFIG_MAP} has no {0}: start kube-apiserver with its --requestheader options"
    )]
    Absent(&'static str),
}

/// How the API server passes requests on.
#[derive(Debug, Clone)]
pub struct FrontProxy {
    /// The authority of its certificate, in PEM.
    pub authority: String,
    /// Common names of its certificate; any when empty.
    names: Vec<String>,
    users: Vec<String>,
    groups: Vec<String>,
    extras: Vec<String>,
}

/// Who sends a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    user: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl FrontProxy {
    /// Reads the settings.
    ///
    /// # Errors
    /// When they cannot be read, or there are none.
    pub async fn read(client: &Client) -> Result<Self, FrontProxyError> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let data = maps.get(CONFIG_MAP).await?.data.unwrap_or_default();
        Self::from_data(&data)
    }

    fn from_data(data: &BTreeMap<String, String>) -> Result<Self, FrontProxyError> {
        let key = "requestheader-client-ca-file";
        let authority = data.get(key).cloned().ok_or(FrontProxyError::Absent(key))?;
        let list = |key: &str| -> Vec<String> {
            data.get(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
        };
        let headers = |key: &str, usual: &str| {
            let given = list(key);
            if given.is_empty() { vec![usual.to_owned()] } else { given }
        };
        Ok(Self {
            authority,
            names: list("requestheader-allowed-names"),
            users: headers("requestheader-username-headers", "X-Remote-User"),
            groups: headers("requestheader-group-headers", "X-Remote-Group"),
            extras: headers("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        })
    }

    /// Who sends a request: none where it does not come from the API server.
    pub fn caller(&self, certificate: &ClientCertificate, headers: &HeaderMap) -> Option<Caller> {
        let certificate = certificate.0.as_ref()?;
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let mut names = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        if !self.names.is_empty() && !names.any(|name| self.names.iter().any(|allowed| allowed == name)) {
            return None;
        }
        self.named(headers)
    }

    /// The user that the headers name.
    fn named(&self, headers: &HeaderMap) -> Option<Caller> {
        let values = |name: &String| {
            let all = headers.get_all(name.as_str()).into_iter();
            all.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect::<Vec<_>>()
        };
        let user = self.users.iter().flat_map(values).find(|user| !user.is_empty())?;
        let groups = self.groups.iter().flat_map(values).collect();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in self.extras.iter().map(|prefix| prefix.to_ascii_lowercase()) {
            for name in headers.keys() {
                let Some(key) = name.as_str().strip_prefix(&prefix) else { continue };
                let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
                extra.entry(key).or_default().extend(values(&name.to_string()));
            }
        }
        Some(Caller { user, groups, extra })
    }
}

/// The verb of a request, as RBAC calls it.
fn verb(method: &axum::http::Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "get",
    }
}

/// Asks the API server whether a caller may send a request.
///
/// # Errors
/// 403 when it may not, and what the API server answers when it cannot be asked.
pub(super) async fn authorize(
    client: &Client,
    caller: &Caller,
    method: &axum::http::Method,
    path: &str,
) -> Result<(), ApiError> {
    let Caller { user, groups, extra } = caller.clone();
    let mut spec = SubjectAccessReviewSpec {
        user: Some(user),
        groups: Some(groups),
        extra: Some(extra),
        ..SubjectAccessReviewSpec::default()
    };
    match Path::parse(path) {
        Some(path) => {
            let text = |text: Option<&str>| text.map(str::to_owned);
            spec.resource_attributes = Some(ResourceAttributes {
                group: Some(GROUP.to_owned()),
                version: Some(path.version.to_owned()),
                namespace: text(path.namespace),
                resource: Some(path.resource.to_owned()),
                name: text(path.name),
                subresource: Some(path.rbac_subresource()).filter(|subresource| !subresource.is_empty()),
                verb: Some(verb(method).to_owned()),
                ..ResourceAttributes::default()
            });
        }
        None => {
            spec.non_resource_attributes = Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some(method.as_str().to_ascii_lowercase()),
            });
        }
    }
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let status = reviews.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
    if status.allowed {
        return Ok(());
    }
    let why = status.reason.filter(|reason| !reason.is_empty()).map(|reason| format!(": {reason}"));
    let message = format!("User {:?} cannot {} {path}{}", caller.user, verb(method), why.unwrap_or_default());
    Err(ApiError::forbidden(message))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn proxy() -> FrontProxy {
        let data = [
            ("requestheader-client-ca-file", "pem"),
            ("requestheader-allowed-names", "[\"front-proxy-client\"]"),
            ("requestheader-username-headers", "[\"X-Remote-User\"]"),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value.to_owned()));
        FrontProxy::from_data(&data.into()).unwrap()
    }

    fn certificate(name: &str) -> ClientCertificate {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        ClientCertificate(Some(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()))
    }

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-remote-user", "ada"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-example.com%2fscope", "a"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_api_server_names_the_caller() {
        let caller = proxy().caller(&certificate("front-proxy-client"), &headers()).unwrap();
        let extra = BTreeMap::from([("example.com/scope".to_owned(), vec!["a".to_owned()])]);
        let groups = ["dev", "system:authenticated"].map(str::to_owned).into();
        assert_eq!(caller, Caller { user: "ada".to_owned(), groups, extra });
    }

    #[test]
    fn others_do_not() {
        assert_eq!(proxy().caller(&certificate("virt-handler"), &headers()), None, "another certificate");
        assert_eq!(proxy().caller(&ClientCertificate(None), &headers()), None, "no certificate");
        let nameless = proxy().caller(&certificate("front-proxy-client"), &HeaderMap::new());
        assert_eq!(nameless, None, "no user");
        assert!(FrontProxy::from_data(&BTreeMap::new()).is_err());
    }
}
