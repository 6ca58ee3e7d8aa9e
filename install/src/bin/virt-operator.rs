//! `virt-operator`: installs KubeVirt in a cluster as its KubeVirt object specifies, and reconciles it.

use std::process::ExitCode;

use clap::Parser;
use kube::Client;
use vireo_client::program::{self, Failure};
use vireo_install::installation::Images;
use vireo_install::objects::NAMESPACE;
use vireo_install::operator::Operator;
use vireo_operators::leader;

/// KubeVirt's name of this component and its Lease.
const COMPONENT: &str = "virt-operator";

/// Keeps the installation of a cluster: that of $KUBECONFIG, or the one that it runs in.
#[derive(Debug, Parser)]
#[command(name = "virt-operator", version)]
struct Args {
    #[command(flatten)]
    images: Images,
}

fn main() -> ExitCode {
    let args = Args::parse();
    program::run(|| Ok(operate(args)))
}

async fn operate(Args { images }: Args) -> Result<(), Failure> {
    let client = Client::try_default().await?;
    let operator = Operator::new(&client, images).await?;
    leader::run(&client, (NAMESPACE, COMPONENT), operator.run()).await
}
