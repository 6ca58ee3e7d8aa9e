//! The configuration of registries, in the format of K3s' `registries.yaml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use vireo_importer::{Credentials, Endpoint};

/// Stands for all registries without an entry.
const ALL: &str = "*";

/// What is configured for registries.
#[derive(Debug, Clone, Default)]
pub struct Registries {
    /// Servers to ask first, by the registry that images name.
    mirrors: BTreeMap<String, Vec<Server>>,
    /// By the server.
    configs: BTreeMap<String, Config>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Server {
    host: String,
    is_plain: bool,
}

#[derive(Debug, Clone, Default)]
struct Config {
    credentials: Option<Credentials>,
    authorities: Option<String>,
    skip_verify: bool,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum RegistriesError {
    /// The file, or one that it names.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not of the format.
    #[error("the configuration of registries is not valid: {0}")]
    Document(String),
    /// Not the address of a server.
    #[error("mirrors.{registry}.endpoint: {endpoint:?} must be http://HOST[:PORT] or https://HOST[:PORT]")]
    Endpoint {
        /// The registry.
        registry: String,
        /// What is there.
        endpoint: String,
    },
    /// A file without a certificate.
    #[error("configs.{host}.tls.ca_file: {path} has no certificate in PEM")]
    NoCertificate {
        /// The server.
        host: String,
        /// The file.
        path: PathBuf,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    mirrors: BTreeMap<String, Mirror>,
    #[serde(default)]
    configs: BTreeMap<String, ServerConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mirror {
    endpoint: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerConfig {
    auth: Option<Auth>,
    tls: Option<Tls>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Auth {
    username: String,
    password: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    ca_file: Option<PathBuf>,
    #[serde(default)]
    insecure_skip_verify: bool,
}

impl Registries {
    /// Reads a file, and the certificates that it names.
    ///
    /// # Errors
    /// When it cannot be read, or is not valid.
    pub fn read(path: &Path) -> Result<Self, RegistriesError> {
        Self::parse(&read(path)?)
    }

    /// Reads a document.
    ///
    /// # Errors
    /// As those of [`read`](Self::read).
    pub fn parse(text: &str) -> Result<Self, RegistriesError> {
        let document: Document =
            serde_saphyr::from_str(text).map_err(|error| RegistriesError::Document(error.to_string()))?;
        let mut read = Self::default();
        for (registry, Mirror { endpoint }) in document.mirrors {
            let servers = endpoint.iter().map(|endpoint| {
                Server::parse(endpoint).ok_or_else(|| RegistriesError::Endpoint {
                    registry: registry.clone(),
                    endpoint: endpoint.clone(),
                })
            });
            let servers = servers.collect::<Result<_, _>>()?;
            read.mirrors.insert(registry, servers);
        }
        for (host, ServerConfig { auth, tls }) in document.configs {
            let tls = tls.unwrap_or(Tls { ca_file: None, insecure_skip_verify: false });
            let config = Config {
                credentials: auth.map(|Auth { username, password }| Credentials { username, password }),
                authorities: tls.ca_file.map(|path| authorities(&host, path)).transpose()?,
                skip_verify: tls.insecure_skip_verify,
            };
            read.configs.insert(host, config);
        }
        Ok(read)
    }

    /// The servers that are asked for the images of a registry: its mirrors, and itself at last.
    pub(super) fn servers(&self, registry: &str) -> Vec<Endpoint> {
        let mirrors = self.mirrors.get(registry).or_else(|| self.mirrors.get(ALL)).into_iter().flatten();
        let itself = Server { host: registry.to_owned(), is_plain: false };
        let mut servers: Vec<&Server> = mirrors.collect();
        if servers.iter().all(|server| server.host != itself.host) {
            servers.push(&itself);
        }
        let endpoint = |server: &Server| {
            let config = self.configs.get(&server.host).cloned().unwrap_or_default();
            Endpoint {
                host: server.host.clone(),
                is_plain: server.is_plain,
                skip_verify: config.skip_verify,
                authorities: config.authorities,
                credentials: config.credentials.into_iter().collect(),
            }
        };
        servers.into_iter().map(endpoint).collect()
    }
}

impl Server {
    fn parse(endpoint: &str) -> Option<Self> {
        let (scheme, host) = endpoint.split_once("://")?;
        let host = host.trim_end_matches('/');
        let is_plain = match scheme {
            "http" => true,
            "https" => false,
            _ => return None,
        };
        let is_host = |letter: char| letter.is_ascii_alphanumeric() || ".-_:[]".contains(letter);
        (!host.is_empty() && host.chars().all(is_host)).then(|| Self { host: host.to_owned(), is_plain })
    }
}

fn read(path: &Path) -> Result<String, RegistriesError> {
    std::fs::read_to_string(path).map_err(|source| RegistriesError::Read { path: path.to_owned(), source })
}

fn authorities(host: &str, path: PathBuf) -> Result<String, RegistriesError> {
    let pem = read(&path)?;
    match pem.contains("-----BEGIN CERTIFICATE-----") {
        true => Ok(pem),
        false => Err(RegistriesError::NoCertificate { host: host.to_owned(), path }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(registries: &Registries, registry: &str) -> Vec<String> {
        let shown = |one: Endpoint| format!("{}{}", if one.is_plain { "http " } else { "" }, one.host);
        registries.servers(registry).into_iter().map(shown).collect()
    }

    #[test]
    fn mirrors_are_asked_before_the_registry() {
        let registries = Registries::parse(
            "mirrors:\n  docker.io: {endpoint: ['https://mirror.example:5000/', 'http://10.0.0.1:5000']}\n  \
             'r.example': {endpoint: ['http://r.example']}\n  '*': {endpoint: ['https://all.example']}\n",
        )
        .unwrap();
        let expected = ["mirror.example:5000", "http 10.0.0.1:5000", "docker.io"];
        assert_eq!(hosts(&registries, "docker.io"), expected);
        assert_eq!(hosts(&registries, "r.example"), ["http r.example"], "it is asked without TLS");
        assert_eq!(hosts(&registries, "other.example"), ["all.example", "other.example"]);
        assert_eq!(hosts(&Registries::default(), "r.example"), ["r.example"]);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let error = |text: &str| Registries::parse(text).unwrap_err().to_string();
        let refused = error("mirrors: {docker.io: {endpoint: ['https://mirror.example/v2/docker']}}");
        assert!(refused.starts_with("mirrors.docker.io.endpoint: \"https://mirror"), "{refused}");
        assert!(error("mirrors: {docker.io: {endpoint: [mirror.example]}}").contains("must be http://"));
        assert!(error("mirrors: {docker.io: {endpoint: [], rewrite: {}}}").contains("rewrite"));
        assert!(error("configs: {a: {tls: {ca_file: /absent}}}").contains("cannot read /absent"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let without = error(&format!("configs: {{a: {{tls: {{ca_file: {}}}}}}}", file.path().display()));
        assert!(without.contains("configs.a.tls.ca_file"), "{without}");
    }

    #[test]
    fn a_server_has_its_authorities_and_credentials() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "-----BEGIN CERTIFICATE-----\n").unwrap();
        let text = format!(
            "configs: {{'r.example:5000': {{auth: {{username: u, password: p}}, tls: {{ca_file: {}}}}}}}",
            file.path().display()
        );
        let servers = Registries::parse(&text).unwrap().servers("r.example:5000");
        assert_eq!(servers[0].authorities.as_deref(), Some("-----BEGIN CERTIFICATE-----\n"));
        assert_eq!(servers[0].credentials[0].username, "u");
    }
}
