//! The certificates and the administrator's token of a running server: what commands and time change of them counts without a
//! restart.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::inotify::WatchFlags;
use tokio::sync::watch;
use tracing::{error, info, warn};
use vireo_apiserver::auth::{FORMER_KEYS, Tokens};
use vireo_apiserver::files::FileError;
use vireo_apiserver::kubeconfig;
use vireo_apiserver::pki::{Certificates, Change, Current, LiveTls, PkiError};
use vireo_handler::inotify::Inotify;
use vireo_handler::state::{StateError, read_json, write_json};

/// How often certificates are checked, while no authority is being replaced.
const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The file of the key that signs tokens of ServiceAccounts.
pub const SIGNING_KEY: &str = "sa.key";
/// The file of the administrator's token.
pub const TOKEN: &str = "token.json";
const KUBECONFIG: &str = "kubeconfig";

/// The certificates of a server.
#[derive(Debug)]
pub struct Credentials {
    directory: PathBuf,
    certificates: Certificates,
    current: Current,
    tls: LiveTls,
    trusted: watch::Sender<String>,
    url: String,
}

impl Credentials {
    /// Those in a directory, made where they are missing, of a server that listens on an address and runs on a node.
    ///
    /// # Errors
    /// When there are none.
    pub fn of(directory: &Path, address: SocketAddr, node: &str, url: &str) -> Result<Self, PkiError> {
        let certificates = Certificates::new(directory, names(address, node));
        let (current, _) = certificates.reconcile(Timestamp::now().as_second())?;
        let tls = LiveTls::new(current.server_config()?);
        let (trusted, _) = watch::channel(current.authorities.bundle());
        let directory = directory.to_owned();
        Ok(Self { directory, certificates, current, tls, trusted, url: url.to_owned() })
    }

    /// TLS with them.
    pub fn tls(&self) -> LiveTls {
        self.tls.clone()
    }

    /// The certificates of the authorities that clients are to trust, in PEM.
    pub fn trusted(&self) -> watch::Receiver<String> {
        self.trusted.subscribe()
    }

    /// Writes the administrator's kubeconfig, and says where it is.
    ///
    /// # Errors
    /// When it cannot be written, and that of an earlier start is for another server.
    pub fn write_kubeconfig(&self) -> Result<PathBuf, FileError> {
        let path = self.directory.join(KUBECONFIG);
        let trusted = self.current.authorities.bundle();
        if let Err(error) = kubeconfig::write(&path, &self.url, &trusted, &self.current.administrator) {
            if !kubeconfig::is_for(&path, &self.url, &trusted) {
                return Err(error);
            }
            warn!(error = &error as &dyn std::error::Error, "the kubeconfig of an earlier start stays");
        }
        Ok(path)
    }

    /// Goes on until the task ends.
    pub async fn run(mut self, tokens: Arc<Tokens>) {
        let changes = Inotify::new().and_then(|inotify| {
            inotify.watch(&self.directory, WatchFlags::MOVED_TO | WatchFlags::DELETE)?;
            Ok(inotify)
        });
        if let Err(error) = &changes {
            warn!(%error, "changes of certificates and of the token need a restart");
        }
        // What was changed before it was watched counts, too: at first, and whenever names are not known, all is looked at.
        let mut names = Vec::new();
        loop {
            self.apply(&names, &tokens).await;
            let overlap = self.current.overlap.max(Duration::from_secs(1));
            let is_changing = self.current.authorities.are_changing();
            let interval = if is_changing { overlap.min(INTERVAL) } else { INTERVAL };
            let mut events = match &changes {
                Ok(inotify) => tokio::time::timeout(interval, inotify.events()).await.ok(),
                Err(_) => {
                    tokio::time::sleep(interval).await;
                    None
                }
            };
            if let Some(Err(error)) = &events {
                warn!(%error, "changes of certificates and of the token may have been missed");
                tokio::time::sleep(interval).await;
                events = None;
            }
            names = events.into_iter().flatten().flatten().map(|event| event.name).collect();
        }
    }

    /// Takes over what may have changed: the files of these names, or all where there are none.
    async fn apply(&mut self, names: &[String], tokens: &Tokens) {
        if names.is_empty() || names.iter().any(|name| name == TOKEN) {
            self.read_token(tokens);
        }
        if names.is_empty() || names.iter().any(|name| name == SIGNING_KEY || name == FORMER_KEYS) {
            match tokens.signer().reload() {
                Ok(true) => info!("another key signs tokens of ServiceAccounts"),
                Ok(false) => {}
                Err(error) => {
                    warn!(error = &error as &dyn std::error::Error, "the former key still signs tokens")
                }
            }
        }
        let is_certificate = |name: &String| name.ends_with(".crt") || name.ends_with(".pem");
        if (names.is_empty() || names.iter().any(is_certificate))
            && let Err(error) = self.reconcile().await
        {
            error!(error = &error as &dyn std::error::Error, "certificates are not replaced");
        }
    }

