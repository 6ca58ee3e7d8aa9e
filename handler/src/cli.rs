//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::Ipv4Net;
use vireo_api::spec::HypervisorChoice;
use vireo_handler::report::{Asked, Format};
use vireo_handler::settings::{Settings, beside_this_program, host_name};

/// The node agent: runs the virtual machines that manifests describe.
#[derive(Debug, Parser)]
#[command(
    name = "virt-handler",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: Option<Run>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows VMIs: phase, hypervisor and why, address, and what is wrong with refused manifests.
    Status(Status),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Directory of VirtualMachineInstance manifests (*.yaml, *.yml, *.json), followed as it changes.
    // Not required by clap: it would be required of `status` too wherever the environment names the state directory.
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// Where everything about the VMs is kept.
    #[arg(long, value_name = "DIR", env = "VIREO_STATE_DIR", default_value = "/var/lib/vireo")]
    state_dir: PathBuf,
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
    /// What this node is called in the VMIs' status [default: the host's name].
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Hypervisor {
    Auto,
    Native,
    Qemu,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Only this VMI.
    name: Option<String>,
    /// Only this namespace; with a NAME, its namespace [default: all, with a NAME: default].
    #[arg(short, long)]
    namespace: Option<String>,
    /// How to show them.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// The handler's state directory.
    #[arg(long, value_name = "DIR", env = "VIREO_STATE_DIR", default_value = "/var/lib/vireo")]
    state_dir: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Yaml,
    Json,
    Wide,
}

impl From<Status> for Asked {
    fn from(status: Status) -> Self {
        Self {
            name: status.name,
            namespace: status.namespace,
            format: match status.output {
                None => Format::Table,
                Some(Output::Wide) => Format::Wide,
                Some(Output::Yaml) => Format::Yaml,
                Some(Output::Json) => Format::Json,
            },
            state_dir: status.state_dir,
        }
    }
}

impl Run {
    /// Makes the settings complete; paths absolute, since launchers are started elsewhere.
    /// With the manifests directory.
    pub(crate) fn settings(self) -> Result<(Settings, PathBuf), Box<dyn std::error::Error>> {
        let manifests = self.manifests.ok_or("--manifests is required")?;
        std::fs::create_dir_all(&self.state_dir)
            .map_err(|error| format!("cannot create {}: {error}", self.state_dir.display()))?;
        let settings = Settings {
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
            node_name: match self.node_name {
                Some(name) => name,
                None => host_name(),
            },
        };
        Ok((settings, std::path::absolute(manifests)?))
    }
}
