//! `virt-handler`: locks the state directory, serves the endpoint, and runs the VMIs of its source until a signal stops it.

mod cli;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use kube::Client;
use tokio::net::TcpListener;
use tracing::info;
use vireo_client::tls::{self, Clients, TlsFiles};
use vireo_handler::cluster::Cluster;
use vireo_handler::command::{self, Failure, stop_signal};
use vireo_handler::heartbeat::{self, Owner};
use vireo_handler::manifests::directory::Directory;
use vireo_handler::node::Node;
use vireo_handler::reconcile::supervise;
use vireo_handler::settings::Settings;
use vireo_handler::{devices, http, report};

use cli::{Cli, Command, Endpoint, Vmis};

/// The kubelet's directory of device plugins, beside that of its Pods.
const DEVICE_PLUGINS: &str = "device-plugins";

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Command::Status(asked)) = cli.command {
        return report::command(&asked.into());
    }
    let Some((node, vmis)) = cli.run.parts() else {
        let text = "give the source of the VMIs: --manifests DIR or --cluster";
        Cli::command().error(ErrorKind::MissingRequiredArgument, text).exit()
    };
    match vmis {
        Vmis::Manifests(manifests) => {
            command::run(|| Ok(serve_manifests(node.settings()?, std::path::absolute(manifests)?)))
        }
        Vmis::Cluster(pods) => {
            command::run(|| Ok(serve_cluster(node.settings()?.in_pods(pods.clone()), pods, cli.endpoint)))
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
    }
    info!("virt-handler stops; its guests go on");
    Ok(())
}

/// Serves the endpoint to virt-api, over TLS.
async fn serve_virt_api(Endpoint { listen, tls_dir }: Endpoint, node: Arc<Node>) -> Result<(), Failure> {
    let Some(directory) = tls_dir else { return std::future::pending().await };
    let listener =
        TcpListener::bind(listen).await.map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    let files = Arc::new(TlsFiles::server(directory, Clients::Certified));
    Ok(tls::serve(listener, files, http::router(node)).await?)
}

/// Runs the VMIs that are bound to this node of a cluster, whose kubelet has its Pods in a directory.
async fn serve_cluster(settings: Settings, pods: PathBuf, endpoint: Endpoint) -> Result<(), Failure> {
    let node = Arc::new(Node::new(settings));
    let _lock = node.state.take().await?;
    let listener = http::bind(&node.state.endpoint())?;
    let name = node.settings.node_name.clone();
    let client = Client::try_default().await?;
    info!(state = %node.settings.state_dir.display(), node = name, "virt-handler runs");
    let stop = stop_signal()?;
    let cluster = Cluster::new(client.clone(), Arc::clone(&node), Vec::new());
    let plugins = pods.with_file_name(DEVICE_PLUGINS);
    tokio::select! {
        done = supervise::run(Arc::clone(&node), cluster.source(), stop) => done?,
        done = http::serve(listener, Arc::clone(&node)) => done?,
        done = serve_virt_api(endpoint, Arc::clone(&node)) => done?,
        () = cluster.run() => {}
        () = devices::run(&plugins) => {}
        () = heartbeat::run(client, &name, Owner::Kubelet) => {}
    }
    info!("virt-handler stops; its guests go on");
    Ok(())
}
