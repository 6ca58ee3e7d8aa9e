//! `virt-api`: the aggregated API of a cluster, and its webhooks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tokio::net::TcpListener;
use tracing::info;
use vireo_api::names::NAMESPACE;
use vireo_client::metrics::RequestCounter;
use vireo_client::program::{self, Failure, stop_signal};
use vireo_client::rate_limit::RateLimiter;
use vireo_client::tls::{self, Clients, TlsFiles, TlsPolicy};

use crate::admission::Admission;
use crate::config::{ClusterConfig, LiveConfig};
use crate::virt_api::agents::PodAgents;
use crate::virt_api::front_proxy::FrontProxy;
use crate::virt_api::{VirtApi, server};

/// Serves KubeVirt's subresources and webhooks of a cluster: that of $KUBECONFIG, or the one that it runs in.
#[derive(Debug, Parser)]
#[command(name = "virt-api", version)]
struct Args {
    /// Where it listens.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// The directory of its tls.crt and tls.key.
    #[arg(long, value_name = "DIR")]
    tls_dir: PathBuf,
    /// The directory of the tls.crt and tls.key that it shows to node agents, and of the ca.crt of theirs.
    #[arg(long, value_name = "DIR")]
    client_tls_dir: PathBuf,
    /// The namespace of the node agents.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
}

/// Runs the program, with the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    program::run(|| Ok(serve(args)))
}

async fn serve(args: Args) -> Result<(), Failure> {
    let stop = stop_signal()?;
    let (requests, policy) = (RequestCounter::default(), TlsPolicy::default());
    let (limiter, of_webhooks) = (RateLimiter::default(), RateLimiter::default());
    let client = program::connect(&requests, &limiter).await?;
    let webhook_client = program::connect(&requests, &of_webhooks).await?;
    let proxy = FrontProxy::read(&client).await?;
    let authority = proxy.authority.clone().into_bytes();
    let files = TlsFiles::server(args.tls_dir, Clients::Any(authority), policy.clone());
    let agents = PodAgents {
        client: client.clone(),
        namespace: args.namespace,
        tls: Arc::new(TlsFiles::client(args.client_tls_dir)),
    };
    let virt_api = VirtApi::new(client.clone(), Arc::new(agents));
    let config = LiveConfig::watched(&client);
    let admission = Admission::new(webhook_client, config.clone());
    let apply = move |config: &ClusterConfig| {
        policy.set(config.components.tls.clone());
        limiter.set(config.components.api);
        of_webhooks.set(config.components.webhook);
    };
    let serve = async {
        // What is admitted before would have KubeVirt's defaults.
        config.synced().await;
        let listener = TcpListener::bind(args.listen)
            .await
            .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
        info!(listen = %args.listen, "virt-api serves");
        let router = server::router(&client, &requests, virt_api, proxy, admission);
        tls::serve(listener, Arc::new(files), router).await?;
        Ok::<_, Failure>(())
    };
    tokio::select! {
        served = serve => served?,
        () = config.follow(apply) => {}
        () = stop => info!("virt-api stops"),
    }
    Ok(())
}