    fn read_token(&self, tokens: &Tokens) {
        match read_json::<String>(&self.directory.join(TOKEN)) {
            Ok(Some(token)) if !token.is_empty() => {
                if tokens.set_administrator(token) {
                    info!("the administrator has a new token");
                }
            }
            Ok(_) => warn!("there is no token of the administrator: the former one stays valid"),
            Err(error) => warn!(error = &error as &dyn std::error::Error, "the former token stays valid"),
        }
    }

    async fn reconcile(&mut self) -> Result<(), PkiError> {
        let certificates = self.certificates.clone();
        // It waits for a command that has the lock of the directory.
        let reconcile = move || certificates.reconcile(Timestamp::now().as_second());
        let (current, change) = match tokio::task::spawn_blocking(reconcile).await {
            Ok(reconciled) => reconciled?,
            Err(panic) => {
                error!(%panic, "certificates are not replaced");
                return Ok(());
            }
        };
        match change {
            Some(Change::Made) => warn!("the authority had ended: made another one"),
            Some(Change::Announced) => info!("announced the next authority"),
            Some(Change::Issues) => info!("the next authority issues certificates"),
            Some(Change::Forgot) => info!("the former authority is no longer trusted"),
            None => {}
        }
        if current == self.current {
            return Ok(());
        }
        self.tls.set(current.server_config()?);
        self.current = current;
        self.trusted.send_replace(self.current.authorities.bundle());
        Ok(self.write_kubeconfig().map(drop)?)
    }
}

/// The names and addresses of the server.
fn names(address: SocketAddr, node: &str) -> Vec<String> {
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", node];
    let local = [IpAddr::from([127, 0, 0, 1]), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let own = Some(address.ip()).filter(|ip| !ip.is_unspecified() && !local.contains(ip));
    let addresses = local.into_iter().chain(own).map(|address| address.to_string());
    names.into_iter().map(str::to_owned).chain(addresses).collect()
}

/// The administrator's token, made once. It is in `api/token.json`, for tools that take no certificate.
///
/// # Errors
/// When its file cannot be read or written.
pub fn token(directory: &Path) -> Result<String, StateError> {
    match read_json::<String>(&directory.join(TOKEN))? {
        Some(token) => Ok(token),
        None => rotate_token(directory),
    }
}

/// Replaces the administrator's token, also of a server that runs.
///
/// # Errors
/// When its file cannot be written.
pub fn rotate_token(directory: &Path) -> Result<String, StateError> {
    let token = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    write_json(&directory.join(TOKEN), &token)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use vireo_apiserver::auth::Signer;
    use vireo_apiserver::pki::renew;
    use vireo_apiserver::store::Store;

    use super::*;

    #[tokio::test]
    async fn what_is_replaced_before_it_is_watched_counts() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path();
        let store = Arc::new(Store::open(&directory.join("store")).unwrap());
        let signer = Signer::of(&directory.join(SIGNING_KEY)).unwrap();
        let tokens = Arc::new(Tokens::new(token(directory).unwrap(), signer, store));
        let address = "127.0.0.1:1".parse().unwrap();
        let credentials = Credentials::of(directory, address, "node", "https://127.0.0.1:1").unwrap();
        let file = credentials.write_kubeconfig().unwrap();
        let kubeconfig = || std::fs::read_to_string(&file).unwrap();
        let first = kubeconfig();
        renew(directory).unwrap();
        let replaced = async {
            while kubeconfig() == first {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = credentials.run(tokens) => {}
            replaced = tokio::time::timeout(Duration::from_secs(60), replaced) => {
                replaced.expect("there is another kubeconfig");
            }
        }
    }

    #[test]
    fn the_server_has_the_address_that_it_listens_on() {
        let addresses = |text: &str| {
            let names = names(text.parse().unwrap(), "node");
            names.into_iter().filter(|name| name.parse::<IpAddr>().is_ok()).collect::<Vec<_>>()
        };
        let local = ["127.0.0.1", "::1"];
        for address in ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "[::]:1"] {
            assert_eq!(addresses(address), local, "{address}");
        }
        assert_eq!(addresses("127.0.0.2:1"), [&local[..], &["127.0.0.2"]].concat());
        assert_eq!(addresses("192.0.2.1:1"), [&local[..], &["192.0.2.1"]].concat());
    }
}
