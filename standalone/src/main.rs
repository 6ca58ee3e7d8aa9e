//! `vireo`: the KubeVirt API on one host. The image of a cluster's components is this program, too, with links to it that have
//! their names.

mod cli;
mod rotate;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use kube::Client;
use sd_notify::NotifyState;
use vireo_api::spec::support_markdown;
use vireo_handler::command::{self, Failure, stop_signal};
use vireo_handler::state::StateDir;
use vireo_handler::stop;
use vireo_install::objects::{chart_files, operator_manifests};
use vireo_install::uninstall::uninstall;
use vireo_standalone::run::{Options, run};

use cli::{Cli, Command, Manifests, TokenCommand, Uninstall};

/// What this program is, by the name that it was started with.
fn component(started_as: &OsStr) -> fn() -> ExitCode {
    match Path::new(started_as).file_name().and_then(OsStr::to_str) {
        Some("virt-api") => vireo_operators::programs::virt_api::main,
        Some("virt-controller") => vireo_operators::programs::virt_controller::main,
        Some("virt-handler") => vireo_handler::program::main,
        Some("virt-operator") => vireo_install::program::main,
        _ => vireo,
    }
}

fn main() -> ExitCode {
    component(&std::env::args_os().next().unwrap_or_default())()
}

fn vireo() -> ExitCode {
    match Cli::parse().command {
        Command::Standalone(standalone) => command::run(|| Ok(serve(standalone.options()?))),
        Command::Manifests(asked) => command::run(|| Ok(manifests(asked))),
        Command::Uninstall(asked) => command::run(|| Ok(remove(asked))),
        Command::Certificate(asked) => command::run(|| Ok(rotate::certificate(asked))),
        Command::Token(TokenCommand::Rotate(asked)) => command::run(|| Ok(rotate::token(asked))),
        Command::Token(TokenCommand::RotateKey { server, overlap }) => {
            command::run(|| Ok(rotate::key(server, overlap)))
        }
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

async fn manifests(Manifests { images, chart, fields }: Manifests) -> Result<(), Failure> {
    if fields {
        return Ok(io::stdout().lock().write_all(support_markdown().as_bytes())?);
    }
    let Some(chart) = chart else {
        return Ok(io::stdout().lock().write_all(operator_manifests(&images)?.as_bytes())?);
    };
    for (path, text) in chart_files()? {
        let path = chart.join(path);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

async fn remove(Uninstall { keep, timeout }: Uninstall) -> Result<(), Failure> {
    let client = Client::try_default().await?;
    uninstall(&client, keep, Duration::from_secs(timeout)).await?;
    println!("the installation is removed");
    Ok(())
}

async fn stop_guests(state_dir: PathBuf) -> Result<(), Failure> {
    if !state_dir.is_dir() {
        return Err(format!("the state directory {} does not exist", state_dir.display()).into());
    }
    let stopped = stop::all(&StateDir::at(state_dir)).await?;
    println!("{stopped} guests stopped");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_chooses_the_component() {
        let of = |name: &str| component(OsStr::new(name)) as usize;
        let all = ["virt-api", "virt-controller", "virt-handler", "virt-operator", "vireo"].map(of);
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(of("/usr/bin/virt-handler"), of("virt-handler"));
        assert_eq!(of("virt-handlers"), of("vireo"));
    }
}
