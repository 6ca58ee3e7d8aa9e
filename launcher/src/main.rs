//! `virt-launcher`: settle, listen, serve one VM, leave.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use futures_util::stream;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tonic::transport::Server as Transport;
use tracing::level_filters::LevelFilter;
use tracing::{error, info};
use vireo_launcher::confine::{ConfineError, Confinement};
use vireo_launcher::fault::chain;
use vireo_launcher::files::PassedFiles;
use vireo_launcher::firmware::Paths;
use vireo_launcher::node::LocalNode;
use vireo_launcher::server::Server;
use vireo_launcher::session::{Handle, Session};
use vireo_launcher::{confine, console_log, image, landlock, logging, process, socket};
use vireo_privileges::landlock::LandlockError;
use vireo_privileges::seccomp::{self, Seccomp};
use vireo_proto::RUN_DIRECTORY;
use vireo_proto::files::{self, FILES_SOCKET};
use vireo_proto::launcher::launcher_server::LauncherServer;

/// How long connections get to take their last answers.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs one VM, which virt-handler sends.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    args: Args,
}

/// What else a launcher Pod needs.
#[derive(Debug, Subcommand)]
enum Command {
    /// Confines this process and becomes the launcher; virt-handler uses it.
    #[command(hide = true)]
    Confine(Confinement),
    /// Copies this program to a directory, for the containers of images.
    Install {
        /// Where.
        directory: PathBuf,
    },
    /// Offers the disk of the image that this runs in to virt-handler.
    OfferDisk {
        /// Unix socket to offer it on.
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
        /// The disk [default: the only file below /disk].
        path: Option<PathBuf>,
    },
    /// Offers files of the image that this runs in to virt-handler.
    OfferFiles {
        /// Unix socket to offer them on.
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
        /// Which.
        paths: Vec<PathBuf>,
    },
    /// Holds the claim of an attachment Pod for virt-handler, until SIGTERM.
    HoldClaim {
        /// Unix socket by which virt-handler finds this process.
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
    },
    /// Copies the guest's serial console to the standard output, until the guest is gone.
    TailConsole {
        /// The launcher's socket.
        #[arg(long, value_name = "PATH")]
        launcher: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Args {
    /// Unix socket to serve the launcher protocol on.
    // Not required by clap: where the environment names firmware, it would be required of subcommands, too.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// QEMU, for VMs the monitor cannot run: a path, or a name to look up on PATH.
    #[arg(long, value_name = "PATH", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
    /// SeaBIOS [default: where the package seabios has it].
    #[arg(long, value_name = "PATH", env = "VIREO_BIOS")]
    bios: Option<PathBuf>,
    /// OVMF's code, without secure boot [default: where the package ovmf has it].
    #[arg(long, value_name = "PATH", env = "VIREO_EFI_CODE", requires = "efi_variables")]
    efi_code: Option<PathBuf>,
    /// The variable store of that code, unchanged; VMs get copies.
    #[arg(long, value_name = "PATH", env = "VIREO_EFI_VARIABLES", requires = "efi_code")]
    efi_variables: Option<PathBuf>,
    /// Restrict this process, and what it starts, by landlock, where the kernel has it: it writes beside the socket and in
    /// the directories of --writable alone. For launchers in Pods.
    #[arg(long)]
    landlock: bool,
    /// Another directory that it writes in.
    #[arg(long, value_name = "DIR", requires = "landlock")]
    writable: Vec<PathBuf>,
    /// What becomes of a system call that a launcher does not need.
    #[arg(long, value_name = "MODE", env = seccomp::VARIABLE, default_value_t, value_parser = seccomp_mode())]
    seccomp: Seccomp,
    /// Least important lines to log: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
}

fn seccomp_mode() -> impl TypedValueParser<Value = Seccomp> {
    PossibleValuesParser::new(Seccomp::NAMES).try_map(|name| name.parse::<Seccomp>())
}

#[derive(Debug, thiserror::Error)]
enum LauncherError {
    #[error("cannot give up what this process should not have")]
    Harden(#[source] rustix::io::Errno),
    #[error("cannot set landlock rules")]
    Landlock(#[from] LandlockError),
    #[error("cannot set up signals and timers")]
    Runtime(#[source] io::Error),
    #[error("cannot serve the launcher protocol")]
    Socket(#[from] socket::SocketError),
    #[error(transparent)]
    Image(#[from] image::ImageError),
    #[error("cannot confine this process")]
    Confine(#[from] ConfineError),
    #[error("cannot copy the guest's console")]
    Log(#[source] io::Error),
    #[error("ended by a signal before the node agent had the files of the image")]
    Terminated,
    #[error("cannot serve the socket for open files")]
    Files(#[source] io::Error),
    #[error("the launcher protocol's server failed")]
    Serve(#[source] tonic::transport::Error),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::start(cli.args.log_level);
    let done = match (cli.command, cli.args) {
        (Some(Command::Install { directory }), _) => image::install(&directory).map_err(LauncherError::from),
        (Some(Command::Confine(confinement)), _) => Err(confine::run(&confinement).into()),
        (Some(Command::OfferDisk { socket, path }), _) => {
            until_terminated(move || image::offer_disk(&socket, path.as_deref()).map_err(LauncherError::from))
        }
        (Some(Command::OfferFiles { socket, paths }), _) => {
            until_terminated(move || image::offer_files(&socket, &paths).map_err(LauncherError::from))
        }
        (Some(Command::HoldClaim { socket }), _) => hold_claim(&socket),
        (Some(Command::TailConsole { launcher }), _) => tail_console(&launcher),
        (None, args) => match args.socket.clone() {
            Some(socket) => run(&socket, args),
            None => Cli::command().error(ErrorKind::MissingRequiredArgument, "--socket is required").exit(),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Does what an init container is for. It fails at SIGTERM before that is done, so that the kubelet does not have to kill it, and
/// starts no other container as if it had succeeded.
fn until_terminated(
    work: impl FnOnce() -> Result<(), LauncherError> + Send + 'static,
) -> Result<(), LauncherError> {
    or_terminated(work)?.unwrap_or(Err(LauncherError::Terminated))
}

fn hold_claim(socket: &Path) -> Result<(), LauncherError> {
    let listener = files::listener(socket).map_err(LauncherError::Files)?;
    or_terminated(move || files::answer(listener.as_fd()).map_err(LauncherError::Files))?.unwrap_or(Ok(()))
}

/// What some work results in; none at SIGTERM, which leaves it.
fn or_terminated<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, LauncherError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(LauncherError::Runtime)?.block_on(async {
        // As the first process of a container, it would get no signal that it does not handle.
        let mut terminate = signal(SignalKind::terminate()).map_err(LauncherError::Runtime)?;
        // Not by the runtime, whose end would wait for it.
        let (done, result) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || done.send(work()));
        tokio::select! {
            _ = terminate.recv() => Ok(None),
            Ok(result) = result => Ok(Some(result)),
        }
    })
}

fn tail_console(launcher: &Path) -> Result<(), LauncherError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(LauncherError::Runtime)?.block_on(async {
        // As the first process of a container, it would get no signal that it does not handle.
        let mut terminate = signal(SignalKind::terminate()).map_err(LauncherError::Runtime)?;
        let stop = async {
            terminate.recv().await;
        };
        console_log::copy(launcher, &mut tokio::io::stdout(), stop).await.map_err(LauncherError::Log)
    })
}

fn run(socket: &Path, args: Args) -> Result<(), LauncherError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(LauncherError::Runtime)?.block_on(async {
        // Before all else: as the first process of a container, it would get no signal that it does not handle, and the kubelet
        // sends SIGTERM once. One that comes early is kept.
        let terminations = terminations().map_err(LauncherError::Runtime)?;
        process::harden().map_err(LauncherError::Harden)?;
        if args.landlock {
            // While there is one thread: rules hold for the thread that sets them, and what it starts.
            landlock::restrict_in_pod(socket.parent(), &args.writable)?;
        }
        let listener = vireo_launcher::socket::bind(socket)?;
        info!(socket = %socket.display(), "waiting for a VM");
        // In a Pod, only this process makes it.
        std::fs::create_dir_all(socket.with_file_name(RUN_DIRECTORY)).map_err(LauncherError::Runtime)?;
        let files = PassedFiles::serve(&socket.with_file_name(FILES_SOCKET)).map_err(LauncherError::Files)?;
        let firmware = Paths { bios: args.bios, efi_code: args.efi_code, efi_variables: args.efi_variables };
        let (session, handle) =
            Session::new(Box::new(LocalNode { qemu: args.qemu, firmware, files, seccomp: args.seccomp }));
        exit_at(terminations, &handle);
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

/// SIGTERM and SIGINT, which shut the guest down; a vanished terminal means nothing.
fn terminations() -> io::Result<[(SignalKind, Signal); 2]> {
    signal(SignalKind::hangup()).map(drop)?;
    let of = |kind| signal(kind).map(|signals| (kind, signals));
    Ok([of(SignalKind::terminate())?, of(SignalKind::interrupt())?])
}

/// Ends the session at each of these signals.
fn exit_at(terminations: [(SignalKind, Signal); 2], handle: &Handle) {
    for (kind, mut signals) in terminations {
        let handle = handle.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                info!(?kind, "signal received: shutting down");
                handle.exit().await;
            }
        });
    }
}
