//! The settings of the handler's command line.

use std::path::PathBuf;

use ipnet::{Ipv4Net, Ipv6Net};
use vireo_api::spec::HypervisorChoice;

use crate::launcher::cgroup::IoMax;
use crate::launcher::users::Users;
use crate::network::host::GuestAccess;
use crate::storage::{AllowedDirectories, AllowedPaths, ImageReader, RegistrySettings};

/// Who starts launchers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runtime {
    /// The handler, as processes of this node.
    Process,
    /// The kubelet, in Pods whose files are in this directory.
    Pods(PathBuf),
}

impl Runtime {
    /// Whether the node is the only one, without a cluster around it.
    pub fn is_single_host(&self) -> bool {
        *self == Self::Process
    }
}

/// How launchers that the handler starts are separated from the node and from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Each has a user of this range, namespaces of its own and no privileges.
    Users(Users),
    /// They are root on the node: who breaks out of a guest has the node.
    None,
}

/// Whether launchers that the handler starts have cgroups of their own, with limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LauncherCgroups {
    /// As far as the host lets the handler make them.
    Auto,
    /// A launcher without its limits is not started.
    Required,
    /// None.
    None,
}

/// Settings of one handler.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `--state-dir`.
    pub state_dir: PathBuf,
    /// `--hypervisor`.
    pub hypervisor: HypervisorChoice,
    /// `--vm-cidr`.
    pub vm_cidr: Ipv4Net,
    /// `--vm-cidr-ipv6`; without it, VMs have IPv4 alone.
    pub vm_cidr_ipv6: Option<Ipv6Net>,
    /// `--allow-guest-to-host` and `--allow-guest-to-guest`.
    pub guest_access: GuestAccess,
    /// Who starts launchers.
    pub runtime: Runtime,
    /// `--launcher-isolation` with `--vm-uids`.
    pub isolation: Isolation,
    /// `--launcher-cgroups`.
    pub cgroups: LauncherCgroups,
    /// `--launcher-io-max`.
    pub io_max: Vec<IoMax>,
    /// `--launcher`.
    pub launcher: PathBuf,
    /// `--qemu`; the launcher's default when absent.
    pub qemu: Option<PathBuf>,
    /// `--storage-dir`.
    pub storage_dir: PathBuf,
    /// `--storage-overcommit`.
    pub storage_overcommit: u64,
    /// The paths of this node that manifests may name.
    pub allowed: AllowedPaths,
    /// `--node-name`.
    pub node_name: String,
    /// How images of registries are pulled; absent where the kubelet pulls them.
    pub registries: Option<RegistrySettings>,
    /// Who reads images: `--importer`, as the last user of `--vm-uids`.
    pub image_reader: ImageReader,
}

impl Settings {
    /// The same for launchers in Pods, whose files the kubelet has in this directory. Users of a cluster name no paths of
    /// its nodes.
    pub fn in_pods(self, pods: PathBuf) -> Self {
        let none = AllowedDirectories::Below(Vec::new());
        let allowed = AllowedPaths { host_disks: none.clone(), images: none, named_images: Vec::new() };
        Self { runtime: Runtime::Pods(pods), allowed, registries: None, ..self }
    }
}

/// A program of this release lies beside its handler.
///
/// # Errors
/// When this program cannot be found.
pub fn beside_this_program(name: &str) -> std::io::Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name(name);
    Ok(if beside.exists() { beside } else { PathBuf::from(name) })
}

/// The name of this host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
