//! A `vireo standalone` of a test's own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tempfile::TempDir;

/// A server that is killed when this goes.
pub(crate) struct Server {
    process: Child,
    address: String,
    state: TempDir,
}

impl Server {
    /// Starts one on an empty directory.
    pub(crate) fn start() -> Self {
        let state = tempfile::tempdir().expect("a scratch directory");
        let (process, address) = spawn(state.path(), "127.0.0.1:0");
        Self { process, address, state }
    }

    /// SIGKILL, and its end.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("SIGKILL is sent");
        self.process.wait().expect("it ends");
    }

    /// Another one on the same directory and address.
    pub(crate) fn again(&mut self) {
        (self.process, self.address) = spawn(self.state.path(), &self.address);
    }

    /// What its kubeconfig makes of a client.
    pub(crate) async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(self.state.path().join("api/kubeconfig")).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
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
fn spawn(state: &Path, listen: &str) -> (Child, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_vireo"))
        .args(["standalone", "--listen", listen, "--state-dir"])
        .arg(state)
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
