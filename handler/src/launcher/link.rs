//! One launcher as its handler sees it: a process, a connection, and the state it last told.
//!
//! A link lives as long as the launcher's process. It connects when the socket appears, says hello, and follows the
//! state stream; if the connection breaks while the process lives it says "silent" and connects again. Only the end
//! of the process is an end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tracing::{Instrument as _, Span, debug, warn};
use vireo_proto::VERSION;
use vireo_proto::launcher::launcher_client::LauncherClient;
use vireo_proto::launcher::{
    AgentQuestion, AskAgentRequest, AskAgentResponse, AttachVolumeRequest, DetachVolumeRequest, Disk,
    DismissRequest, Fault, HelloRequest, Identity, KillRequest, LaunchRequest, ProbeRequest,
    ScreenshotRequest, ShutdownRequest, State, Statistics, StatisticsRequest, SteerRequest, Steering,
    WatchRequest, state::Phase,
};

use super::process::{Ending, Process};
use super::socket;

/// How long one answer may take before it counts as silence. Nothing is concluded from silence but "try again".
const ANSWER: Duration = Duration::from_secs(10);
/// Building a machine opens images and may start QEMU.
const LAUNCH: Duration = Duration::from_secs(60);
/// For a pause, which waits for the processors, and for volumes, which wait for the guest.
const STEER: Duration = Duration::from_secs(30);
/// For a picture, or the guest's agent; the launcher gives up before, and says why.
const LOOK: Duration = Duration::from_secs(40);
/// No picture of a screen is larger.
const PICTURE: usize = 64 << 20;
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// What is known of a launcher.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// Its process runs; it does not answer.
    Silent,
    /// It answers; this is where it stands.
    Here(Box<State>),
    /// It answers, and is not this VMI's.
    Foreign(String),
    /// Its process is gone.
    Gone(Ending),
}

/// Why a command did not reach the launcher or was refused by it.
#[derive(Debug, Error)]
pub enum LinkError {
    /// No connection could be made.
    #[error("cannot reach the launcher")]
    Unreachable(#[from] tonic::transport::Error),
    /// The call failed on its way.
    #[error("the launcher did not answer: {message}", message = .0.message())]
    Call(Box<tonic::Status>),
    /// It took too long.
    #[error("the launcher did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// It said no.
    #[error("the launcher refuses: {detail}", detail = .0.detail)]
    Refused(Box<Fault>),
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
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Follows a launcher on its socket, of which it is known that this process serves it.
    pub fn follow(process: Process, socket: PathBuf, vmi: Identity) -> Self {
        let process = Arc::new(process);
        let (tell, seen) = watch::channel(Seen::Silent);
        let following = Follower { process: Arc::clone(&process), socket: socket.clone(), vmi, tell };
        let task = tokio::spawn(following.run().instrument(Span::current()));
        Self { process, socket, seen, task }
    }

    /// What is known now.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Waits until something else is known.
    pub async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            // The follower ends with the process only, having said so; nothing changes any more.
            std::future::pending::<()>().await;
        }
    }

    /// Launches the machine.
    ///
    /// # Errors
    /// When the launcher cannot be asked. A machine that does not start is told by the launcher's state.
    pub async fn launch(&self, request: LaunchRequest) -> Result<State, LinkError> {
        let mut client = connect(&self.socket).await?;
        let answer = within(LAUNCH, client.launch(request)).await?;
        match (answer.fault, answer.state) {
            (None, Some(state)) => Ok(state),
            (Some(fault), _) => Err(LinkError::Refused(Box::new(fault))),
            (None, None) => Ok(State::default()),
        }
    }

    /// Presses the power button; the launcher kills the guest when the grace is over.
    ///
    /// # Errors
    /// When the launcher cannot be asked or refuses.
    pub async fn shutdown(&self, grace_seconds: u64) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        refused(within(ANSWER, client.shutdown(ShutdownRequest { grace_seconds })).await?.fault)
    }

    /// Asks the launcher to kill its guest.
    ///
    /// # Errors
    /// When the launcher cannot be asked or refuses.
    pub async fn kill_guest(&self) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        refused(within(ANSWER, client.kill(KillRequest {})).await?.fault)
    }

    /// Plugs a volume in.
    ///
    /// # Errors
    /// When the launcher cannot be asked or refuses.
    pub async fn attach(&self, disk: Disk) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        let request = AttachVolumeRequest { disk: Some(disk) };
        refused(within(STEER, client.attach_volume(request)).await?.fault)
    }

    /// Plugs a volume out.
    ///
    /// # Errors
    /// When the launcher cannot be asked or refuses, also because the guest does not let go of it.
    pub async fn detach(&self, name: String) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        refused(within(STEER, client.detach_volume(DetachVolumeRequest { name })).await?.fault)
    }

    /// Lets the launcher exit.
    ///
    /// # Errors
    /// When the launcher cannot be asked or refuses.
    pub async fn dismiss(&self) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        refused(within(ANSWER, client.dismiss(DismissRequest {})).await?.fault)
    }

    /// The launcher's process.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The process id, for people.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }
}

/// A PNG picture of the screen of the guest whose launcher is at `socket`.
///
/// # Errors
/// When the launcher cannot be asked or has no picture.
pub async fn screenshot(socket: &Path, move_cursor: bool) -> Result<Vec<u8>, LinkError> {
    let mut client = connect(socket).await?.max_decoding_message_size(PICTURE);
    let answer = within(LOOK, client.screenshot(ScreenshotRequest { move_cursor })).await?;
    refused(answer.fault).map(|()| answer.png)
}

