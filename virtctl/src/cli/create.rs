//! What is made into manifests.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(subcommand)]
    pub(crate) command: CreateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CreateCommand {
    /// Print a VirtualMachine
    Vm(Box<CreateVm>),
    /// Print a VirtualMachineClusterInstancetype, or with --namespaced a VirtualMachineInstancetype
    Instancetype(CreateInstancetype),
    /// Print a VirtualMachineClusterPreference, or with --namespaced a VirtualMachinePreference
    Preference(CreatePreference),
}

#[derive(Debug, Args)]
pub(crate) struct CreateVm {
    /// Its name [default: vm- and five letters]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// When it runs
    #[arg(long, value_name = "STRATEGY", default_value = "Always",
          value_parser = ["Always", "Halted", "Manual", "Once", "RerunOnFailure"])]
    pub(crate) run_strategy: String,
    /// Seconds that the guest gets to shut down
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) termination_grace_period: i64,
    /// Guest memory [default: 512Mi; with an instance type, its memory]
    #[arg(long, value_name = "QUANTITY", conflicts_with = "instancetype")]
    pub(crate) memory: Option<String>,
    /// Its instance type: NAME, or KIND/NAME
    #[arg(long)]
    pub(crate) instancetype: Option<String>,
    /// Its preference: NAME, or KIND/NAME
    #[arg(long)]
    pub(crate) preference: Option<String>,
    #[command(flatten)]
    pub(crate) infer: Infer,
    #[command(flatten)]
    pub(crate) volumes: Volumes,
    #[command(flatten)]
    pub(crate) filled: Filled,
    #[command(flatten)]
    pub(crate) cloud_init: CloudInit,
    #[command(flatten)]
    pub(crate) elsewhere: Elsewhere,
}

/// Inference from the labels of a volume's claim. Without a flag it is tried, and labels may be absent.
#[derive(Debug, Args)]
pub(crate) struct Infer {
    /// Infer the instance type from the boot volume
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = ArgAction::Set, conflicts_with_all = ["memory", "instancetype", "infer_instancetype_from"])]
    pub(crate) infer_instancetype: Option<bool>,
    /// Infer the instance type from this volume
    #[arg(long, value_name = "VOLUME", conflicts_with_all = ["memory", "instancetype"])]
    pub(crate) infer_instancetype_from: Option<String>,
    /// Infer the preference from the boot volume
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = ArgAction::Set, conflicts_with_all = ["preference", "infer_preference_from"])]
    pub(crate) infer_preference: Option<bool>,
    /// Infer the preference from this volume
    #[arg(long, value_name = "VOLUME", conflicts_with = "preference")]
    pub(crate) infer_preference_from: Option<String>,
}

/// Disks. Each is given as `key:value,key:value`.
#[derive(Debug, Args)]
pub(crate) struct Volumes {
    /// A disk from an image: src, name, bootorder; may be repeated
    #[arg(long, value_name = "src:IMAGE,...")]
    pub(crate) volume_containerdisk: Vec<String>,
    /// A disk from a claim: src, name, bootorder; may be repeated
    #[arg(long, value_name = "src:CLAIM,...")]
    pub(crate) volume_pvc: Vec<String>,
    /// Answer files for Windows: src, type (configmap or secret)
    #[arg(long, value_name = "src:NAME,...")]
    pub(crate) volume_sysprep: Option<String>,
}

/// Disks that CDI fills, by DataVolumes that are created and deleted with the VM. Each is given as `key:value,key:value`.
#[derive(Debug, Args)]
pub(crate) struct Filled {
    /// A new disk: type (blank, ds, gcs, http, imageio, pvc, registry, s3, snapshot or vddk), size, name, bootorder and
    /// what the type needs, such as url or src; may be repeated
    #[arg(long, value_name = "type:TYPE,...")]
    pub(crate) volume_import: Vec<String>,
    /// The same as --volume-import=type:ds; may be repeated
    #[arg(long, value_name = "src:DATASOURCE,...")]
    pub(crate) volume_datasource: Vec<String>,
    /// The same as --volume-import=type:pvc; may be repeated
    #[arg(long, value_name = "src:NAMESPACE/CLAIM,...")]
    pub(crate) volume_clone_pvc: Vec<String>,
    /// The same as --volume-import=type:blank; may be repeated
    #[arg(long, value_name = "size:SIZE,...")]
    pub(crate) volume_blank: Vec<String>,
}

/// cloud-init user data.
#[derive(Debug, Args)]
pub(crate) struct CloudInit {
    /// Which kind of disk carries it
    #[arg(long, value_name = "KIND", default_value = "nocloud", value_parser = ["nocloud", "configdrive", "none"])]
    pub(crate) cloud_init: String,
    /// User data in base64
    #[arg(long, value_name = "BASE64", conflicts_with_all = ["user", "password_file", "ssh_key"])]
    pub(crate) cloud_init_user_data: Option<String>,
    /// Network data in base64
    #[arg(long, value_name = "BASE64")]
    pub(crate) cloud_init_network_data: Option<String>,
    /// The guest's first user
    #[arg(long)]
    pub(crate) user: Option<String>,
    /// File with the user's password
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// A public key that lets the user in; may be repeated
    #[arg(long, value_name = "KEY")]
    pub(crate) ssh_key: Vec<String>,
}

/// Flags of upstream's command that are not supported: rejected with the reason.
#[derive(Debug, Args)]
pub(crate) struct Elsewhere {
    #[arg(long, hide = true)]
    pub(crate) access_cred: Vec<String>,
    #[arg(long, hide = true)]
    pub(crate) ga_manage_ssh: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CreateInstancetype {
    /// Its name [default: clusterinstancetype- or instancetype- and five letters]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Number of vCPUs
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cpu: u32,
    /// How much memory
    #[arg(long, value_name = "QUANTITY")]
    pub(crate) memory: String,
    /// A GPU of the host: name, devicename; may be repeated
    #[arg(long, value_name = "name:NAME,devicename:DEVICE")]
    pub(crate) gpu: Vec<String>,
    /// Another device of the host: name, devicename; may be repeated
    #[arg(long, value_name = "name:NAME,devicename:DEVICE")]
    pub(crate) hostdevice: Vec<String>,
    /// How threads for disks are shared
    #[arg(long, value_name = "POLICY", value_parser = ["auto", "shared"])]
    pub(crate) iothreadspolicy: Option<String>,
    /// In one namespace; so it is with -n, too
    #[arg(long)]
    pub(crate) namespaced: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CreatePreference {
    /// Its name [default: clusterpreference- or preference- and five letters]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Preferred CPU topology
    #[arg(long, value_name = "TOPOLOGY", value_parser = ["sockets", "cores", "threads", "spread", "any"])]
    pub(crate) cpu_topology: Option<String>,
    /// Preferred machine type
    #[arg(long, value_name = "TYPE")]
    pub(crate) machine_type: Option<String>,
    /// Which storage class
    #[arg(long, value_name = "CLASS")]
    pub(crate) volume_storage_class: Option<String>,
    /// In one namespace; so it is with -n, too
    #[arg(long)]
    pub(crate) namespaced: bool,
}
