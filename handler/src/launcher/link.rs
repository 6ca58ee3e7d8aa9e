//! One launcher as its handler sees it: a process, a connection, and the last reported state.
//!
//! A link lives as long as the launcher's process. It connects when the socket appears, sends a hello, and reads the
//! state stream. When the connection breaks, it reports [`LauncherStatus::Silent`] and connects again. It ends only
//! with the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Channel, Endpoint, Uri};
use tracing::{Instrument as _, Span, debug, warn};
pub use vireo_client::program::chain;
use vireo_proto::VERSION;
use vireo_proto::launcher::launcher_client::LauncherClient;
use vireo_proto::launcher::{
    AgentQuestion, AskAgentRequest, AskAgentResponse, AttachInterfaceRequest, AttachVolumeRequest,
    DetachInterfaceRequest, DetachVolumeRequest, Disk, DismissRequest, DumpMemoryRequest, Fault,
    ForgetMemoryDumpRequest, FreezeFilesystemsRequest, HelloRequest, Identity, Interface, KillRequest,
    LaunchRequest, LifecycleCommand, LifecycleRequest, ProbeRequest, ScreenshotRequest,
    SetCredentialsRequest, SetLinksRequest, ShutdownRequest, State, Statistics, StatisticsRequest,
    ThawFilesystemsRequest, WatchRequest,
};

use super::process::{Ending, Process};
use super::socket;

/// The timeout of a response. A timeout only leads to a retry.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A launch opens images and may start QEMU.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of a pause, which waits for the vCPUs, and of a hotplug, which waits for the guest.
const LIFECYCLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of a screenshot or a guest agent query; the launcher's own timeout is shorter and gives the reason.
const AGENT_TIMEOUT: Duration = Duration::from_secs(40);
/// The timeout of a freeze; the launcher's own is shorter and gives the reason.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(80);
/// The largest screenshot in bytes.
const MAX_SCREENSHOT: usize = 64 << 20;
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// The observed status of a launcher.
#[derive(Debug, Clone, PartialEq)]
pub enum LauncherStatus {
    /// Its process runs; it does not respond.
    Silent,
    /// It responds, with this state.
    Connected(Box<State>),
    /// It responds, and belongs to another VMI.
    Foreign(String),
    /// Its process is gone.
    Gone(Ending),
}

/// Why a call to the launcher failed.
#[derive(Debug, Error)]
pub enum LinkError {
    /// No connection could be made.
    #[error("cannot reach the launcher")]
    Unreachable(#[from] tonic::transport::Error),
    /// The call failed in transport.
    #[error("the launcher did not answer: {message}", message = .0.message())]
    Call(Box<tonic::Status>),
    /// It took too long.
    #[error("the launcher did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The launcher rejected the call.
    #[error("the launcher rejected the request: {detail}", detail = .0.detail)]
    Fault(Box<Fault>),
    /// It speaks another major version of the protocol.
    #[error("the launcher speaks protocol {major}.{minor}, this handler {}.{}; it needs the handler it came with", VERSION.major, VERSION.minor)]
    Version {
        /// The launcher's.
        major: u32,
        /// The launcher's.
        minor: u32,
    },
}

/// A launcher that was started or found.
#[derive(Debug)]
pub struct Link {
    process: Arc<Process>,
    socket: PathBuf,
    status: watch::Receiver<LauncherStatus>,
    _task: AbortOnDropHandle<()>,
}

impl Link {
    /// Watches a launcher through the socket that this process serves.
    pub fn watch(process: Process, socket: PathBuf, vmi: Identity) -> Self {
        let process = Arc::new(process);
        let (sender, status) = watch::channel(LauncherStatus::Silent);
        let watcher =
            StateWatcher { process: Arc::clone(&process), socket: socket.clone(), vmi, status: sender };
        let task = tokio::spawn(watcher.run().instrument(Span::current()));
        Self { process, socket, status, _task: AbortOnDropHandle::new(task) }
    }

    /// The current status.
    pub fn status(&self) -> LauncherStatus {
        self.status.borrow().clone()
    }

    /// Waits until the status changes.
    pub async fn changed(&mut self) {
        if self.status.changed().await.is_err() {
            // The watcher ends only with the process and has reported that; the status no longer changes.
            std::future::pending::<()>().await;
        }
    }

    /// Launches the VM.
    ///
    /// # Errors
    /// When the launcher cannot be reached. The launcher's state reports a VM that does not start.
    pub async fn launch(&self, request: LaunchRequest) -> Result<State, LinkError> {
        let mut client = connect(&self.socket).await?;
        let response = within(LAUNCH_TIMEOUT, client.launch(request)).await?;
        match (response.fault, response.state) {
            (None, Some(state)) => Ok(state),
            (Some(fault), _) => Err(LinkError::Fault(Box::new(fault))),
            (None, None) => Ok(State::default()),
        }
    }

    /// Presses the power button; the launcher kills the guest after the grace period.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call.
    pub async fn shutdown(&self, grace_seconds: u64) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        check_fault(within(RESPONSE_TIMEOUT, client.shutdown(ShutdownRequest { grace_seconds })).await?.fault)
    }

