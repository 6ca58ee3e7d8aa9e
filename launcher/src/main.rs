//! `virt-launcher`: settle, listen, serve one VM, leave.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use futures_util::stream;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server as Transport;
use tracing::level_filters::LevelFilter;
use tracing::{error, info};
use vireo_launcher::fault::chain;
use vireo_launcher::files::PassedFiles;
use vireo_launcher::firmware::Paths;
use vireo_launcher::node::LocalNode;
use vireo_launcher::server::Server;
use vireo_launcher::session::{Handle, Session};
use vireo_launcher::{logging, process, socket};
use vireo_proto::files::FILES_SOCKET;
use vireo_proto::launcher::launcher_server::LauncherServer;

/// How long connections get to take their last answers.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs one VM. Started by virt-handler, which sends the VM to run.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Unix socket to serve the launcher protocol on.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// QEMU, for VMs the monitor cannot run: a path, or a name to look up on PATH.
    #[arg(long, value_name = "PATH", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
    /// SeaBIOS [default: where the package seabios has it].
    #[arg(long, value_name = "PATH", env = "VIREO_BIOS")]
    bios: Option<PathBuf>,
    /// OVMF's code, without secure boot [default: where the package ovmf has it].
    #[arg(long, value_name = "PATH", env = "VIREO_EFI_CODE", requires = "efi_variables")]
    efi_code: Option<PathBuf>,
    /// The variables that belong to that code, unchanged; VMs get copies.
    #[arg(long, value_name = "PATH", env = "VIREO_EFI_VARIABLES", requires = "efi_code")]
    efi_variables: Option<PathBuf>,
    /// Least important lines to log: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
}

#[derive(Debug, thiserror::Error)]
enum LauncherError {
    #[error("cannot give up what this process should not have")]
    Harden(#[source] rustix::io::Errno),
    #[error("cannot set up signals and timers")]
    Runtime(#[source] io::Error),
    #[error("cannot serve the launcher protocol")]
    Socket(#[from] socket::SocketError),
    #[error("cannot serve the socket for open files")]
    Files(#[source] io::Error),
    #[error("the launcher protocol's server failed")]
    Serve(#[source] tonic::transport::Error),
}

fn main() -> ExitCode {
    let args = Args::parse();
    logging::start(args.log_level);
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), LauncherError> {
    process::harden().map_err(LauncherError::Harden)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(LauncherError::Runtime)?.block_on(async {
        let listener = socket::bind(&args.socket)?;
        info!(socket = %args.socket.display(), "waiting for a VM");
        let files =
            PassedFiles::serve(&args.socket.with_file_name(FILES_SOCKET)).map_err(LauncherError::Files)?;
        let firmware = Paths { bios: args.bios, efi_code: args.efi_code, efi_variables: args.efi_variables };
        let (session, handle) = Session::new(Box::new(LocalNode { qemu: args.qemu, firmware, files }));
        handle_signals(&handle).map_err(LauncherError::Runtime)?;
        serve(session, handle, listener).await.map_err(LauncherError::Serve)
    })
}

/// Runs the session and answers for it until it is over.
async fn serve(
    session: Session,
    handle: Handle,
    listener: UnixListener,
) -> Result<(), tonic::transport::Error> {
    let connections = stream::unfold(listener, |listener| async {
        let stream = socket::accept(&listener).await;
        Some((Ok::<_, io::Error>(stream), listener))
    });
    let over = tokio::sync::Notify::new();
    let server = Transport::builder()
        .add_service(LauncherServer::new(Server::new(handle)))
        .serve_with_incoming_shutdown(connections, over.notified());
    let session = async {
        session.run().await;
        over.notify_one();
        tokio::time::sleep(EXIT_TIMEOUT).await;
    };
    tokio::select! {
        served = server => served,
        () = session => Ok(()),
    }
}

/// SIGTERM and SIGINT shut the guest down; a vanished terminal means nothing.
fn handle_signals(handle: &Handle) -> io::Result<()> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind)?;
        let handle = handle.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                info!(?kind, "signal received: shutting down");
                handle.exit().await;
            }
        });
    }
    signal(SignalKind::hangup()).map(drop)
}
