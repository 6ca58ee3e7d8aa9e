//! `virt-controller`: the controllers of a cluster, of which one at a time leads.

use std::process::ExitCode;

use clap::Parser;
use kube::Client;
use vireo_client::program::{self, Failure};
use vireo_operators::config::LiveConfig;
use vireo_operators::vmi::{Launcher, StartedBy};
use vireo_operators::{Controllers, leader};

/// KubeVirt's name of this component and its Lease.
const COMPONENT: &str = "virt-controller";

/// Controls KubeVirt's objects of a cluster: that of $KUBECONFIG, or the one that it runs in.
#[derive(Debug, Parser)]
#[command(name = "virt-controller", version)]
struct Args {
    /// The image of launcher Pods.
    #[arg(long, value_name = "IMAGE")]
    launcher_image: String,
    /// The namespace of the leader's Lease.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kubevirt")]
    namespace: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    program::run(|| Ok(control(args)))
}

async fn control(args: Args) -> Result<(), Failure> {
    let client = Client::try_default().await?;
    let launcher = Launcher { image: args.launcher_image, started_by: StartedBy::Kubelet, native: false };
    let control = async { Controllers::new(&client, launcher, LiveConfig::watched(&client)).run().await };
    leader::run(&client, (&args.namespace, COMPONENT), control).await
}
