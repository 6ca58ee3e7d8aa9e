//! Which versions and cipher suites of TLS servers accept: `tlsConfiguration` of the KubeVirt object.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::SupportedProtocolVersion;
use rustls::crypto::{CryptoProvider, ring};
use vireo_api::v1::TLSConfiguration;

/// The only version that needs no list of cipher suites.
const TLS13: &str = "VersionTLS13";
/// KubeVirt's names of versions. Servers here accept none before 1.2.
const VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", TLS13];

/// What servers accept. The default is TLS 1.2 and 1.3 with all cipher suites of the TLS library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsSettings {
    only_13: bool,
    /// IANA's names of those of TLS 1.2; all where it is empty. Those of TLS 1.3 cannot be chosen.
    ciphers: Vec<String>,
}

/// Cipher suites that can be chosen, by IANA's names: those for the keys of the servers' certificates, which are of ECDSA.
fn ciphers() -> Vec<&'static str> {
    let suites = ring::ALL_CIPHER_SUITES.iter().filter(|suite| suite.tls13().is_none());
    let names = suites.filter_map(|suite| suite.suite().as_str());
    names.filter(|name| name.contains("_ECDSA_")).collect()
}

/// Whether a name is that of a cipher suite that servers here never use.
pub fn is_unavailable(cipher: &str) -> bool {
    let is_of_13 = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
    !is_of_13.contains(&cipher) && !ciphers().contains(&cipher)
}

impl TlsSettings {
    /// Reads the setting.
    ///
    /// # Errors
    /// The field that is not valid, and why.
    pub fn read(given: &TLSConfiguration) -> Result<Self, (&'static str, String)> {
        let version = given.min_tls_version.as_str();
        if !version.is_empty() && !VERSIONS.contains(&version) {
            let supported = VERSIONS.map(|version| format!("{version:?}")).join(", ");
            let why = format!("Unsupported value: {version:?}: supported values: {supported}");
            return Err(("minTLSVersion", why));
        }
        let only_13 = version == TLS13;
        if !given.ciphers.is_empty() && (only_13 || version.is_empty()) {
            let why = "Forbidden: must not be set where minTLSVersion is empty or VersionTLS13";
            return Err(("ciphers", why.to_owned()));
        }
        let known: Vec<String> =
            given.ciphers.iter().filter(|name| ciphers().contains(&name.as_str())).cloned().collect();
        if known.is_empty() && !given.ciphers.is_empty() {
            return Err((
                "ciphers",
                format!("Invalid value: {:?}: must contain one of {}", given.ciphers, ciphers().join(", ")),
            ));
        }
        Ok(Self { only_13, ciphers: known })
    }

    /// The strictest settings, for some that cannot be read.
    #[must_use]
    pub fn strictest() -> Self {
        Self { only_13: true, ciphers: Vec::new() }
    }

    pub(super) fn provider(&self) -> CryptoProvider {
        let mut provider = ring::default_provider();
        let is_chosen = |name: &str| self.ciphers.iter().any(|cipher| cipher == name);
        if !self.ciphers.is_empty() {
            provider
                .cipher_suites
                .retain(|suite| suite.tls13().is_some() || suite.suite().as_str().is_some_and(is_chosen));
        }
        provider
    }

    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        const ONLY_13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
        if self.only_13 { ONLY_13 } else { rustls::DEFAULT_VERSIONS }
    }
}

/// What the servers of a program accept, which may change while they serve.
#[derive(Debug, Clone, Default)]
pub struct TlsPolicy(Arc<Mutex<TlsSettings>>);

impl TlsPolicy {
    /// Has connections from now on be accepted by these settings.
    pub fn set(&self, settings: TlsSettings) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    pub(super) fn current(&self) -> TlsSettings {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(given: Value) -> Result<TlsSettings, (&'static str, String)> {
        TlsSettings::read(&serde_json::from_value(given).unwrap())
    }

    fn suites(settings: &TlsSettings) -> Vec<&'static str> {
        let suites = settings.provider().cipher_suites;
        suites.iter().filter(|suite| suite.tls13().is_none()).filter_map(|one| one.suite().as_str()).collect()
    }

    #[test]
    fn versions_and_ciphers_are_chosen() {
        assert_eq!(read(json!({})).unwrap(), TlsSettings::default());
        let newest = read(json!({"minTLSVersion": "VersionTLS13"})).unwrap();
        assert_eq!(newest.versions().len(), 1);
        // A name that is not available is left out where another one is.
        let given = ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"];
        let some = read(json!({"minTLSVersion": "VersionTLS12", "ciphers": given})).unwrap();
        assert_eq!((some.versions().len(), suites(&some)), (2, given[..1].to_vec()));
        assert!(some.provider().cipher_suites.len() > 1, "those of TLS 1.3 stay");
        assert_eq!(given.map(is_unavailable), [false, true]);
        assert!(!is_unavailable("TLS_AES_128_GCM_SHA256"));
    }

    #[test]
    fn settings_that_no_server_can_have_are_refused() {
        let cipher = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
        for (given, field) in [
            (json!({"minTLSVersion": "TLS1.2"}), "minTLSVersion"),
            (json!({"ciphers": [cipher]}), "ciphers"),
            (json!({"minTLSVersion": "VersionTLS13", "ciphers": [cipher]}), "ciphers"),
            (json!({"minTLSVersion": "VersionTLS12", "ciphers": ["x"]}), "ciphers"),
        ] {
            assert_eq!(read(given).unwrap_err().0, field);
        }
    }
}
