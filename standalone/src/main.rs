//! `vireo`: the KubeVirt API on one host.

mod cli;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use sd_notify::NotifyState;
use vireo_handler::command::{self, Failure, stop_signal};
use vireo_handler::state::StateDir;
use vireo_handler::stop;
use vireo_install::installation::Images;
use vireo_install::objects::operator_manifests;
use vireo_standalone::run::{Options, run};

use cli::{Cli, Command};

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Standalone(standalone) => command::run(|| Ok(serve(standalone.options()?))),
        Command::Manifests(images) => command::run(|| Ok(print_manifests(images))),
        Command::StopGuests(asked) => command::run(|| Ok(stop_guests(asked.state_dir))),
    }
}

async fn serve(options: Options) -> Result<(), Failure> {
    let ready = |url: &str, kubeconfig: &Path| {
        // The server keeps running when its standard output is closed.
        let _ = writeln!(io::stdout(), "The API is at {url}\nexport KUBECONFIG={}", kubeconfig.display());
        // `systemctl start` returns when requests are answered, and not before.
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            tracing::warn!(%error, "cannot notify the service manager that the server is ready");
        }
    };
    Ok(run(options, ready, stop_signal()?).await?)
}

async fn print_manifests(images: Images) -> Result<(), Failure> {
    Ok(io::stdout().lock().write_all(operator_manifests(&images)?.as_bytes())?)
}

async fn stop_guests(state_dir: PathBuf) -> Result<(), Failure> {
    if !state_dir.is_dir() {
        return Err(format!("the state directory {} does not exist", state_dir.display()).into());
    }
    let stopped = stop::all(&StateDir::at(state_dir)).await?;
    println!("{stopped} guests stopped");
    Ok(())
}
