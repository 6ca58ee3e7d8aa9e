//! `virt-controller`: the controllers of a cluster, of which one at a time leads.

use std::process::ExitCode;

use clap::Parser;
use kube::Client;
use kube_lease_manager::LeaseManagerBuilder;
use tracing::info;
use vireo_client::program::{self, Failure, stop_signal};
use vireo_operators::Controllers;
use vireo_operators::vmi::{Launcher, StartedBy};

/// The Lease of the leader; KubeVirt's name.
const LEASE: &str = "virt-controller";

/// Seconds until another process leads after the leader died; those of Kubernetes' own controllers.
const LEASE_DURATION: u64 = 15;
/// Seconds before its end at which the leader renews the Lease.
const LEASE_GRACE: u64 = 5;

/// Controls KubeVirt's objects of a cluster: that of $KUBECONFIG, or the one that it runs in.
#[derive(Debug, Parser)]
#[command(name = "virt-controller", version)]
struct Args {
    /// The image of launcher Pods.
    #[arg(long, value_name = "IMAGE")]
    launcher_image: String,
    /// Instances run on nodes without KVM too, where they are emulated. KubeVirt's
    /// configuration.developerConfiguration.useEmulation.
    #[arg(long)]
    use_emulation: bool,
    /// The namespace of the leader's Lease.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kubevirt")]
    namespace: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    program::run(|| Ok(control(args)))
}

async fn control(args: Args) -> Result<(), Failure> {
    let stop = stop_signal()?;
    tokio::pin!(stop);
    let client = Client::try_default().await?;
    let lease = LeaseManagerBuilder::new(client.clone(), LEASE)
        .with_namespace(&args.namespace)
        .with_duration(LEASE_DURATION)
        .with_grace(LEASE_GRACE)
        .build()
        .await?;
    let launcher = Launcher {
        image: args.launcher_image,
        started_by: StartedBy::Kubelet,
        native: false,
        requires_kvm: !args.use_emulation,
    };
    let (mut leads, election) = lease.watch().await;
    info!(lease = LEASE, namespace = args.namespace, "waiting for the leadership");
    let done = tokio::select! {
        () = &mut stop => Ok(()),
        done = lead(&client, &mut leads, launcher) => done,
    };
    // The next leader need not wait for the end of the Lease.
    drop(leads);
    election.await??;
    info!("virt-controller stops");
    done
}

/// Controls while this process leads.
async fn lead(
    client: &Client,
    leads: &mut tokio::sync::watch::Receiver<bool>,
    launcher: Launcher,
) -> Result<(), Failure> {
    leads.wait_for(|leads| *leads).await?;
    info!("virt-controller leads");
    let controllers = Controllers::new(client, launcher);
    tokio::select! {
        () = controllers.run() => Ok(()),
        _ = leads.wait_for(|leads| !*leads) => Err("another process leads now".into()),
    }
}
