//! `virt-operator`: installs KubeVirt in a cluster as its KubeVirt object specifies, and reconciles it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use kube::Client;
use tracing::warn;
use vireo_client::program::{self, Failure};
use vireo_install::installation::Images;
use vireo_install::objects::NAMESPACE;
use vireo_install::operator::Operator;
use vireo_operators::leader;

/// KubeVirt's name of this component and its Lease.
const COMPONENT: &str = "virt-operator";
/// Until the API server is asked again.
const RETRY: Duration = Duration::from_secs(5);

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
    leader::run(&client, (NAMESPACE, COMPONENT), keep(&client, &images)).await
}

/// Keeps the installation, whatever kinds are added to the cluster or removed from it.
async fn keep(client: &Client, images: &Images) {
    loop {
        match Operator::new(client, images.clone()).await {
            Ok(operator) => operator.run().await,
            Err(error) => {
                warn!(%error, "cannot ask the API server what it serves; trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
