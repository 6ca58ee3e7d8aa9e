//! `vireo`: the KubeVirt API on one machine.

mod cli;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;
use vireo_handler::command::{self, Failure, told_to_stop};
use vireo_standalone::run::{Options, run};

use cli::{Cli, Command};

fn main() -> ExitCode {
    let Command::Standalone(standalone) = Cli::parse().command;
    command::run(|| Ok(serve(standalone.options()?)))
}

async fn serve(options: Options) -> Result<(), Failure> {
    let ready = |url: &str, kubeconfig: &Path| {
        println!("The API is at {url}\nexport KUBECONFIG={}", kubeconfig.display());
    };
    Ok(run(options, ready, told_to_stop()?).await?)
}
