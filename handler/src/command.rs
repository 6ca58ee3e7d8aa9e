//! What the commands that run a node agent have in common: options, log, signals, exit code.

use std::error::Error;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ipnet::Ipv4Net;
use rustix::process::{Resource, Rlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, warn};
use tracing_subscriber::EnvFilter;
use vireo_api::spec::HypervisorChoice;

use crate::launcher::link::chain;
use crate::settings::{Settings, beside_this_program, host_name};
use crate::storage::AllowedPaths;

/// The error that ends a command.
pub type Failure = Box<dyn Error>;

/// The options of a node agent.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Where everything is kept, the VMs before all.
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
    /// Where persistent volume claims are, as DIR/NAMESPACE/CLAIM/disk.img [default: claims in the state directory].
    #[arg(long, value_name = "DIR")]
    storage_dir: Option<PathBuf>,
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

impl NodeArgs {
    /// Makes the settings complete, and the state directory; paths absolute, since launchers are started elsewhere.
    ///
    /// # Errors
    /// When the state directory cannot be created, or this program cannot be found.
    pub fn settings(self) -> Result<Settings, Failure> {
        std::fs::create_dir_all(&self.state_dir)
            .map_err(|error| format!("cannot create {}: {error}", self.state_dir.display()))?;
        let state_dir = std::path::absolute(self.state_dir)?;
        Ok(Settings {
            storage_dir: match self.storage_dir {
                Some(path) => std::path::absolute(path)?,
                None => state_dir.join("claims"),
            },
            state_dir,
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
            allowed: AllowedPaths::any(),
            node_name: self.node_name.unwrap_or_else(host_name),
        })
    }
}

/// Runs a command on its own runtime and logs the error that ends it. The log goes to stderr, filtered by the
/// directives of `tracing_subscriber::EnvFilter` in `VIREO_LOG`.
pub fn run<F: Future<Output = Result<(), Failure>>>(
    command: impl FnOnce() -> Result<F, Failure>,
) -> ExitCode {
    let filter = EnvFilter::try_from_env("VIREO_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // Reporting a line that cannot be written would panic: the log's disk may be full.
        .log_internal_errors(false)
        .with_target(false)
        .init();
    if let Err(error) = raise_open_files() {
        warn!(%error, "cannot raise the limit of open files, which many clients and VMs need");
    }
    match command().and_then(drive) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Raises the limit of open files: a node has hundreds of connections and guests.
fn raise_open_files() -> Result<(), rustix::io::Errno> {
    let files = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum })
}

fn drive(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(command);
    // Blocking work (an import, a namespace) is abandoned; all of it is idempotent.
    runtime.shutdown_background();
    done
}

/// Returns a future that ends at SIGTERM or SIGINT. From this call on, neither signal kills the process.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
