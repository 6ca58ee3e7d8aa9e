//! `virt-operator`: installs KubeVirt in a cluster as its KubeVirt object specifies, and reconciles it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use kube::Client;
use tracing::warn;
use vireo_client::metrics::{self, Metric, MetricSet, RequestCounter, gauge};
use vireo_client::program::{self, Failure};
use vireo_client::rate_limit::RateLimiter;
use vireo_client::tls::TlsPolicy;
use vireo_operators::certificates::VIRT_OPERATOR;
use vireo_operators::config::LiveConfig;
use vireo_operators::leader::{self, Leadership};
use vireo_operators::monitoring::{Monitoring, add_leadership};

use crate::installation::Images;
use crate::objects::NAMESPACE;
use crate::operator::Operator;

/// KubeVirt's name of this component and its Lease.
const COMPONENT: &str = "virt-operator";
/// Until the API server is asked again.
const RETRY: Duration = Duration::from_secs(5);
/// Whether it can lead, and whether it leads.
const LEADERSHIP: [Metric; 2] = [
    gauge("kubevirt_virt_operator_ready_status", "Whether this virt-operator can lead."),
    gauge("kubevirt_virt_operator_leading_status", "Whether this virt-operator leads."),
];

/// Keeps the installation of a cluster: that of $KUBECONFIG, or the one that it runs in.
#[derive(Debug, Parser)]
#[command(name = "virt-operator", version)]
struct Args {
    #[command(flatten)]
    images: Images,
    #[command(flatten)]
    monitoring: Monitoring,
}

/// Runs the program, with the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    program::run(|| Ok(operate(args)))
}

async fn operate(Args { images, monitoring }: Args) -> Result<(), Failure> {
    let (requests, policy) = (RequestCounter::default(), TlsPolicy::default());
    let client = program::connect(&requests, &RateLimiter::default()).await?;
    let leadership = Leadership::default();
    let held = leadership.clone();
    let collect = move |set: &mut MetricSet| add_leadership(set, &LEADERSHIP, &held);
    let served = monitoring.serve(VIRT_OPERATOR, metrics::router(&requests, collect), policy.clone());
    let settings = LiveConfig::watched(&client);
    let follow = settings.follow(move |config| {
        policy.set(config.components.tls.clone());
        program::set_verbosity(config.components.operator_verbosity);
    });
    let operate = leader::run(&client, (NAMESPACE, COMPONENT), &leadership, keep(&client, &images));
    tokio::select! {
        done = operate => done,
        failed = served => failed,
        () = follow => Ok(()),
    }
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
