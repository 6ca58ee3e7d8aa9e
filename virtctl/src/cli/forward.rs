//! What reaches into a guest over its network.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct PortForward {
    /// KIND/NAME[/NAMESPACE]: vm or vmi, and its name; KIND/NAME.NAMESPACE is understood, too, where -n is not given
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Ports: tcp or udp (default tcp), the port here (0: any), and the port in the guest if it is another
    #[arg(required = true, value_name = "[PROTOCOL/]LOCAL[:REMOTE]")]
    pub(crate) ports: Vec<String>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,
    /// Forward the one port to standard input and output, as ssh's ProxyCommand needs it
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true",
          action = clap::ArgAction::Set)]
    pub(crate) stdio: bool,
}

/// Common options of `ssh` and `scp`.
#[derive(Debug, Args)]
pub(crate) struct Secure {
    /// Who to be in the guest [default: as ssh decides]
    #[arg(short = 'l', long)]
    pub(crate) username: Option<String>,
    /// File with the private key
    #[arg(short, long, value_name = "FILE")]
    pub(crate) identity_file: Option<PathBuf>,
    /// File with what is known of guests' keys [default: ~/.ssh/kubevirt_known_hosts]
    #[arg(long, value_name = "FILE")]
    pub(crate) known_hosts: Option<PathBuf>,
    /// Port of the guest's ssh server
    #[arg(short, long, default_value_t = 22)]
    pub(crate) port: u16,
    /// A further option for the local client, as in -t="-o StrictHostKeyChecking=no"; may be repeated
    #[arg(short = 't', long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) local_ssh_opts: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Ssh {
    /// Where to log in
    #[arg(value_name = "[USER@]KIND/NAME[/NAMESPACE]")]
    pub(crate) target: String,
    /// What to run in place of a shell
    #[arg(short, long)]
    pub(crate) command: Option<String>,
    #[command(flatten)]
    pub(crate) secure: Secure,
}

#[derive(Debug, Args)]
pub(crate) struct Scp {
    /// From where: a path here, or the one in a guest
    #[arg(value_name = "[[USER@]KIND/NAME[/NAMESPACE]:]PATH")]
    pub(crate) source: String,
    /// To where, in the same way
    #[arg(value_name = "[[USER@]KIND/NAME[/NAMESPACE]:]PATH")]
    pub(crate) destination: String,
    /// Copy whole directories
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Keep times and modes
    #[arg(long)]
    pub(crate) preserve: bool,
    #[command(flatten)]
    pub(crate) secure: Secure,
}
