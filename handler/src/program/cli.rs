//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::command::NodeArgs;
use crate::report::{Format, Options};

/// The node agent: runs the VMIs of its node.
#[derive(Debug, Parser)]
#[command(
    name = "virt-handler",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: Run,
    #[command(flatten)]
    pub(crate) endpoint: Endpoint,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows VMIs: phase, hypervisor and why, address, and what is wrong with refused manifests.
    Status(Status),
}

/// What virt-api, the kubelet and Prometheus connect to.
#[derive(Debug, Args)]
pub(crate) struct Endpoint {
    /// Where virt-api finds this node's consoles and VMIs, with --tls-dir.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8186")]
    pub(crate) listen: SocketAddr,
    /// The directory of tls.crt, tls.key and ca.crt, whose clients are served.
    #[arg(long, value_name = "DIR", requires = "cluster")]
    pub(crate) tls_dir: Option<PathBuf>,
    /// Address of /metrics, /healthz and /readyz, with the certificate of --tls-dir.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "tls_dir")]
    pub(crate) metrics_listen: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    source: Source,
    /// A directory in which images are found by their names, for images of localhost without a port (`localhost/name:tag`): OCI
    /// layouts and archives directly in it. May be repeated. Manifests may name `oci:` and `oci-archive:` anywhere.
    #[arg(long = "images", value_name = "DIR", conflicts_with = "cluster")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    node: NodeArgs,
}

/// Where VMIs come from. Not required by clap: it would be required of `status` too wherever the environment names the
/// state directory.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct Source {
    /// Directory of VirtualMachineInstance manifests (*.yaml, *.yml, *.json), followed as it changes.
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// Run the VMIs that a cluster binds to this node, in their launcher Pods. The cluster is that of $KUBECONFIG, or the
    /// one that this program runs in. DIR is where the kubelet has its Pods.
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        default_missing_value = "/var/lib/kubelet/pods",
        // The kubelet makes the cgroups of launchers.
        conflicts_with = "launcher_io_max"
    )]
    cluster: Option<PathBuf>,
}

/// Where VMIs come from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Vmis {
    /// A directory, and those of images that are found by their names.
    Manifests { directory: PathBuf, images: Vec<PathBuf> },
    /// A cluster, with the kubelet's directory of Pods.
    Cluster(PathBuf),
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Only this VMI.
    name: Option<String>,
    /// Only this namespace; with a NAME, its namespace [default: all, with a NAME: default].
    #[arg(short, long)]
    namespace: Option<String>,
    /// How to show them.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// The handler's state directory.
    #[arg(long, value_name = "DIR", env = "VIREO_STATE_DIR", default_value = "/var/lib/vireo")]
    state_dir: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Yaml,
    Json,
    Wide,
}

impl From<Status> for Options {
    fn from(status: Status) -> Self {
        Self {
            name: status.name,
            namespace: status.namespace,
            format: match status.output {
                None => Format::Table,
                Some(Output::Wide) => Format::Wide,
                Some(Output::Yaml) => Format::Yaml,
                Some(Output::Json) => Format::Json,
            },
            state_dir: status.state_dir,
        }
    }
}

impl Run {
    /// The node's options, and where VMIs come from, if that is there.
    pub(crate) fn parts(self) -> Option<(NodeArgs, Vmis)> {
        let Source { manifests, cluster } = self.source;
        let images = self.images;
        let manifests = manifests.map(|directory| Vmis::Manifests { directory, images });
        Some((self.node, manifests.or(cluster.map(Vmis::Cluster))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_needed_to_run_and_not_to_ask() {
        let parse = |words: &[&str]| Cli::try_parse_from([&["virt-handler"], words].concat()).unwrap();
        let run = parse(&["--manifests", "there", "--state-dir", "here"]);
        let source = |cli: Cli| cli.run.parts().map(|(_, vmis)| vmis);
        let manifests = |images: &[&str]| {
            let images = images.iter().map(Into::into).collect();
            Some(Vmis::Manifests { directory: "there".into(), images })
        };
        assert_eq!(source(run), manifests(&[]));
        let run = parse(&["--manifests", "there", "--images", "/a", "--images", "/b"]);
        assert_eq!(source(run), manifests(&["/a", "/b"]));
        assert!(Cli::try_parse_from(["virt-handler", "--cluster", "--images", "/a"]).is_err());
        assert_eq!(source(parse(&["--cluster"])), Some(Vmis::Cluster("/var/lib/kubelet/pods".into())));
        assert_eq!(source(parse(&["--cluster", "/p"])), Some(Vmis::Cluster("/p".into())));
        assert!(Cli::try_parse_from(["virt-handler", "--manifests", "there", "--cluster"]).is_err());
        let limits = ["--launcher-io-max", "8:0 wbps=1"];
        let limited = |source: &[&str]| Cli::try_parse_from([&["virt-handler"], source, &limits].concat());
        assert!(limited(&["--manifests", "there"]).is_ok() && limited(&["--cluster"]).is_err());
        assert!(parse(&["--state-dir", "here"]).run.parts().is_none());
        assert!(parse(&["status", "one"]).command.is_some());
        assert!(Cli::try_parse_from(["virt-handler", "--manifests", "there", "status"]).is_err());
    }
}
