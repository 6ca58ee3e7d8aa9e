//! `virt-handler`: locks the state directory, serves the endpoint, and follows the manifests until a signal stops it.

mod cli;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use tracing::info;
use vireo_handler::command::{self, Failure, stop_signal};
use vireo_handler::manifests::directory::Directory;
use vireo_handler::node::Node;
use vireo_handler::reconcile::supervise;
use vireo_handler::settings::Settings;
use vireo_handler::{http, report};

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Command::Status(asked)) = cli.command {
        return report::command(&asked.into());
    }
    let Some((node, manifests)) = cli.run.parts() else {
        Cli::command().error(ErrorKind::MissingRequiredArgument, "--manifests is required").exit()
    };
    command::run(|| Ok(serve(node.settings()?, std::path::absolute(manifests)?)))
}

async fn serve(settings: Settings, manifests: PathBuf) -> Result<(), Failure> {
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
