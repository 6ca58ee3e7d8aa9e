//! What the commands that run a node agent have in common: options.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ipnet::{Ipv4Net, Ipv6Net};
use vireo_api::spec::HypervisorChoice;
pub use vireo_client::program::{Failure, run, stop_signal};

use crate::launcher::cgroup::IoMax;
use crate::launcher::users::Users;
use crate::network::address::parse_ipv6_range;
use crate::network::host::GuestAccess;
use crate::network::ports::Ports;
use crate::settings::{Isolation, LauncherCgroups, Runtime, Settings, beside_this_program, host_name};
use crate::state::StateDir;
use crate::storage::{AllowedPaths, ImageReader, ImporterSettings, Registries, RegistrySettings};

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
    /// The same for IPv6; each takes a /126. The host then forwards IPv6 [default: VMs have IPv4 alone].
    #[arg(long, value_name = "CIDR", value_parser = parse_ipv6_range)]
    vm_cidr_ipv6: Option<Ipv6Net>,
    /// A port of this host that guests reach, such as tcp/8080; may be repeated [default: none].
    #[arg(long, value_name = "PROTOCOL/PORT")]
    allow_guest_to_host: Vec<Ports>,
    /// Guests reach each other [default: they do not].
    #[arg(long)]
    allow_guest_to_guest: bool,
    /// The virt-launcher to start [default: beside this program, else on PATH].
    #[arg(long, value_name = "PATH")]
    launcher: Option<PathBuf>,
    /// The virt-importer that pulls and reads images [default: beside this program, else on PATH].
    #[arg(long, value_name = "PATH")]
    importer: Option<PathBuf>,
    /// Mirrors, credentials and certificates of registries, in the format of K3s' registries.yaml.
    #[arg(long, value_name = "FILE")]
    registries: Option<PathBuf>,
    /// How launchers are separated from this host. With `none`, they are root on it, which is unsafe: for hosts that do not
    /// let this program make namespaces.
    #[arg(long, value_enum, default_value_t = LauncherIsolation::Full)]
    launcher_isolation: LauncherIsolation,
    /// Whether launchers have cgroups with limits of memory, CPU time and processes.
    #[arg(long, value_enum, default_value_t = Cgroups::Auto)]
    launcher_cgroups: Cgroups,
    /// How much each launcher may read from and write to a disk of this host in a second, as a line of the kernel's io.max: `8:0
    /// wbps=104857600 riops=1000`. May be repeated for other disks.
    #[arg(long, value_name = "LIMITS")]
    launcher_io_max: Vec<IoMax>,
    /// User and group IDs of launchers. Each VM has its own, each import of an image one of the last 64 (of a quarter, where there are
    /// fewer than 256), and nothing else on this host may use them. The default is above those that distributions and container
    /// runtimes use.
    #[arg(long, value_name = "FIRST-LAST", default_value = "1900000000-1900999999")]
    vm_uids: Users,
    /// The QEMU that launchers use, below /usr or without files of its own elsewhere [default: qemu-system-x86_64 on PATH].
    #[arg(long, value_name = "PATH")]
    qemu: Option<PathBuf>,
    /// Where persistent volume claims are, as DIR/NAMESPACE/CLAIM/disk.img [default: claims in the state directory].
    #[arg(long, value_name = "DIR")]
    storage_dir: Option<PathBuf>,
    /// How much of the file system of --storage-dir may be promised to persistent volume claims and empty disks, in percent of
    /// what is free or theirs; empty disks on other file systems likewise. A claim beyond that stays Pending, a VM waits.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    storage_overcommit: u64,
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

/// A path as an isolated launcher, which has another working directory, finds it. A name is looked up on PATH.
fn absolute_unless_name(path: PathBuf) -> std::io::Result<PathBuf> {
    if path.components().count() > 1 { std::path::absolute(path) } else { Ok(path) }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LauncherIsolation {
    /// A user for each VM, own namespaces, no capabilities, and the files of the system alone.
    Full,
    /// None.
    None,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Cgroups {
    /// As far as this host lets this program make them; a VMI whose limits are not in force says so.
    Auto,
    /// A VM without its limits is not started.
    Required,
    /// None.
    None,
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
        let registries = match &self.registries {
            Some(path) => Registries::read(path).map_err(|error| format!("--registries: {error}"))?,
            None => Registries::default(),
        };
        let importer = ImporterSettings {
            program: match self.importer {
                Some(path) => std::path::absolute(path)?,
                None => beside_this_program("virt-importer")?,
            },
            users: self.vm_uids.importers(StateDir::at(&state_dir)),
        };
        Ok(Settings {
            storage_dir: match self.storage_dir {
                Some(path) => std::path::absolute(path)?,
                None => state_dir.join("claims"),
            },
            storage_overcommit: self.storage_overcommit,
            state_dir,
            hypervisor: match self.hypervisor {
                Hypervisor::Auto => HypervisorChoice::Auto,
                Hypervisor::Native => HypervisorChoice::Native,
                Hypervisor::Qemu => HypervisorChoice::Qemu,
            },
            vm_cidr: self.vm_cidr.trunc(),
            vm_cidr_ipv6: self.vm_cidr_ipv6,
            guest_access: GuestAccess {
                host_ports: self.allow_guest_to_host,
                each_other: self.allow_guest_to_guest,
            },
            runtime: Runtime::Process,
            isolation: match self.launcher_isolation {
                LauncherIsolation::Full => Isolation::Users(self.vm_uids),
                LauncherIsolation::None => Isolation::None,
            },
            cgroups: match self.launcher_cgroups {
                Cgroups::Auto => LauncherCgroups::Auto,
                Cgroups::Required => LauncherCgroups::Required,
                Cgroups::None => LauncherCgroups::None,
            },
            io_max: self.launcher_io_max,
            launcher: match self.launcher {
                Some(path) => std::path::absolute(path)?,
                None => beside_this_program("virt-launcher")?,
            },
            qemu: self.qemu.map(absolute_unless_name).transpose()?,
            allowed: AllowedPaths::any(),
            node_name: self.node_name.unwrap_or_else(host_name),
            image_reader: ImageReader::Process(importer.clone()),
            registries: Some(RegistrySettings { importer, registries: registries.into() }),
        })
    }
}
