mod admin;
mod create;
mod credentials;
mod expose;
mod forward;
mod image_upload;
mod server;
mod volume;

use std::net::IpAddr;
use std::path::PathBuf;

pub(crate) use admin::{
    Adm, AdmCommand, Guestfs, LogVerbosity, MemoryDump, MemoryDumpCommand, NewClaim, ObjectGraph, Usbredir,
    VmExport,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
pub(crate) use create::{
    CloudInit, Create, CreateCommand, CreateInstancetype, CreatePreference, CreateVm, Elsewhere, Filled,
    Infer, Volumes,
};
pub(crate) use credentials::{
    AddKey, Credentials, CredentialsCommand, PublicKey, RemoveKey, SetPassword, UserSecret,
};
pub(crate) use expose::Expose;
pub(crate) use forward::{PortForward, Scp, Secure, Ssh};
pub(crate) use image_upload::ImageUpload;
pub(crate) use server::{Server, Timeout};
pub(crate) use volume::{AddVolume, Plugged};

/// Controls virtual machines.
#[derive(Debug, Parser)]
#[command(name = "virtctl", version, about)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) server: Server,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Connect to the serial console of a virtual machine instance
    Console(Console),
    /// Open the VNC display of a virtual machine instance
    Vnc(Vnc),
    /// Forward local ports to a virtual machine
    PortForward(PortForward),
    /// Open an SSH session to a virtual machine, by the local ssh client
    Ssh(Ssh),
    /// Copy files from or to a virtual machine, by the local scp client
    Scp(Scp),
    /// Start a virtual machine
    Start(Start),
    /// Stop a virtual machine
    Stop(Stop),
    /// Restart a virtual machine
    Restart(Stop),
    /// Pause a virtual machine
    Pause(PauseArgs),
    /// Unpause a virtual machine
    Unpause(PauseArgs),
    /// Reset a virtual machine, as its reset button does
    Reset(PauseArgs),
    /// Reboot a virtual machine softly, by its power button
    #[command(visible_alias = "softreboot")]
    SoftReboot(PauseArgs),
    /// Print guest OS information from the guest agent
    #[command(name = "guestosinfo")]
    GuestOsInfo(Instance),
    /// Print the file systems reported by the guest agent
    #[command(name = "fslist")]
    FsList(Instance),
    /// Print the logged-in users reported by the guest agent
    #[command(name = "userlist")]
    UserList(Instance),
    /// Attach a volume to a running virtual machine
    #[command(name = "addvolume")]
    AddVolume(AddVolume),
    /// Detach a volume from a running virtual machine
    #[command(name = "removevolume")]
    RemoveVolume(Plugged),
    /// Print a manifest of a virtual machine, an instance type or a preference
    Create(Create),
    /// Fill a persistent volume claim with a disk image
    ImageUpload(Box<ImageUpload>),
    /// Expose a virtual machine as a new service
    Expose(Expose),
    /// Manipulate credentials on a virtual machine
    Credentials(Credentials),
    /// Print what a virtual machine depends on
    #[command(name = "objectgraph")]
    ObjectGraph(ObjectGraph),
    /// List the permitted devices for virtual machine instances
    PermittedDevices,
    /// Administrate KubeVirt
    Adm(Adm),
    /// Dump the memory of a running virtual machine to a claim
    MemoryDump(MemoryDump),
    /// Redirect a local USB device to a virtual machine instance
    #[command(name = "usbredir")]
    Usbredir(Usbredir),
    /// Start a shell with libguestfs' tools on a claim
    Guestfs(Guestfs),
    /// Export the volumes of a virtual machine
    #[command(name = "vmexport")]
    VmExport(VmExport),
    /// Print a virtual machine expanded with its instance type and preference
    Expand(Expand),
    /// Print the versions of virtctl and of the server
    Version(Version),
    /// Print a script that lets a shell complete virtctl's commands and flags
    Completion(Completion),
}

#[derive(Debug, Args)]
pub(crate) struct VmTarget {
    /// Name of the virtual machine
    pub(crate) vm: String,
    /// Only validate the request on the server
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Instance {
    /// Name of the virtual machine instance
    pub(crate) vmi: String,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    #[command(flatten)]
    pub(crate) vm: VmTarget,
    /// Start in paused state, until virtctl unpause
    #[arg(long)]
    pub(crate) paused: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    pub(crate) vm: VmTarget,
    /// Seconds that the guest gets to shut down, instead of its spec's grace period; with --force, 0
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) grace_period: Option<i64>,
    /// Do not wait for the guest; needs --grace-period=0
    #[arg(long, requires = "grace_period")]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// What is named: vm or vmi, then the name; a name alone is that of an instance
    #[arg(required = true, num_args = 1..=2, value_names = ["KIND", "NAME"])]
    pub(crate) target: Vec<String>,
    /// Only validate the request on the server
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Version {
    /// Only that of virtctl; needs no server
    #[arg(short, long)]
    pub(crate) client: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// For which shell; for bash: source <(virtctl completion bash)
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Expand {
    /// Name of the virtual machine
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    pub(crate) vm: Option<String>,
    /// File with a virtual machine, in YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "vm")]
    pub(crate) file: Option<String>,
    /// yaml or json
    #[arg(short, long, default_value = "yaml", value_parser = ["yaml", "json"])]
    pub(crate) output: String,
}

#[derive(Debug, Args)]
pub(crate) struct Console {
    /// Name of the virtual machine instance
    pub(crate) vmi: String,
    /// How many minutes to wait for the instance to run
    #[arg(long, default_value_t = 5, value_name = "MINUTES")]
    pub(crate) timeout: u64,
    /// First print earlier console output, as plain text [default: on a terminal, true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) history: Option<bool>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Vnc {
    #[command(subcommand)]
    pub(crate) command: Option<VncCommand>,
    /// Name of the virtual machine instance
    #[arg(required = true)]
    pub(crate) vmi: Option<String>,
    /// Start no viewer: print the port, as {"port": N}, and serve it until interrupted
    #[arg(long)]
    pub(crate) proxy_only: bool,
    /// Port for the viewer; 0 finds a free one
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,
    /// Kind of the viewer to start; found in $PATH where --vnc-path does not say where it is
    #[arg(long, value_name = "TYPE")]
    pub(crate) vnc_type: Option<ViewerType>,
    /// Path of the viewer to start, whose kind is --vnc-type
    #[arg(long, value_name = "PATH", requires = "vnc_type")]
    pub(crate) vnc_path: Option<PathBuf>,
    /// Fail where a viewer is connected already and the server has only one at a time
    #[arg(long)]
    pub(crate) preserve_session: bool,
}

/// A kind of viewer, which decides how it gets an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViewerType {
    /// TigerVNC
    Tiger,
    /// Chicken of the VNC
    Chicken,
    /// RealVNC
    Real,
    /// remote-viewer of virt-viewer
    RemoteViewer,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VncCommand {
    /// Save the display as a PNG file
    Screenshot(Screenshot),
}

#[derive(Debug, Args)]
pub(crate) struct Screenshot {
    /// Name of the virtual machine instance
    pub(crate) vmi: String,
    /// Where to save it; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: String,
    /// Move the pointer first, to wake a screen saver
    #[arg(short, long)]
    pub(crate) move_cursor: bool,
}
