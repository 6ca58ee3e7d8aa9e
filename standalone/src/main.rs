//! `vireo`: the KubeVirt API on one machine.

mod cli;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing::error;
use tracing_subscriber::EnvFilter;
use vireo_handler::launcher::link::chain;
use vireo_standalone::run::{Options, run};

use cli::{Cli, Command};

fn main() -> ExitCode {
    let Command::Standalone(standalone) = Cli::parse().command;
    log();
    match standalone.options().and_then(serve) {
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

fn serve(options: Options) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let told = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let ready = |url: &str, kubeconfig: &std::path::Path| {
            println!("The API is at {url}\nexport KUBECONFIG={}", kubeconfig.display());
        };
        run(options, ready, told).await.map_err(Failure::from)
    });
    // What still blocks (an import, a namespace) is left to end by itself; everything it does may be repeated.
    runtime.shutdown_background();
    done
}
