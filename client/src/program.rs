//! What the programs have in common: log, signals, exit code, client of the cluster.

use std::error::Error;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::OnceLock;

use kube::client::ClientBuilder;
use kube::{Client, Config};
use rustix::process::{Resource, Rlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, warn};
use tracing_subscriber::EnvFilter;

use crate::metrics::RequestCounter;
use crate::rate_limit::RateLimiter;

/// The verbosity of logs from which debugging messages are logged.
const DEBUG: u32 = 4;
/// The verbosity of logs from which traces are logged.
const TRACE: u32 = 6;

type SetFilter = Box<dyn Fn(Option<&'static str>) + Send + Sync>;
/// Changes the filter of the log of this process, which has one.
static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

/// The error that ends a program.
pub type Failure = Box<dyn Error>;

/// Runs a program on its own runtime and logs the error that ends it. The log goes to stderr, filtered by the
/// directives of `tracing_subscriber::EnvFilter` in `VIREO_LOG`.
pub fn run<F: Future<Output = Result<(), Failure>>>(
    command: impl FnOnce() -> Result<F, Failure>,
) -> ExitCode {
    let usual = || EnvFilter::try_from_env("VIREO_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(usual())
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // Reporting a line that cannot be written would panic: the log's disk may be full.
        .log_internal_errors(false)
        .with_target(false)
        .with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    // It is set once, as this function is called once.
    let _ = SET_FILTER.set(Box::new(move |level| {
        // It fails only where there is no log any more.
        let _ = handle.reload(level.map_or_else(usual, EnvFilter::new));
    }));
    if let Err(error) = raise_open_files() {
        warn!(%error, "cannot raise the limit of open files, which many clients and VMs need");
    }
    match command().and_then(drive) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// The level of logs of a verbosity, as KubeVirt has them; none for the usual one.
pub fn log_level(verbosity: u32) -> Option<&'static str> {
    match verbosity {
        TRACE.. => Some("trace"),
        DEBUG.. => Some("debug"),
        _ => None,
    }
}

/// Has the log of this program be of a verbosity from now on; without one, as `VIREO_LOG` says.
pub fn set_verbosity(verbosity: Option<u32>) {
    if let Some(set) = SET_FILTER.get() {
        // A verbosity that is set is meant, also where it is the usual one.
        set(verbosity.map(|verbosity| log_level(verbosity).unwrap_or("info")));
    }
}

/// Raises the limit of open files: a node has hundreds of connections and guests.
fn raise_open_files() -> Result<(), rustix::io::Errno> {
    let files = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum })
}

fn drive(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(command);
    // Blocking work (an import, a namespace) is abandoned; all of it is idempotent.
    runtime.shutdown_background();
    done
}

/// Returns a future that ends at SIGTERM or SIGINT. From this call on, neither signal kills the process.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// A client of the cluster that $KUBECONFIG names, or of the one that this process runs in. Its requests are counted, and keep to
/// a limit.
///
/// # Errors
/// When there is no cluster, or no client can be made for it.
pub async fn connect(counter: &RequestCounter, limiter: &RateLimiter) -> Result<Client, Failure> {
    let config = Config::infer().await?;
    let host = config.cluster_url.authority().map_or("", |authority| authority.as_str());
    let counted = counter.layer(host);
    Ok(ClientBuilder::try_from(config)?.with_layer(&counted).with_layer(limiter).build())
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
