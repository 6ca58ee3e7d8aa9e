//! The command line of `virtctl image-upload`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct ImageUpload {
    /// What is filled: pvc; dv, a DataVolume, is not available
    #[arg(value_name = "KIND", value_parser = ["pvc", "dv"])]
    pub(crate) kind: String,
    /// Name of the PersistentVolumeClaim
    pub(crate) name: String,
    /// The image: raw, qcow2, or one of them compressed by gzip or xz
    #[arg(long, value_name = "FILE", required_unless_present = "archive_path")]
    pub(crate) image_path: Option<PathBuf>,
    /// Not available: archives cannot be written to a disk
    #[arg(long, value_name = "FILE", conflicts_with = "image_path")]
    pub(crate) archive_path: Option<PathBuf>,
    /// Size of the claim that is made, as 10Gi
    #[arg(long, value_name = "SIZE", required_unless_present = "no_create")]
    pub(crate) size: Option<String>,
    /// Fill a claim that is there, and make none
    #[arg(long)]
    pub(crate) no_create: bool,
    /// Access mode of the claim that is made
    #[arg(long, value_name = "MODE", default_value = "ReadWriteOnce")]
    pub(crate) access_mode: String,
    /// Volume mode of the claim that is made: filesystem or block
    #[arg(long, value_name = "MODE", value_parser = ["filesystem", "block"], conflicts_with = "block_volume")]
    pub(crate) volume_mode: Option<String>,
    /// The same as --volume-mode=block
    #[arg(long)]
    pub(crate) block_volume: bool,
    /// Storage class of the claim that is made
    #[arg(long, value_name = "NAME")]
    pub(crate) storage_class: Option<String>,
    /// Fill the claim though it has no consumer yet
    #[arg(long)]
    pub(crate) force_bind: bool,
    /// Default instance type of VMs that infer it from the claim
    #[arg(long, value_name = "NAME", conflicts_with = "no_create")]
    pub(crate) default_instancetype: Option<String>,
    /// Its kind [default: VirtualMachineClusterInstancetype]
    #[arg(long, value_name = "KIND", requires = "default_instancetype",
          value_parser = ["VirtualMachineInstancetype", "VirtualMachineClusterInstancetype"])]
    pub(crate) default_instancetype_kind: Option<String>,
    /// Default preference of VMs that infer it from the claim
    #[arg(long, value_name = "NAME", conflicts_with = "no_create")]
    pub(crate) default_preference: Option<String>,
    /// Its kind [default: VirtualMachineClusterPreference]
    #[arg(long, value_name = "KIND", requires = "default_preference",
          value_parser = ["VirtualMachinePreference", "VirtualMachineClusterPreference"])]
    pub(crate) default_preference_kind: Option<String>,
    /// URL of the upload proxy [default: as configured on the server]
    #[arg(long, value_name = "URL")]
    pub(crate) uploadproxy_url: Option<String>,
    /// Do not verify the certificate of the upload proxy
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Seconds to wait for the claim, and after the upload for its disk
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) wait_secs: u64,
}
