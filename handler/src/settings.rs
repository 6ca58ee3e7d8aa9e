//! What the handler was told on its command line.

use std::path::PathBuf;

use ipnet::Ipv4Net;
use vireo_api::spec::HypervisorChoice;

/// Settings of one handler.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `--manifests`.
    pub manifests: PathBuf,
    /// `--state-dir`.
    pub state_dir: PathBuf,
    /// `--hypervisor`.
    pub hypervisor: HypervisorChoice,
    /// `--vm-cidr`.
    pub vm_cidr: Ipv4Net,
    /// `--launcher`.
    pub launcher: PathBuf,
    /// `--qemu`; the launcher's default when absent.
    pub qemu: Option<PathBuf>,
    /// `--node-name`.
    pub node_name: String,
}
