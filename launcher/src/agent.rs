//! Client of the QEMU guest agent.
//!
//! The agent is a program of the guest, so its data is untrusted: responses are read one line at a time, at most
//! [`transport::MAX_LINE`] bytes, within a deadline; numbers and lengths of forwarded items are bounded by
//! [`response`]. One task owns the connection.

mod credentials;
pub mod exec;
mod freeze;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod response;
mod transport;

use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info};
use vireo_proto::launcher::{
    Agent as Known, AgentQuestion, AskAgentResponse, AuthorizedKeys, Fault, UserPassword,
};

use crate::fault::{Code, chain, fault};
pub use freeze::FROZEN;
use freeze::{FREEZE_TIMEOUT, Freezer};
use transport::{AgentError, Transport};

/// The name by which guests find the port.
pub const PORT: &str = "org.qemu.guest_agent.0";
/// Questions that wait for those before them.
const MAX_QUEUED: usize = 4;
/// All answers to one question.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);
/// When what is known is looked at again: soon after the agent came, as its system may still be starting; then less and
/// less often.
const FIRST_POLL: Duration = Duration::from_secs(5);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(300);
/// The same while file systems are frozen: others may thaw them.
const FROZEN_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Where a response goes.
type Reply<T> = oneshot::Sender<Result<T, Fault>>;

/// A request to the task that owns the connection.
pub enum AgentRequest {
    /// What is known.
    Query(AgentQuestion, Reply<AskAgentResponse>),
    /// Is it there?
    Ping(Reply<()>),
    /// Start a program, with its arguments.
    Exec(Vec<String>, Reply<i64>),
    /// How did it end?
    ExecStatus(i64, Reply<Option<exec::End>>),
    /// Set the SSH keys of a user.
    SetKeys(AuthorizedKeys, Reply<Option<credentials::Refusal>>),
    /// Set the password of a user.
    SetPassword(UserPassword, Reply<Option<credentials::Refusal>>),
    /// Freeze the file systems, and thaw them after some time.
    Freeze(Duration, Reply<()>),
    /// Thaw them.
    Thaw(Reply<()>),
}

/// Where questions are put.
#[derive(Clone)]
pub struct AgentClient(mpsc::Sender<AgentRequest>);

impl AgentClient {
    /// Queries the agent.
    ///
    /// # Errors
    /// When no agent is connected, or it does not respond.
    pub async fn ask(&self, what: AgentQuestion) -> Result<AskAgentResponse, Fault> {
        self.send(|reply| AgentRequest::Query(what, reply)).await
    }

    /// Whether the agent answers at all.
    ///
    /// # Errors
    /// When no agent is connected, or it does not respond.
    pub async fn ping(&self) -> Result<(), Fault> {
        self.send(AgentRequest::Ping).await
    }

    async fn send<T>(&self, request: impl FnOnce(Reply<T>) -> AgentRequest) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        if let Err(mpsc::error::TrySendError::Full(_)) = self.0.try_send(request(reply)) {
            return Err(fault(Code::Conflict, "too many concurrent guest agent requests"));
        }
        answer.await.unwrap_or_else(|_| Err(not_connected()))
    }
}

impl AgentRequest {
    /// Executes the request and sends the response.
    async fn execute(self, transport: &mut Transport, freezer: &mut Freezer, last: Option<&Known>) {
        match self {
            Self::Query(what, reply) => answer(reply, response::query(transport, what, last)).await,
            Self::Ping(reply) => answer(reply, exec::ping(transport)).await,
            Self::Exec(command, reply) => answer(reply, exec::start(transport, &command)).await,
            Self::ExecStatus(program, reply) => answer(reply, exec::ended(transport, program)).await,
            Self::SetKeys(keys, reply) => answer(reply, credentials::set_keys(transport, &keys)).await,
            Self::SetPassword(password, reply) => {
                answer(reply, credentials::set_password(transport, &password)).await;
            }
            Self::Freeze(thaw_after, reply) => {
                let limit = FREEZE_TIMEOUT + REQUEST_TIMEOUT;
                answer_within(limit, reply, freezer.freeze(transport, thaw_after)).await;
            }
            Self::Thaw(reply) => answer(reply, freezer.thaw(transport)).await,
        }
    }

