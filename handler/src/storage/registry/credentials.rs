//! The credentials in Secrets of the types `kubernetes.io/dockerconfigjson` and `kubernetes.io/dockercfg`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use vireo_importer::Credentials;

/// The names by which Docker Hub is known in such files.
const DOCKER_HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// The users of registries in a Secret.
#[derive(Debug, Clone, Default)]
pub struct PullSecret(BTreeMap<String, Credentials>);

/// Why a Secret has no credentials. Nothing of its content is quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// Another type of Secret.
    #[error("it has no key .dockerconfigjson or .dockercfg")]
    NoKey,
    /// Not of the format.
    #[error("it is not a configuration of Docker in JSON")]
    Document,
    /// Neither a user and a password nor both in Base64.
    #[error("auths.{0}: must have username and password, or auth")]
    Entry(String),
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
}

impl PullSecret {
    /// Reads the data of a Secret.
    ///
    /// # Errors
    /// When it has no valid configuration.
    pub fn read<'a>(data: impl Fn(&str) -> Option<&'a [u8]>) -> Result<Self, CredentialsError> {
        match (data(".dockerconfigjson"), data(".dockercfg")) {
            (Some(config), _) => Self::parse_config(config),
            (None, Some(entries)) => {
                Self::of(serde_json::from_slice(entries).map_err(|_quotes| CredentialsError::Document)?)
            }
            (None, None) => Err(CredentialsError::NoKey),
        }
    }

    /// Reads the content of `.dockerconfigjson`.
    ///
    /// # Errors
    /// When it is not valid.
    pub fn parse_config(text: &[u8]) -> Result<Self, CredentialsError> {
        #[derive(Deserialize)]
        struct Config {
            #[serde(default)]
            auths: BTreeMap<String, Entry>,
        }
        let config: Config = serde_json::from_slice(text).map_err(|_quotes| CredentialsError::Document)?;
        Self::of(config.auths)
    }

    fn of(entries: BTreeMap<String, Entry>) -> Result<Self, CredentialsError> {
        let read = entries.into_iter().map(|(server, entry)| {
            let credentials = credentials(entry).ok_or_else(|| CredentialsError::Entry(server.clone()))?;
            Ok((server, credentials))
        });
        Ok(Self(read.collect::<Result<_, _>>()?))
    }

    /// The credentials for a repository of a server: of the longest entry that leads there.
    pub fn credentials(&self, host: &str, repository: &str) -> Option<Credentials> {
        let matching = self.0.iter().filter_map(|(server, credentials)| {
            let (entry, path) = split(server);
            (is_host(entry, host) && is_above(path, repository)).then_some((path.len(), credentials))
        });
        matching.max_by_key(|(length, _)| *length).map(|(_, credentials)| credentials.clone())
    }
}

fn credentials(entry: Entry) -> Option<Credentials> {
    if !entry.username.is_empty() {
        return Some(Credentials { username: entry.username, password: entry.password });
    }
    let both = String::from_utf8(STANDARD.decode(entry.auth).ok()?).ok()?;
    let (username, password) = both.split_once(':')?;
    let (username, password) = (username.to_owned(), password.trim_end_matches('\0').to_owned());
    (!username.is_empty()).then_some(Credentials { username, password })
}

/// The host and the path of an entry, which may be a URL.
fn split(server: &str) -> (&str, &str) {
    let server = server.split_once("://").map_or(server, |(_, rest)| rest);
    let (host, path) = server.split_once('/').unwrap_or((server, ""));
    let path = path.trim_matches('/');
    // The versions of the API that entries of older clients end with.
    (host, if path == "v1" || path == "v2" { "" } else { path })
}

/// Whether an entry is for a host: each part between dots may be `*`.
fn is_host(entry: &str, host: &str) -> bool {
    if DOCKER_HUB.contains(&entry) && DOCKER_HUB.contains(&host) {
        return true;
    }
    let (parts, wanted): (Vec<&str>, Vec<&str>) = (entry.split('.').collect(), host.split('.').collect());
    parts.len() == wanted.len()
        && parts.iter().zip(&wanted).all(|(part, of_host)| *part == "*" || part == of_host)
}

/// Whether a path is that of a repository or one above it.
fn is_above(path: &str, repository: &str) -> bool {
    path.is_empty()
        || repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(auths: serde_json::Value) -> PullSecret {
        PullSecret::parse_config(json!({"auths": auths}).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_entry_that_leads_closest_is_taken() {
        let user = |name: &str| json!({"username": name, "password": "p"});
        let secret = secret(json!({
            "https://index.docker.io/v1/": user("hub"),
            "r.example": user("all"),
            "r.example/team": user("team"),
            "*.cloud.example": user("cloud"),
            "ported.example:5000": user("ported"),
        }));
        let name = |host: &str, repository: &str| Some(secret.credentials(host, repository)?.username);
        for (host, repository, expected) in [
            ("docker.io", "library/linux", Some("hub")),
            ("r.example", "team/linux", Some("team")),
            ("r.example", "teams/linux", Some("all")),
            ("eu.cloud.example", "linux", Some("cloud")),
            ("a.eu.cloud.example", "linux", None),
            ("ported.example:5000", "linux", Some("ported")),
            ("ported.example", "linux", None),
            ("r.example.evil.example", "linux", None),
        ] {
            assert_eq!(name(host, repository).as_deref(), expected, "{host}/{repository}");
        }
    }

    #[test]
    fn a_user_may_be_in_base64() {
        let secret = secret(json!({"r.example": {"auth": STANDARD.encode("u:p:q")}}));
        let found = secret.credentials("r.example", "a").unwrap();
        assert_eq!((found.username, found.password), ("u".to_owned(), "p:q".to_owned()));
    }

    #[test]
    fn both_types_of_secrets_are_read() {
        let entries = json!({"r.example": {"username": "u", "password": "p"}}).to_string();
        let old = PullSecret::read(|key| (key == ".dockercfg").then_some(entries.as_bytes())).unwrap();
        assert!(old.credentials("r.example", "a").is_some());
        assert_eq!(PullSecret::read(|_| None).unwrap_err(), CredentialsError::NoKey);
        let not_json = PullSecret::read(|_| Some(b"x".as_slice())).unwrap_err();
        assert_eq!(not_json, CredentialsError::Document);
        let nothing = PullSecret::parse_config(br#"{"auths": {"r": {"auth": "!"}}}"#).unwrap_err();
        assert_eq!(nothing, CredentialsError::Entry("r".to_owned()));
    }
}
