//! `virt-handler`: take the state directory, serve it, follow the manifests until told to stop.

mod cli;

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};
use tracing_subscriber::EnvFilter;
use vireo_handler::launcher::link::chain;
use vireo_handler::manifests::directory::Directory;
use vireo_handler::node::Node;
use vireo_handler::reconcile::supervise;
use vireo_handler::settings::Settings;
use vireo_handler::{http, report};

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let settings = match (cli.command, cli.run) {
        (Some(Command::Status(asked)), _) => return report::command(&asked.into()),
        (None, Some(run)) => run.settings(),
        (None, None) => Err("--manifests is required".into()),
    };
    log();
    match settings.and_then(|(settings, manifests)| handle(settings, &manifests)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Lines on stderr; `VIREO_LOG` takes the directives of `tracing_subscriber::EnvFilter`.
fn log() {
    let filter = EnvFilter::try_from_env("VIREO_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}

type Failure = Box<dyn std::error::Error>;

fn handle(settings: Settings, manifests: &Path) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(serve(settings, manifests));
    // What still blocks (an import, a namespace) is left to end by itself; everything it does may be repeated.
    runtime.shutdown_background();
    done
}

async fn serve(settings: Settings, manifests: &Path) -> Result<(), Failure> {
    let node = Arc::new(Node::new(settings));
    let _lock = node.state.take()?;
    let listener = http::bind(&node.state.endpoint())?;
    info!(
        manifests = %manifests.display(),
        state = %node.settings.state_dir.display(),
        node = node.settings.node_name,
        "virt-handler runs"
    );
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    // Before anything is adopted.
    let source = Directory::open(manifests)
        .map_err(|error| format!("cannot watch the manifests directory {}: {error}", manifests.display()))?;
    let endpoint = http::serve(listener, Arc::clone(&node));
    tokio::select! {
        done = supervise::run(Arc::clone(&node), source, told) => done?,
        done = endpoint => done?,
    }
    info!("virt-handler stops; its guests go on");
    Ok(())
}