    /// Whether what is known of the guest is another afterwards.
    fn changes_guest(&self) -> bool {
        matches!(self, Self::Freeze(..) | Self::Thaw(_))
    }
}

/// Sends the result, unless the requester stops waiting first.
async fn answer<T>(reply: Reply<T>, result: impl Future<Output = Result<T, AgentError>>) {
    answer_within(REQUEST_TIMEOUT, reply, result).await;
}

async fn answer_within<T>(
    limit: Duration,
    mut reply: Reply<T>,
    result: impl Future<Output = Result<T, AgentError>>,
) {
    tokio::select! {
        biased;
        () = reply.closed() => {}
        result = in_time(limit, result) => {
            // They may have left just now.
            let _ = reply.send(result.map_err(|error| fault(Code::Hypervisor, chain(&error))));
        }
    }
}

fn not_connected() -> Fault {
    fault(Code::Conflict, "VMI does not have guest agent connected")
}

/// Where questions are put, and where they arrive.
pub fn requests() -> (AgentClient, mpsc::Receiver<AgentRequest>) {
    let (client, requests) = mpsc::channel(MAX_QUEUED);
    (AgentClient(client), requests)
}

/// Bytes both ways.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// The hypervisor's end of the port.
#[derive(Debug)]
pub struct AgentPort {
    /// What a program of the guest reads and writes.
    pub stream: StdStream,
    /// Set to whether a guest program has the port open.
    pub open: watch::Sender<bool>,
}

/// The task that owns the connection to one guest's agent.
pub struct Agent {
    /// The port.
    pub port: Box<dyn Io>,
    /// Whether a program of the guest has opened it.
    pub open: watch::Receiver<bool>,
    /// What others want to know.
    pub requests: mpsc::Receiver<AgentRequest>,
}

impl Agent {
    /// Runs until the sender of `open` is dropped. `publish` receives the agent's data whenever it may have changed.
    pub async fn run(self, publish: impl Fn(Option<Known>)) {
        let Self { port, mut open, mut requests } = self;
        let mut transport = Transport::new(port);
        let mut freezer = Freezer::default();
        loop {
            publish(None);
            tokio::select! {
                // Biased: a request that follows the opening of the port is not rejected.
                biased;
                opened = open.wait_for(|open| *open) => if opened.is_err() { return },
                // Dropping the reply reports that no agent is connected.
                Some(_) = requests.recv() => continue,
            }
            info!("a program of the guest has opened the agent's port");
            transport.reset();
            tokio::select! {
                closed = open.wait_for(|open| !*open) => if closed.is_err() { return },
                () = serve((&mut transport, &mut freezer), &mut requests, &publish) => return,
            }
            info!("the agent's port was closed");
        }
    }
}

/// Looks at the agent from time to time, and answers questions in between.
async fn serve(
    (transport, freezer): (&mut Transport, &mut Freezer),
    requests: &mut mpsc::Receiver<AgentRequest>,
    publish: &impl Fn(Option<Known>),
) {
    let (mut pause, mut next) = (FIRST_POLL, Instant::now());
    let mut last = None;
    loop {
        tokio::select! {
            request = requests.recv() => match request {
                Some(request) => {
                    let changes_guest = request.changes_guest();
                    request.execute(transport, freezer, last.as_ref()).await;
                    if changes_guest {
                        next = Instant::now();
                    }
                }
                None => return,
            },
            () = freezer.due() => {
                freezer.thaw_when_due(transport).await;
                next = Instant::now();
            }
            () = sleep_until(next) => {
                match in_time(REQUEST_TIMEOUT, response::poll(transport, last.as_ref())).await {
                    Ok(known) => {
                        last = Some(known.clone());
                        publish(Some(known));
                    }
                    Err(error) => debug!(error = chain(&error), "the guest agent does not answer"),
                }
                let is_frozen = last.as_ref().is_some_and(|known| known.freeze_status == FROZEN);
                next = Instant::now() + if is_frozen { FROZEN_POLL_INTERVAL } else { pause };
                pause = (pause * 2).min(MAX_POLL_INTERVAL);
            }
        }
    }
}

async fn in_time<T>(
    limit: Duration,
    result: impl Future<Output = Result<T, AgentError>>,
) -> Result<T, AgentError> {
    timeout(limit, result).await.unwrap_or(Err(AgentError::Timeout(limit)))
}

#[cfg(test)]
mod tests;
