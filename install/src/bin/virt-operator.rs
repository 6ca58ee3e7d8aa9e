//! `virt-operator`: makes and renews the certificates of the components.

use std::process::ExitCode;

use clap::Parser;
use jiff::Timestamp;
use kube::Client;
use tracing::warn;
use vireo_client::program::{self, Failure};
use vireo_operators::certificates::{Certificates, INTERVAL};
use vireo_operators::leader;

/// KubeVirt's name of this component and its Lease.
const COMPONENT: &str = "virt-operator";
/// How soon a check that failed is tried again.
const RETRY: std::time::Duration = std::time::Duration::from_secs(2);

/// Keeps the certificates of Vireo's components in a cluster: that of $KUBECONFIG, or the one that it runs in.
#[derive(Debug, Parser)]
#[command(name = "virt-operator", version)]
struct Args {
    /// The namespace of the components.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kubevirt")]
    namespace: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    program::run(|| Ok(operate(args)))
}

async fn operate(args: Args) -> Result<(), Failure> {
    let client = Client::try_default().await?;
    let certificates = Certificates::new(client.clone(), args.namespace.clone());
    let keep = async {
        loop {
            let wait = match certificates.reconcile(Timestamp::now().as_second()).await {
                Ok(()) => INTERVAL,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(error, "cannot keep the certificates; it is tried again");
                    RETRY
                }
            };
            tokio::time::sleep(wait).await;
        }
    };
    leader::run(&client, (&args.namespace, COMPONENT), keep).await
}