    /// Asks the launcher to kill its guest.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call.
    pub async fn kill_guest(&self) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        check_fault(within(RESPONSE_TIMEOUT, client.kill(KillRequest {})).await?.fault)
    }

    /// Hotplugs a volume.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call.
    pub async fn attach(&self, disk: Disk) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        let request = AttachVolumeRequest { disk: Some(disk) };
        check_fault(within(LIFECYCLE_TIMEOUT, client.attach_volume(request)).await?.fault)
    }

    /// Unplugs a volume.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call, also when the guest does not release the volume.
    pub async fn detach(&self, name: String) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        check_fault(
            within(LIFECYCLE_TIMEOUT, client.detach_volume(DetachVolumeRequest { name })).await?.fault,
        )
    }

    /// Hotplugs a NIC, whose files were passed.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call.
    pub async fn attach_interface(&self, interface: Interface) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        let request = AttachInterfaceRequest { interface: Some(interface) };
        check_fault(within(LIFECYCLE_TIMEOUT, client.attach_interface(request)).await?.fault)
    }

    /// Unplugs a NIC.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call, also when the guest does not release the NIC.
    pub async fn detach_interface(&self, name: String) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        let request = DetachInterfaceRequest { name };
        check_fault(within(LIFECYCLE_TIMEOUT, client.detach_interface(request)).await?.fault)
    }

    /// Switches the links of the guest's NICs: these are down.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call.
    pub async fn set_links(&self, down: Vec<String>) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        check_fault(within(RESPONSE_TIMEOUT, client.set_links(SetLinksRequest { down })).await?.fault)
    }

    /// Begins a memory dump to a file that was passed.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call.
    pub async fn dump_memory(&self, request: DumpMemoryRequest) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        check_fault(within(RESPONSE_TIMEOUT, client.dump_memory(request)).await?.fault)
    }

    /// Removes the last memory dump from the launcher's state.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call.
    pub async fn forget_memory_dump(&self) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        let request = ForgetMemoryDumpRequest {};
        check_fault(within(RESPONSE_TIMEOUT, client.forget_memory_dump(request)).await?.fault)
    }

    /// Lets the launcher exit.
    ///
    /// # Errors
    /// When the launcher cannot be reached or rejects the call.
    pub async fn dismiss(&self) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        check_fault(within(RESPONSE_TIMEOUT, client.dismiss(DismissRequest {})).await?.fault)
    }

    /// The launcher's process.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The process id, for logs.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }
}

/// A PNG screenshot of the guest whose launcher is at `socket`.
///
/// # Errors
/// When the launcher cannot be reached or has no screenshot.
pub async fn screenshot(socket: &Path, move_cursor: bool) -> Result<Vec<u8>, LinkError> {
    let mut client = connect(socket).await?.max_decoding_message_size(MAX_SCREENSHOT);
    let response = within(AGENT_TIMEOUT, client.screenshot(ScreenshotRequest { move_cursor })).await?;
    check_fault(response.fault).map(|()| response.png)
}

/// Pauses, resets, ... the guest whose launcher is at `socket`; returns once it is done.
///
/// # Errors
/// When the launcher cannot be reached or rejects the call.
pub async fn lifecycle(socket: &Path, command: LifecycleCommand) -> Result<(), LinkError> {
    let mut client = connect(socket).await?;
    check_fault(
        within(LIFECYCLE_TIMEOUT, client.steer(LifecycleRequest { command: command.into() })).await?.fault,
    )
}

/// Queries the guest agent of the guest whose launcher is at `socket`.
///
/// # Errors
/// When the launcher cannot be reached, or the agent does not respond.
pub async fn ask_agent(socket: &Path, question: AgentQuestion) -> Result<AskAgentResponse, LinkError> {
    let mut client = connect(socket).await?;
    let request = AskAgentRequest { question: question.into() };
    let mut response = within(AGENT_TIMEOUT, client.ask_agent(request)).await?;
    check_fault(response.fault.take()).map(|()| response)
}

/// Has the guest agent of the guest whose launcher is at `socket` set keys and passwords.
///
/// # Errors
/// When the launcher cannot be reached, or the agent does not set all of them.
pub async fn set_credentials(socket: &Path, request: SetCredentialsRequest) -> Result<(), LinkError> {
    let users = request.authorized_keys.len() + request.passwords.len();
    let limit = AGENT_TIMEOUT.saturating_mul(u32::try_from(users.max(1)).unwrap_or(u32::MAX));
    let mut client = connect(socket).await?;
    check_fault(within(limit, client.set_credentials(request)).await?.fault)
}

/// Has the guest agent of the guest whose launcher is at `socket` freeze the guest's file systems, which are thawed after
/// some time, unless that is 0.
///
/// # Errors
/// When the launcher cannot be reached, or the agent does not freeze them.
pub async fn freeze(socket: &Path, thaw_after_seconds: u64) -> Result<(), LinkError> {
    let mut client = connect(socket).await?;
    let request = FreezeFilesystemsRequest { thaw_after_seconds };
    check_fault(within(FREEZE_TIMEOUT, client.freeze_filesystems(request)).await?.fault)
}

