//! `virt-handler`: locks the state directory, serves the endpoint, and runs the VMIs of its source until a signal stops it.

mod cli;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use tokio::net::TcpListener;
use tracing::info;
use vireo_client::metrics::RequestCounter;
use vireo_client::program;
use vireo_client::rate_limit::RateLimiter;
use vireo_client::tls::{self, Clients, TlsFiles, TlsPolicy};

use crate::cluster::Cluster;
use crate::command::{self, Failure, stop_signal};
use crate::heartbeat::{self, Owner};
use crate::live_settings::LiveSettings;
use crate::manifests::directory::Directory;
use crate::node::Node;
use crate::reconcile::supervise;
use crate::settings::Settings;
use crate::{capabilities, devices, http, report};

use cli::{Cli, Command, Endpoint, Vmis};

/// The kubelet's directory of device plugins, beside that of its Pods.
const DEVICE_PLUGINS: &str = "device-plugins";

/// Runs the program, with the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Command::Status(asked)) = cli.command {
        return report::command(&asked.into());
    }
    let Some((node, vmis)) = cli.run.parts() else {
        let text = "give the source of the VMIs: --manifests DIR or --cluster";
        Cli::command().error(ErrorKind::MissingRequiredArgument, text).exit()
    };
    match vmis {
        Vmis::Manifests { directory, images } => command::run(|| {
            let mut settings = node.settings()?;
            settings.allowed.named_images =
                images.into_iter().map(std::path::absolute).collect::<Result<_, _>>()?;
            Ok(serve_manifests(settings, std::path::absolute(directory)?))
        }),
        Vmis::Cluster(pods) => {
            // Before the runtime has threads.
            let kept = capabilities::keep_needed();
            command::run(|| {
                kept.map_err(|error| format!("cannot give up capabilities that are not needed: {error}"))?;
                Ok(serve_cluster(node.settings()?.in_pods(pods.clone()), pods, cli.endpoint))
            })
        }
    }
}

/// Runs the VMIs of a directory.
async fn serve_manifests(settings: Settings, manifests: PathBuf) -> Result<(), Failure> {
    let node = Arc::new(Node::new(settings));
    let _lock = node.state.take().await?;
    let listener = http::bind(&node.state.endpoint())?;
    info!(
        manifests = %manifests.display(),
        state = %node.settings.state_dir.display(),
        node = node.settings.node_name,
        "virt-handler runs"
    );
    let stop = stop_signal()?;
    // Before anything is adopted.
    let source = Directory::open(&manifests)
        .map_err(|error| format!("cannot watch the manifests directory {}: {error}", manifests.display()))?;
    let endpoint = http::serve(listener, Arc::clone(&node));
    tokio::select! {
        done = supervise::run(Arc::clone(&node), source, stop) => done?,
        done = endpoint => done?,
        () = node.images.collect_garbage() => {}
    }
    info!("virt-handler stops; its guests go on");
    Ok(())
}

/// Serves the endpoint for virt-api, and unauthenticated health checks and metrics, over TLS.
async fn serve_tls(
    endpoint: Endpoint,
    node: Arc<Node>,
    cluster: &Cluster,
    policy: &TlsPolicy,
) -> Result<(), Failure> {
    let Some(directory) = endpoint.tls_dir else { return std::future::pending().await };
    let serve = async |address: SocketAddr, clients: Clients, router: Router| {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| format!("cannot listen on {address}: {error}"))?;
        let files = Arc::new(TlsFiles::server(directory.clone(), clients, policy.clone()));
        Ok(tls::serve(listener, files, router).await?)
    };
    let virt_api = serve(endpoint.listen, Clients::Certified, http::router(Arc::clone(&node)));
    let monitoring = async {
        let Some(address) = endpoint.metrics_listen else { return std::future::pending().await };
        serve(address, Clients::Anonymous, http::monitoring_router(node, cluster.adopted())).await
    };
    tokio::select! {
        done = virt_api => done,
        done = monitoring => done,
    }
}

/// Runs the VMIs that are bound to this node of a cluster, whose kubelet has its Pods in a directory.
async fn serve_cluster(settings: Settings, pods: PathBuf, endpoint: Endpoint) -> Result<(), Failure> {
    let node = Arc::new(Node::new(settings));
    let _lock = node.state.take().await?;
    let listener = http::bind(&node.state.endpoint())?;
    let name = node.settings.node_name.clone();
    let (requests, limiter, policy) =
        (RequestCounter::default(), RateLimiter::default(), TlsPolicy::default());
    let client = program::connect(&requests, &limiter).await?;
    node.metrics.join(|registry| requests.register(registry));
    info!(state = %node.settings.state_dir.display(), node = name, "virt-handler runs");
    let stop = stop_signal()?;
    let cluster = Cluster::new(client.clone(), Arc::clone(&node), Vec::new());
    let plugins = pods.with_file_name(DEVICE_PLUGINS);
    let live = LiveSettings::watched(&client);
    node.set_live_settings(live.clone());
    tokio::select! {
        done = supervise::run(Arc::clone(&node), cluster.source(), stop) => done?,
        done = http::serve(listener, Arc::clone(&node)) => done?,
        done = serve_tls(endpoint, Arc::clone(&node), &cluster, &policy) => done?,
        () = cluster.run() => {}
        () = devices::run(&plugins, &live) => {}
        () = live.follow(&name, &limiter, &policy) => {}
        () = node.images.collect_garbage() => {}
        () = heartbeat::run(client, &name, Owner::Kubelet, live.clone()) => {}
    }
    info!("virt-handler stops; its guests go on");
    Ok(())
}
