//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::Ipv4Net;
use vireo_api::spec::HypervisorChoice;
use vireo_handler::settings::{Settings, beside_this_program, host_name};
use vireo_standalone::run::Options;

/// Virtual machines with the KubeVirt API, without a cluster.
#[derive(Debug, Parser)]
#[command(name = "vireo", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serves the KubeVirt API for this machine and runs what it is told; writes a kubeconfig and prints its path.
    Standalone(Standalone),
}

#[derive(Debug, Args)]
pub(crate) struct Standalone {
    /// Where everything is kept: objects, certificates, the kubeconfig, and the VMs.
    #[arg(long, value_name = "DIR", env = "VIREO_STATE_DIR", default_value = "/var/lib/vireo")]
    state_dir: PathBuf,
    /// Where the API listens; port 0 takes a free one. Whoever reaches it needs the kubeconfig or the token.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Which hypervisor runs VMs that do not choose one themselves.
    #[arg(long, value_enum, default_value_t = Hypervisor::Auto)]
    hypervisor: Hypervisor,
    /// Range of the VMs' own addresses; each takes a /30.
    #[arg(long, value_name = "CIDR", default_value = "10.201.0.0/16")]
    vm_cidr: Ipv4Net,
    /// The virt-launcher to start [default: beside this program, else on PATH].
    #[arg(long, value_name = "PATH")]
    launcher: Option<PathBuf>,
    /// The QEMU that launchers use [default: qemu-system-x86_64 on PATH].
    #[arg(long, value_name = "PATH")]
    qemu: Option<PathBuf>,
    /// What this node is called [default: the host's name].
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Hypervisor {
    Auto,
    Native,
    Qemu,
}

impl Standalone {
    /// Makes the options complete; paths absolute, since launchers are started elsewhere.
    pub(crate) fn options(self) -> Result<Options, Box<dyn std::error::Error>> {
        std::fs::create_dir_all(&self.state_dir)
            .map_err(|error| format!("cannot create {}: {error}", self.state_dir.display()))?;
        let node = Settings {
            state_dir: std::path::absolute(self.state_dir)?,
            hypervisor: match self.hypervisor {
                Hypervisor::Auto => HypervisorChoice::Auto,
                Hypervisor::Native => HypervisorChoice::Native,
                Hypervisor::Qemu => HypervisorChoice::Qemu,
            },
            vm_cidr: self.vm_cidr.trunc(),
            launcher: match self.launcher {
                Some(path) => std::path::absolute(path)?,
                None => beside_this_program()?,
            },
            qemu: self.qemu,
            node_name: self.node_name.unwrap_or_else(host_name).to_lowercase(),
        };
        Ok(Options { node, listen: self.listen })
    }
}
