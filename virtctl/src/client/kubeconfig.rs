//! Which server a kubeconfig names, and who one is there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

/// Why a kubeconfig leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is no kubeconfig: {message}")]
    Parse { path: PathBuf, message: String },
    #[error("the kubeconfig has no {what} {name:?}")]
    Missing { what: &'static str, name: String },
    #[error("the kubeconfig names no current context: choose one with --context")]
    NoContext,
    #[error(
        "the kubeconfig's user needs {0}, which virtctl does not know: use a client certificate or a token"
    )]
    Credentials(String),
    #[error("the kubeconfig's cluster {0}")]
    Cluster(&'static str),
    #[error("the upload proxy {url} {why}")]
    Proxy { url: String, why: String },
    #[error("the kubeconfig's {what} is no base64")]
    Base64 { what: &'static str, source: base64::DecodeError },
    #[error("the kubeconfig's certificates cannot be used: {0}")]
    Certificates(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct File {
    current_context: String,
    clusters: Vec<Named>,
    users: Vec<Named>,
    contexts: Vec<Named>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
    cluster: Value,
    user: Value,
    context: Value,
}

/// One server, and who one is there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// `https://host:port`
    pub(crate) url: String,
    /// What the server's certificate must say, if not its host.
    pub(crate) server_name: Option<String>,
    /// PEM of those who vouch for the server.
    pub(crate) authority: Vec<u8>,
    /// PEM of one's own certificate and key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    /// A bearer token.
    pub(crate) token: Option<String>,
    /// The context's namespace.
    pub(crate) namespace: Option<String>,
}

impl Cluster {
    /// Reads files, as `KUBECONFIG` lists them; the first that says something counts.
    pub(crate) fn read(files: &OsStr, context: Option<&str>) -> Result<Self, ConfigError> {
        let mut all = File::default();
        let mut home = PathBuf::new();
        for path in std::env::split_paths(files).filter(|path| !path.as_os_str().is_empty()) {
            let text = std::fs::read_to_string(&path)
                .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            let file: File = serde_saphyr::from_str(&text)
                .map_err(|error| ConfigError::Parse { path: path.clone(), message: error.to_string() })?;
            if home.as_os_str().is_empty() {
                home = path.parent().map(Path::to_owned).unwrap_or_default();
            }
            if all.current_context.is_empty() {
                all.current_context = file.current_context;
            }
            all.clusters.extend(file.clusters);
            all.users.extend(file.users);
            all.contexts.extend(file.contexts);
        }
        all.choose(context, &home)
    }
}

fn text(value: &Value, field: &str) -> Option<String> {
    value.get(field).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Bytes that are there in base64, or in a file beside the kubeconfig.
fn bytes(value: &Value, field: &'static str, home: &Path) -> Result<Option<Vec<u8>>, ConfigError> {
    if let Some(data) = text(value, &format!("{field}-data")) {
        let decoded = STANDARD.decode(data.trim());
        return decoded.map(Some).map_err(|source| ConfigError::Base64 { what: field, source });
    }
    let Some(path) = text(value, field).map(|path| home.join(path)) else { return Ok(None) };
    std::fs::read(&path).map(Some).map_err(|source| ConfigError::Read { path, source })
}

fn find<'a>(list: &'a [Named], what: &'static str, name: &str) -> Result<&'a Named, ConfigError> {
    let found = list.iter().find(|entry| entry.name == name);
    found.ok_or_else(|| ConfigError::Missing { what, name: name.to_owned() })
}

impl File {
    fn choose(&self, context: Option<&str>, home: &Path) -> Result<Cluster, ConfigError> {
        let name = context.unwrap_or(&self.current_context);
        if name.is_empty() {
            return Err(ConfigError::NoContext);
        }
        let context = &find(&self.contexts, "context", name)?.context;
        let cluster = text(context, "cluster").unwrap_or_default();
        let cluster = &find(&self.clusters, "cluster", &cluster)?.cluster;
        let nobody = Value::Null;
        let user = match text(context, "user") {
            Some(name) => &find(&self.users, "user", &name)?.user,
            None => &nobody,
        };
        for unknown in ["exec", "auth-provider", "username"] {
            if user.get(unknown).is_some_and(|value| !value.is_null()) {
                return Err(ConfigError::Credentials(unknown.to_owned()));
            }
        }
        if cluster.get("insecure-skip-tls-verify").is_some_and(|value| *value == Value::Bool(true)) {
            return Err(ConfigError::Cluster(
                "skips the check of its certificate, which virtctl does not: name a certificate-authority",
            ));
        }
        if text(cluster, "proxy-url").is_some() {
            return Err(ConfigError::Cluster("is behind a proxy, which virtctl does not know"));
        }
        let certificate = bytes(user, "client-certificate", home)?;
        let key = bytes(user, "client-key", home)?;
        let token = match text(user, "tokenFile").map(|path| home.join(path)) {
            None => text(user, "token"),
            Some(path) => {
                let read = std::fs::read_to_string(&path);
                Some(read.map_err(|source| ConfigError::Read { path, source })?.trim().to_owned())
            }
        };
        Ok(Cluster {
            url: text(cluster, "server").ok_or(ConfigError::Cluster("has no server"))?,
            server_name: text(cluster, "tls-server-name"),
            authority: bytes(cluster, "certificate-authority", home)?
                .ok_or(ConfigError::Cluster("has no certificate-authority"))?,
            identity: certificate.zip(key),
            token,
            namespace: text(context, "namespace"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
current-context: one
contexts:
- {name: one, context: {cluster: c, user: u, namespace: prod}}
- {name: two, context: {cluster: c, user: execs}}
- {name: three, context: {cluster: gone}}
- {name: four, context: {cluster: lax}}
clusters:
- {name: c, cluster: {server: 'https://127.0.0.1:6443', certificate-authority: ca.crt}}
- {name: lax, cluster: {server: 'https://127.0.0.1:6443', insecure-skip-tls-verify: true}}
users:
- {name: u, user: {client-certificate-data: Y2VydA==, client-key-data: a2V5, token: t}}
- {name: execs, user: {exec: {command: x}}}
";

    #[test]
    fn a_context_leads_to_a_server_or_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, CONFIG).unwrap();
        std::fs::write(dir.path().join("ca.crt"), "authority").unwrap();
        let cluster = Cluster::read(path.as_os_str(), None).unwrap();
        assert_eq!(
            (cluster.url.as_str(), cluster.namespace.as_deref()),
            ("https://127.0.0.1:6443", Some("prod"))
        );
        assert_eq!(
            (cluster.authority.as_slice(), cluster.token.as_deref()),
            (b"authority".as_slice(), Some("t"))
        );
        assert_eq!(cluster.identity, Some((b"cert".to_vec(), b"key".to_vec())));
        for (context, said) in
            [("two", "exec"), ("three", "gone"), ("four", "certificate-authority"), ("five", "five")]
        {
            let error = Cluster::read(path.as_os_str(), Some(context)).unwrap_err().to_string();
            assert!(error.contains(said), "{context}: {error}");
        }
        assert!(matches!(
            Cluster::read(dir.path().join("none").as_os_str(), None),
            Err(ConfigError::Read { .. })
        ));
    }
}