/// Pauses, resets, ... the guest whose launcher is at `socket`; returns once it is done.
///
/// # Errors
/// When the launcher cannot be asked or refuses.
pub async fn steer(socket: &Path, steering: Steering) -> Result<(), LinkError> {
    let mut client = connect(socket).await?;
    refused(within(STEER, client.steer(SteerRequest { steering: steering.into() })).await?.fault)
}

/// What the agent of the guest whose launcher is at `socket` says.
///
/// # Errors
/// When the launcher cannot be asked, or nobody answers it.
pub async fn ask_agent(socket: &Path, question: AgentQuestion) -> Result<AskAgentResponse, LinkError> {
    let mut client = connect(socket).await?;
    let request = AskAgentRequest { question: question.into() };
    let mut answer = within(LOOK, client.ask_agent(request)).await?;
    refused(answer.fault.take()).map(|()| answer)
}

/// Asks the guest whose launcher is at `socket` whether it is well; why not, if it is not.
///
/// # Errors
/// When the launcher cannot be asked, which says nothing of the guest.
pub async fn probe(socket: &Path, request: ProbeRequest) -> Result<Option<String>, LinkError> {
    let limit = Duration::from_secs(request.timeout_seconds) + ANSWER;
    let asked = async {
        let mut client = connect(socket).await?;
        let answer = within(limit, client.probe(request)).await?;
        refused(answer.fault).map(|()| answer.failure)
    };
    tokio::time::timeout(limit, asked).await.unwrap_or(Err(LinkError::Timeout(limit)))
}

/// What the machine whose launcher is at `socket` has used. The caller has a deadline of its own.
///
/// # Errors
/// When the launcher cannot be asked, or has no machine that runs.
pub async fn statistics(socket: &Path) -> Result<Statistics, LinkError> {
    let mut client = connect(socket).await?;
    let answer = within(ANSWER, client.statistics(StatisticsRequest {})).await?;
    refused(answer.fault).map(|()| answer.statistics.unwrap_or_default())
}

fn refused(fault: Option<Fault>) -> Result<(), LinkError> {
    fault.map_or(Ok(()), |fault| Err(LinkError::Refused(Box::new(fault))))
}

async fn connect(socket: &Path) -> Result<LauncherClient<Channel>, LinkError> {
    let endpoint = tonic::transport::Endpoint::try_from(format!("unix://{}", socket.display()))?;
    let connected = tokio::time::timeout(ANSWER, endpoint.connect()).await;
    Ok(LauncherClient::new(connected.map_err(|_| LinkError::Timeout(ANSWER))??))
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

struct Follower {
    process: Arc<Process>,
    socket: PathBuf,
    vmi: Identity,
    tell: watch::Sender<Seen>,
}

impl Follower {
    async fn run(self) {
        let ending = tokio::select! {
            ending = self.process.gone() => ending,
            never = self.converse() => match never {},
        };
        self.say(Seen::Gone(ending));
    }

    /// Connects, follows, connects again; cut off by the end of the process.
    async fn converse(&self) -> std::convert::Infallible {
        let mut pause = RETRY_FIRST;
        loop {
            if let Err(error) = socket::appears(&self.socket).await {
                warn!(%error, socket = %self.socket.display(), "cannot wait for the launcher's socket");
            }
            match self.follow_once(&mut pause).await {
                Ok(()) => debug!("the launcher ended its state stream"),
                Err(error) => debug!(error = %chain(&error), "no conversation with the launcher"),
            }
            if !matches!(*self.tell.borrow(), Seen::Foreign(_)) {
                self.say(Seen::Silent);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_LAST);
        }
    }

    async fn follow_once(&self, pause: &mut Duration) -> Result<(), LinkError> {
        let mut client = connect(&self.socket).await?;
        let hello = within(ANSWER, client.hello(HelloRequest { version: Some(VERSION) })).await?;
        let version = hello.version.unwrap_or_default();
        if version.major != VERSION.major {
            return Err(LinkError::Version { major: version.major, minor: version.minor });
        }
        if let Some(other) = hello.vmi.filter(|vmi| *vmi != self.vmi) {
            self.say(Seen::Foreign(format!("{}/{} ({})", other.namespace, other.name, other.uid)));
            return Ok(());
        }
        *pause = RETRY_FIRST;
        let mut states = within(ANSWER, client.watch(WatchRequest {})).await?;
        loop {
            match states.message().await {
                Ok(Some(state)) => self.say(Seen::Here(Box::new(state))),
                Ok(None) => return Ok(()),
                Err(status) => return Err(LinkError::Call(Box::new(status))),
            }
        }
    }

    fn say(&self, now: Seen) {
        self.tell.send_if_modified(|seen| {
            let differs = *seen != now;
            if differs {
                *seen = now;
            }
            differs
        });
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// What [`crate::reconcile::decide`] calls this.
pub fn summary(seen: Option<&Seen>) -> crate::reconcile::decide::Launcher {
    use crate::reconcile::decide::Launcher;
    match seen {
        None => Launcher::Unstarted,
        Some(Seen::Silent) => Launcher::Silent,
        Some(Seen::Foreign(_)) => Launcher::Foreign,
        Some(Seen::Gone(_)) => Launcher::Vanished,
        Some(Seen::Here(state)) => match state.phase() {
            Phase::Unspecified | Phase::Waiting => Launcher::Waiting,
            Phase::Starting => Launcher::Starting,
            Phase::Running | Phase::Paused | Phase::Stopping => Launcher::Alive,
            Phase::Exited => Launcher::Exited,
        },
    }
}

#[cfg(test)]
mod tests;
