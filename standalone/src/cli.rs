//! The command line.

use std::net::SocketAddr;
use std::path::{Component, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, value_parser};
use vireo_apiserver::pki::OVERLAP;
use vireo_apiserver::server::ClientTimeouts;
use vireo_handler::command::{Failure, NodeArgs};
use vireo_handler::storage::{AllowedDirectories, AllowedPaths};
use vireo_install::installation::Images;
use vireo_standalone::run::Options;

/// VMs with the KubeVirt API, without a cluster.
#[derive(Debug, Parser)]
#[command(name = "vireo", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serves the KubeVirt API for this host and runs its VMIs; writes a kubeconfig and prints its path.
    Standalone(Box<Standalone>),
    /// Prints virt-operator's objects, for `kubectl apply -f -`. A KubeVirt object then has it install the rest.
    Manifests(Manifests),
    /// Deletes the KubeVirt object of a cluster, that of $KUBECONFIG or the one that it runs in, and waits until virt-operator has
    /// removed what it installed: for `helm uninstall`, before virt-operator is deleted.
    Uninstall(Uninstall),
    /// The certificates of a standalone server: an administrator's command on its host.
    #[command(subcommand)]
    Certificate(CertificateCommand),
    /// The administrator's token, and the key of other tokens, of a standalone server.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Shuts every guest of a stopped `vireo` down, each within its grace period, and waits: for a host that shuts down.
    StopGuests(StopGuests),
}

#[derive(Debug, Args)]
pub(crate) struct Manifests {
    #[command(flatten)]
    pub(crate) images: Images,
    /// Writes files of the Helm chart in this directory instead: those that are made from the program.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["components", "launcher", "pull_policy"])]
    pub(crate) chart: Option<PathBuf>,
    /// Prints the table of fields for docs/api.md instead.
    #[arg(long, conflicts_with_all = ["components", "launcher", "pull_policy", "chart"])]
    pub(crate) fields: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Uninstall {
    /// Deletes nothing, and fails while there is a KubeVirt object.
    #[arg(long)]
    pub(crate) keep: bool,
    /// How long to wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 240)]
    pub(crate) timeout: u64,
}

/// The state directory of a standalone server, which may run.
#[derive(Debug, Args)]
pub(crate) struct ServerState {
    /// The state directory of the server.
    #[arg(long, value_name = "DIR", env = "VIREO_STATE_DIR", default_value = "/var/lib/vireo")]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CertificateCommand {
    /// Prints until when certificates are valid.
    Check(ServerState),
    /// Makes the certificates of the server and of the administrator anew, and with them the kubeconfig. Former ones stay valid until
    /// they end.
    Rotate(ServerState),
    /// Replaces the certificate authority in steps, so that clients keep working that read the kubeconfig again during each.
    RotateCa {
        #[command(flatten)]
        server: ServerState,
        /// How long the next authority is announced before it issues certificates, and the former one trusted after that.
        #[arg(long, value_name = "SECONDS", default_value_t = OVERLAP.as_secs())]
        overlap: u64,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Replaces the administrator's token. The former one is refused at once.
    Rotate(ServerState),
    /// Replaces the key that signs tokens of ServiceAccounts. Tokens of former keys are accepted until they end.
    RotateKey {
        #[command(flatten)]
        server: ServerState,
        /// How long tokens of former keys are accepted at most: those of Secrets have no end. 0 refuses them at once.
        #[arg(long, value_name = "SECONDS")]
        overlap: Option<u64>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct StopGuests {
    /// The state directory of the `vireo` whose guests are meant.
    #[arg(long, value_name = "DIR", env = "VIREO_STATE_DIR", default_value = "/var/lib/vireo")]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Standalone {
    #[command(flatten)]
    node: NodeArgs,
    /// Where the API listens; port 0 takes a free one. Clients need the kubeconfig or the token.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// How long a client of the API may take to agree on TLS, and to send the head of a request. It has half as much again for
    /// the body, and three times as much to take something of what it is sent.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = ClientTimeouts::DEFAULT.as_secs(),
        value_parser = value_parser!(u64).range(1..=3600)
    )]
    client_timeout: u64,
    /// A directory below which VMs may have files for disks (hostDisk). May be repeated; without it none may, since who
    /// creates VMs could name any file of this host.
    #[arg(long = "host-disks", value_name = "DIR")]
    host_disks: Vec<PathBuf>,
    /// A directory below which VMs may use OCI images (containerDisk and kernelBoot: `oci:` and `oci-archive:`), and where those
    /// directly in it are found by their names (`localhost/name:tag`). May be repeated; without it none may. Nothing outside is
    /// reached from it: symbolic links in it are not followed.
    #[arg(long = "images", value_name = "DIR")]
    images: Vec<PathBuf>,
}

/// Directories as paths below them are compared.
fn named(directories: &[PathBuf]) -> std::io::Result<Vec<PathBuf>> {
    // What is named below one of them is compared by its name; one may itself be a symbolic link.
    let named = |directory: &PathBuf| match directory.components().any(|part| part == Component::ParentDir) {
        true => directory.canonicalize(),
        false => std::path::absolute(directory),
    };
    directories.iter().map(named).collect()
}

impl Standalone {
    /// Makes the options complete.
    pub(crate) fn options(self) -> Result<Options, Failure> {
        let mut node = self.node.settings()?;
        // It names an object, and names of objects are lower case.
        node.node_name.make_ascii_lowercase();
        let (host_disks, images) = (named(&self.host_disks)?, named(&self.images)?);
        node.allowed = AllowedPaths {
            host_disks: AllowedDirectories::Below(host_disks),
            images: AllowedDirectories::Below(images.clone()),
            named_images: images,
        };
        let timeouts = ClientTimeouts::new(Duration::from_secs(self.client_timeout));
        Ok(Options { node, listen: self.listen, timeouts })
    }
}
