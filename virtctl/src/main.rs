//! `virtctl`: what `kubectl` has no verb for.
//!
//! Parses the command line, runs one command, prints an error with its causes in one line.

mod cli;
mod client;
mod cmd;
mod term;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser as _;
use cli::{Cli, Command};

/// What a shell reports of a command that SIGINT ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&error),
    };
    let code = runtime.block_on(run(&cli));
    // A read of standard input may never end; it is not waited for.
    runtime.shutdown_background();
    code
}

async fn run(cli: &Cli) -> ExitCode {
    let done = match &cli.command {
        Command::Console(args) => cmd::console::run(&cli.server, args).await,
        Command::Vnc(args) => cmd::vnc::run(&cli.server, args).await,
        Command::PortForward(args) => cmd::port_forward::run(&cli.server, args).await,
        Command::Ssh(args) => cmd::ssh::ssh(&cli.server, args).await,
        Command::Scp(args) => cmd::ssh::scp(&cli.server, args).await,
        Command::Start(args) => cmd::lifecycle::start(&cli.server, args).await,
        Command::Stop(args) => cmd::lifecycle::stop(&cli.server, args).await,
        Command::Restart(args) => cmd::lifecycle::restart(&cli.server, args).await,
        Command::Pause(args) => cmd::pause::run(&cli.server, args, "pause").await,
        Command::Unpause(args) => cmd::pause::run(&cli.server, args, "unpause").await,
        Command::Reset(args) => cmd::pause::run(&cli.server, args, "reset").await,
        Command::SoftReboot(args) => cmd::pause::run(&cli.server, args, "softreboot").await,
        Command::GuestOsInfo(args) => cmd::agent::run(&cli.server, args, "guestosinfo").await,
        Command::FsList(args) => cmd::agent::run(&cli.server, args, "filesystemlist").await,
        Command::UserList(args) => cmd::agent::run(&cli.server, args, "userlist").await,
        Command::AddVolume(args) => cmd::volume::add(&cli.server, args).await,
        Command::RemoveVolume(args) => cmd::volume::remove(&cli.server, args).await,
        Command::Create(args) => cmd::create::run(&cli.server, args),
        Command::ImageUpload(args) => cmd::image_upload::run(&cli.server, args).await,
        Command::Expose(args) => cmd::expose::run(&cli.server, args).await,
        Command::Credentials(args) => cmd::credentials::run(&cli.server, args).await,
        Command::ObjectGraph(args) => cmd::object_graph::run(&cli.server, args).await,
        Command::PermittedDevices => cmd::admin::permitted_devices(&cli.server).await,
        Command::Adm(args) => cmd::admin::adm(&cli.server, args).await,
        Command::MemoryDump(args) => cmd::memory_dump::memory_dump(&cli.server, args).await,
        Command::Usbredir(args) => cmd::usbredir::run(&cli.server, args).await,
        Command::Guestfs(args) => cmd::unserved::guestfs(&cli.server, args).await,
        Command::VmExport(args) => cmd::unserved::vmexport(&cli.server, args).await,
        Command::Expand(args) => cmd::expand::run(&cli.server, args).await,
        Command::Version(args) => cmd::version::run(&cli.server, args).await,
        Command::Completion(args) => cmd::completion::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = report(error.as_ref());
            let interrupted = sources(error.as_ref()).any(|cause| cause.is::<cmd::Interrupted>());
            if interrupted { ExitCode::from(INTERRUPTED) } else { code }
        }
    }
}

fn report(error: &(dyn Error + 'static)) -> ExitCode {
    eprintln!("virtctl: {}", chain(error));
    ExitCode::FAILURE
}

/// An error and what caused it.
fn sources<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Every layer's own words, outermost first. kube's errors repeat those of their source.
fn chain(error: &(dyn Error + 'static)) -> String {
    sources(error).skip(1).map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read: {0}")]
    struct Repeats(#[source] Formats);

    #[derive(Debug, thiserror::Error)]
    #[error("the file is odd")]
    struct Formats(#[source] std::fmt::Error);

    #[test]
    fn causes_are_printed_once() {
        let cause = std::fmt::Error.to_string();
        assert_eq!(
            chain(&Repeats(Formats(std::fmt::Error))),
            format!("cannot read: the file is odd: {cause}")
        );
    }
}