/// Has the guest agent of the guest whose launcher is at `socket` thaw the guest's file systems.
///
/// # Errors
/// When the launcher cannot be reached, or the agent does not thaw them.
pub async fn thaw(socket: &Path) -> Result<(), LinkError> {
    let mut client = connect(socket).await?;
    check_fault(within(AGENT_TIMEOUT, client.thaw_filesystems(ThawFilesystemsRequest {})).await?.fault)
}

/// Runs a probe of the guest whose launcher is at `socket`. Returns why the probe failed, if it did.
///
/// # Errors
/// When the launcher cannot be reached; the probe then has no result.
pub async fn probe(socket: &Path, request: ProbeRequest) -> Result<Option<String>, LinkError> {
    let limit = Duration::from_secs(request.timeout_seconds) + RESPONSE_TIMEOUT;
    let call = async {
        let mut client = connect(socket).await?;
        let response = within(limit, client.probe(request)).await?;
        check_fault(response.fault).map(|()| response.failure)
    };
    tokio::time::timeout(limit, call).await.unwrap_or(Err(LinkError::Timeout(limit)))
}

/// The resource usage of the VM whose launcher is at `socket`. The caller has its own deadline.
///
/// # Errors
/// When the launcher cannot be reached, or has no running VM.
pub async fn statistics(socket: &Path) -> Result<Statistics, LinkError> {
    let mut client = connect(socket).await?;
    let response = within(RESPONSE_TIMEOUT, client.statistics(StatisticsRequest {})).await?;
    check_fault(response.fault).map(|()| response.statistics.unwrap_or_default())
}

fn check_fault(fault: Option<Fault>) -> Result<(), LinkError> {
    fault.map_or(Ok(()), |fault| Err(LinkError::Fault(Box::new(fault))))
}

async fn connect(socket: &Path) -> Result<LauncherClient<Channel>, LinkError> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { socket::connect(&path).await.map(TokioIo::new) }
    });
    // The connector knows the address.
    let endpoint = Endpoint::from_static("http://launcher");
    let connected = tokio::time::timeout(RESPONSE_TIMEOUT, endpoint.connect_with_connector(connector)).await;
    Ok(LauncherClient::new(connected.map_err(|_| LinkError::Timeout(RESPONSE_TIMEOUT))??))
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, LinkError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(LinkError::Call(Box::new(status))),
        Err(_) => Err(LinkError::Timeout(limit)),
    }
}

struct StateWatcher {
    process: Arc<Process>,
    socket: PathBuf,
    vmi: Identity,
    status: watch::Sender<LauncherStatus>,
}

impl StateWatcher {
    async fn run(self) {
        let ending = tokio::select! {
            ending = self.process.gone() => ending,
            never = self.watch_states() => match never {},
        };
        self.publish(LauncherStatus::Gone(ending));
    }

    /// Connects, reads the state stream, and reconnects; cancelled by the end of the process.
    async fn watch_states(&self) -> std::convert::Infallible {
        let mut pause = RETRY_FIRST;
        loop {
            if let Err(error) = socket::appears(&self.socket).await {
                warn!(%error, socket = %self.socket.display(), "cannot wait for the launcher's socket");
            }
            match self.watch_once(&mut pause).await {
                Ok(()) => debug!("the launcher ended its state stream"),
                Err(error) => debug!(error = %chain(&error), "cannot read the launcher's state"),
            }
            if !matches!(*self.status.borrow(), LauncherStatus::Foreign(_)) {
                self.publish(LauncherStatus::Silent);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_LAST);
        }
    }

    async fn watch_once(&self, pause: &mut Duration) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        let hello = within(RESPONSE_TIMEOUT, client.hello(HelloRequest { version: Some(VERSION) })).await?;
        let version = hello.version.unwrap_or_default();
        if version.major != VERSION.major {
            return Err(LinkError::Version { major: version.major, minor: version.minor });
        }
        if let Some(other) = hello.vmi.filter(|vmi| *vmi != self.vmi) {
            self.publish(LauncherStatus::Foreign(format!(
                "{}/{} ({})",
                other.namespace, other.name, other.uid
            )));
            return Ok(());
        }
        *pause = RETRY_FIRST;
        let mut states = within(RESPONSE_TIMEOUT, client.watch(WatchRequest {})).await?;
        loop {
            match states.message().await {
                Ok(Some(state)) => self.publish(LauncherStatus::Connected(Box::new(state))),
                Ok(None) => return Ok(()),
                Err(status) => return Err(LinkError::Call(Box::new(status))),
            }
        }
    }

    fn publish(&self, now: LauncherStatus) {
        self.status.send_if_modified(|status| {
            let differs = *status != now;
            if differs {
                *status = now;
            }
            differs
        });
    }
}

#[cfg(test)]
mod tests;
