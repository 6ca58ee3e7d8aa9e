//! What concerns an installation, and what needs parts that a server may lack.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct Adm {
    #[command(subcommand)]
    pub(crate) command: AdmCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AdmCommand {
    /// Show, set or reset the log verbosity (0-9) of components
    LogVerbosity(LogVerbosity),
}

/// Each flag with a number sets it, each without shows it.
#[derive(Debug, Default, Args)]
pub(crate) struct LogVerbosity {
    /// Show or set the log verbosity of virt-api
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "show")]
    pub(crate) virt_api: Option<String>,
    /// Show or set the log verbosity of virt-controller
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "show")]
    pub(crate) virt_controller: Option<String>,
    /// Show or set the log verbosity of virt-handler
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "show")]
    pub(crate) virt_handler: Option<String>,
    /// Show or set the log verbosity of virt-launcher
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "show")]
    pub(crate) virt_launcher: Option<String>,
    /// Show or set the log verbosity of virt-operator
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "show")]
    pub(crate) virt_operator: Option<String>,
    /// Show or set the log verbosity of all components
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "show")]
    pub(crate) all: Option<String>,
    /// Reset the log verbosity of all components to the default
    #[arg(long, value_name = "all", num_args = 0..=1, require_equals = true, default_missing_value = "all",
          value_parser = ["all"])]
    pub(crate) reset: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ObjectGraph {
    /// Name of the virtual machine
    pub(crate) name: String,
    /// It is the name of an instance
    #[arg(long)]
    pub(crate) vmi: bool,
    /// Leave out what need not exist
    #[arg(long)]
    pub(crate) exclude_optional: bool,
    /// Labels that printed objects have, such as kubevirt.io/dependency-type=storage; may be repeated
    #[arg(long, value_name = "LABEL=VALUE", value_delimiter = ',')]
    pub(crate) selector: Vec<String>,
    /// json or yaml
    #[arg(short, long, default_value = "json", value_parser = ["json", "yaml"])]
    pub(crate) output: String,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryDump {
    #[command(subcommand)]
    pub(crate) command: MemoryDumpCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemoryDumpCommand {
    /// Dump the memory of a virtual machine to a claim
    Get {
        /// Name of the virtual machine
        vm: String,
        /// Name of the claim
        #[arg(long, value_name = "NAME")]
        claim_name: Option<String>,
        #[command(flatten)]
        new_claim: NewClaim,
    },
    /// Download the last memory dump
    Download {
        /// Name of the virtual machine
        vm: String,
        /// Where to save it
        #[arg(long, value_name = "FILE")]
        output: Option<String>,
    },
    /// Forget the claim with the last memory dump
    Remove {
        /// Name of the virtual machine
        vm: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct NewClaim {
    /// Make the claim first, as large as the memory needs
    #[arg(long, requires = "claim_name")]
    pub(crate) create_claim: bool,
    /// Access mode of the claim that is made
    #[arg(long, value_name = "MODE", default_value = "ReadWriteOnce", requires = "create_claim",
          value_parser = ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"])]
    pub(crate) access_mode: String,
    /// Storage class of the claim that is made
    #[arg(long, value_name = "NAME", requires = "create_claim")]
    pub(crate) storage_class: Option<String>,
}

/// The device is of this host: as lsusb names it, 0951:1666 or 002-003.
#[derive(Debug, Args)]
pub(crate) struct Usbredir {
    /// The USB device, by VENDOR:PRODUCT or BUS-DEVICE, and the name of the virtual machine instance; with --no-launch only
    /// that
    #[arg(required = true, num_args = 1..=2, value_names = ["DEVICE", "VMI"])]
    pub(crate) target: Vec<String>,
    /// Do not start usbredirect: print the address for a usbredir client, and serve one
    #[arg(long)]
    pub(crate) no_launch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Guestfs {
    /// Name of the claim
    pub(crate) claim: String,
    /// Further flags of upstream's command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub(crate) rest: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct VmExport {
    /// create, delete or download
    #[arg(value_parser = ["create", "delete", "download"])]
    pub(crate) operation: String,
    /// Name of the export
    pub(crate) name: String,
    /// Further flags of upstream's command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub(crate) rest: Vec<String>,
}
