use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Controls virtual machines.
#[derive(Debug, Parser)]
#[command(name = "virtctl", version, about)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) server: Server,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the machines are, and which namespace is meant.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// State directory of the virt-handler on this machine
    #[arg(
        long,
        global = true,
        env = "VIREO_STATE_DIR",
        default_value = "/var/lib/vireo",
        value_name = "DIR"
    )]
    pub(crate) state_dir: PathBuf,
    /// Namespace of the virtual machine instance
    #[arg(short, long, global = true, default_value = "default", value_name = "NAMESPACE")]
    pub(crate) namespace: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Connect to the serial console of a virtual machine instance
    Console(Console),
    /// Print the versions of virtctl and of the server
    Version,
}

#[derive(Debug, Args)]
pub(crate) struct Console {
    /// Name of the virtual machine instance
    pub(crate) vmi: String,
    /// How many minutes to wait for the instance to run
    #[arg(long, default_value_t = 5, value_name = "MINUTES")]
    pub(crate) timeout: u64,
}
