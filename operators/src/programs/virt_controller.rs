//! `virt-controller`: the controllers of a cluster, of which one at a time leads.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use vireo_api::names::NAMESPACE;
use vireo_client::metrics::{self, MetricSet, RequestCounter};
use vireo_client::program::{self, Failure};
use vireo_client::rate_limit::RateLimiter;
use vireo_client::tls::TlsPolicy;

use crate::Controllers;
use crate::certificates::VIRT_CONTROLLER;
use crate::config::LiveConfig;
use crate::leader::{self, Leadership};
use crate::metrics::LEADERSHIP;
use crate::monitoring::{Monitoring, add_leadership};
use crate::vmi::{Launcher, StartedBy};

/// KubeVirt's name of this component and its Lease.
const COMPONENT: &str = "virt-controller";

/// Controls KubeVirt's objects of a cluster: that of $KUBECONFIG, or the one that it runs in.
#[derive(Debug, Parser)]
#[command(name = "virt-controller", version, args_override_self = true)]
struct Args {
    /// The image of launcher Pods.
    #[arg(long, value_name = "IMAGE")]
    launcher_image: String,
    /// The namespace of the leader's Lease.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
    #[command(flatten)]
    monitoring: Monitoring,
}

/// Runs the program, with the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    program::run(|| Ok(control(args)))
}

async fn control(args: Args) -> Result<(), Failure> {
    let (requests, limiter, policy) =
        (RequestCounter::default(), RateLimiter::default(), TlsPolicy::default());
    let client = program::connect(&requests, &limiter).await?;
    let launcher = Launcher::new(&args.launcher_image, StartedBy::Kubelet);
    let config = LiveConfig::watched(&client);
    let controllers = Arc::new(Controllers::new(&client, launcher, config.clone()));
    let leadership = Leadership::default();
    let (measured, held) = (Arc::clone(&controllers), leadership.clone());
    let collect = move |set: &mut MetricSet| {
        add_leadership(set, &LEADERSHIP, &held);
        // The caches of the others are empty.
        if held.is_held() {
            measured.add_metrics(set);
        }
    };
    let router = metrics::router(&requests, collect);
    let served = args.monitoring.serve(VIRT_CONTROLLER, router, policy.clone());
    // Also while it does not lead: the server of its metrics and its rate limiter have settings, too.
    let follow = config.follow(move |config| {
        policy.set(config.components.tls.clone());
        limiter.set(config.components.controller);
    });
    let control = leader::run(&client, (&args.namespace, COMPONENT), &leadership, controllers.run());
    tokio::select! {
        done = control => done,
        failed = served => failed,
        () = follow => Ok(()),
    }
}
