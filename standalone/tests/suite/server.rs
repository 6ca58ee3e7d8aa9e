//! A `vireo standalone` of a test's own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::client::ConfigExt as _;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use tempfile::TempDir;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A server that is killed when this goes.
pub(crate) struct Server {
    pub(crate) process: Child,
    address: String,
    state: TempDir,
    options: &'static [&'static str],
}

impl Server {
    /// Starts one on an empty directory.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with more options.
    pub(crate) fn start_with(options: &'static [&'static str]) -> Self {
        let state = tempfile::tempdir().expect("a scratch directory");
        let (process, address) = spawn(state.path(), "127.0.0.1:0", options);
        Self { process, address, state, options }
    }

    /// SIGKILL. It may take a moment to end.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("SIGKILL is sent");
    }

    /// Another one on the same directory and address, at once.
    pub(crate) fn again(&mut self) {
        let (process, address) = spawn(self.state.path(), &self.address, self.options);
        let mut killed = std::mem::replace(&mut self.process, process);
        killed.wait().expect("it has ended");
        self.address = address;
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Its state directory.
    pub(crate) fn state(&self) -> &Path {
        self.state.path()
    }

    /// Bytes of memory that are its own (`Pss` of `proc(5)`).
    pub(crate) fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("Pss");
        let number = line.split_whitespace().next().expect("its number");
        number.parse::<u64>().unwrap() << 10
    }

    /// Sockets that it has open.
    pub(crate) fn sockets(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap();
        // One that is closed meanwhile has no target.
        let targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }

    /// What its kubeconfig makes of a client.
    pub(crate) async fn client(&self) -> Client {
        Client::try_from(self.config().await).unwrap()
    }

    /// The same with nothing to show but a token.
    pub(crate) async fn client_with_token(&self, token: &str) -> Client {
        let mut config = self.config().await;
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        Client::try_from(config).unwrap()
    }

    /// The same with a certificate of the server's authority.
    pub(crate) async fn client_with_certificate(&self, name: &str, group: &str) -> Client {
        Client::try_from(self.config_with_certificate(name, group).await).unwrap()
    }

    /// What makes such a client.
    pub(crate) async fn config_with_certificate(&self, name: &str, group: &str) -> Config {
        let key = PrivatePkcs8KeyDer::from_pem_file(self.state.path().join("api/ca.key")).unwrap();
        let key = KeyPair::try_from(&key).unwrap();
        let pem = |label: &str, bytes: &[u8]| {
            let text = STANDARD.encode(bytes);
            STANDARD.encode(format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n"))
        };
        let mut authority = CertificateParams::default();
        authority.distinguished_name = DistinguishedName::new();
        authority.distinguished_name.push(DnType::CommonName, "vireo-ca");
        let mut who = CertificateParams::default();
        who.distinguished_name = DistinguishedName::new();
        who.distinguished_name.push(DnType::CommonName, name);
        who.distinguished_name.push(DnType::OrganizationName, group);
        let mine = KeyPair::generate().unwrap();
        let certificate = who.signed_by(&mine, &Issuer::new(authority, key)).unwrap();
        let mut config = self.config().await;
        config.auth_info = AuthInfo {
            client_certificate_data: Some(pem("CERTIFICATE", certificate.der())),
            client_key_data: Some(pem("PRIVATE KEY", &mine.serialize_der()).into()),
            ..AuthInfo::default()
        };
        config
    }

    /// An administrator's connection, for what no client sends.
    pub(crate) async fn stream(&self) -> TlsStream<TcpStream> {
        self.stream_of(self.config().await).await
    }

    /// The same without credentials.
    pub(crate) async fn unauthenticated_stream(&self) -> TlsStream<TcpStream> {
        let mut config = self.config().await;
        config.auth_info = AuthInfo::default();
        self.stream_of(config).await
    }

    /// A connection with a configuration's credentials.
    pub(crate) async fn stream_of(&self, config: Config) -> TlsStream<TcpStream> {
        let tls = config.rustls_client_config().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        // Full soon, where a client does not read.
        socket.set_recv_buffer_size(16 << 10).unwrap();
        let stream = socket.connect(self.address.parse().unwrap()).await.unwrap();
        let name = "127.0.0.1".try_into().unwrap();
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap()
    }

    /// What its kubeconfig says.
    pub(crate) async fn config(&self) -> Config {
        let kubeconfig = Kubeconfig::read_from(self.state.path().join("api/kubeconfig")).unwrap();
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts it and waits until it says where it listens, with that address.
fn spawn(state: &Path, listen: &str, options: &[&str]) -> (Child, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_vireo"))
        .args(["standalone", "--listen", listen, "--state-dir"])
        .arg(state)
        .args(options)
        .env("VIREO_LOG", "warn")
        .stdout(Stdio::piped())
        .spawn()
        .expect("vireo starts");
    let said = process.stdout.take().expect("its standard output");
    let line = BufReader::new(said).lines().next();
    let line = line.expect("vireo ended before it listened").unwrap();
    let (_, address) = line.split_once("https://").unwrap_or_else(|| panic!("no address in {line:?}"));
    (process, address.to_owned())
}
