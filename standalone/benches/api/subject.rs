//! The API servers that are measured.

use std::env;
use std::fs;
use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::Error;
use super::server::Server;

/// Names the kubeconfig of the other server, and the processes of which it consists.
const KUBECONFIG: &str = "VIREO_TEST_KUBECONFIG";
const PROCESSES: &str = "VIREO_TEST_KUBE_PIDS";

/// An API server.
pub(super) struct Subject {
    pub(super) name: &'static str,
    config: Config,
    processes: Vec<u32>,
}

impl Subject {
    pub(super) async fn vireo(server: &Server) -> Self {
        Self { name: "vireo", config: server.config().await, processes: vec![server.process.id()] }
    }

    /// The one beside which `hack/kube-apiserver` runs this.
    pub(super) async fn kube_apiserver() -> Result<Self, Error> {
        let variable =
            |name: &str| env::var(name).map_err(|_| format!("{name} is not set: run hack/bench api"));
        let kubeconfig = Kubeconfig::read_from(Path::new(&variable(KUBECONFIG)?))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let processes = variable(PROCESSES)?;
        let processes = processes.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { name: "kube-apiserver, etcd", config, processes })
    }

    /// A client with a connection of its own.
    pub(super) fn client(&self) -> Result<Client, kube::Error> {
        Client::try_from(self.config.clone())
    }

    /// Memory of its processes in MiB (`Pss` of `proc(5)`).
    pub(super) fn memory(&self) -> Result<f64, Error> {
        let mut kibibytes = 0;
        for process in &self.processes {
            let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no Pss")?;
            kibibytes += line.split_whitespace().next().ok_or("no number")?.parse::<u32>()?;
        }
        Ok(f64::from(kibibytes) / 1024.)
    }
}
