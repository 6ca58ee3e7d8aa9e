//! QEMU's guest agent: asked over its port, believed in nothing.
//!
//! The other end is a program of the guest, so whatever comes is the guest's word: one line is read at a time, no
//! longer than [`talk::LINE`], within a deadline; numbers and lengths of what is passed on are bounded by [`said`].
//! One task talks; nobody else waits for the guest.

mod said;
mod talk;

use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info};
use vireo_proto::launcher::{Agent as Known, AgentQuestion, AskAgentResponse, Fault};

use crate::fault::{Code, chain, fault};
use talk::{AgentError, Talk};

/// The name by which guests find the port.
pub const PORT: &str = "org.qemu.guest_agent.0";
/// Questions that wait for those before them.
const WAITING: usize = 4;
/// All answers to one question.
const PATIENCE: Duration = Duration::from_secs(8);
/// When what is known is looked at again: soon after the agent came, as its system may still be starting; then less and
/// less often.
const FIRST: Duration = Duration::from_secs(5);
const LAST: Duration = Duration::from_secs(300);

/// Somebody's question.
pub struct Question {
    what: AgentQuestion,
    reply: oneshot::Sender<Result<AskAgentResponse, Fault>>,
}

/// Where questions are put.
#[derive(Clone)]
pub struct Asker(mpsc::Sender<Question>);

impl Asker {
    /// What the agent says now.
    ///
    /// # Errors
    /// When there is no agent, or none that answers.
    pub async fn ask(&self, what: AgentQuestion) -> Result<AskAgentResponse, Fault> {
        let (reply, answer) = oneshot::channel();
        if let Err(mpsc::error::TrySendError::Full(_)) = self.0.try_send(Question { what, reply }) {
            return Err(fault(Code::Conflict, "too many ask the guest agent at once"));
        }
        answer.await.unwrap_or_else(|_| Err(absent()))
    }
}

fn absent() -> Fault {
    fault(Code::Conflict, "VMI does not have guest agent connected")
}

/// Where questions are put, and where they arrive.
pub fn questions() -> (Asker, mpsc::Receiver<Question>) {
    let (asker, questions) = mpsc::channel(WAITING);
    (Asker(asker), questions)
}

/// Bytes both ways.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// The hypervisor's end of the port.
#[derive(Debug)]
pub struct Plug {
    /// What a program of the guest reads and writes.
    pub line: StdStream,
    /// To say whether one has opened it.
    pub open: watch::Sender<bool>,
}

/// Whoever talks to the agent of one guest.
pub struct Agent {
    /// The port.
    pub port: Box<dyn Io>,
    /// Whether a program of the guest has opened it.
    pub open: watch::Receiver<bool>,
    /// What others want to know.
    pub questions: mpsc::Receiver<Question>,
}

impl Agent {
    /// Runs until nobody tells any more whether the port is open. `publish` is told what is known of the agent, whenever
    /// it may have changed.
    pub async fn run(self, publish: impl Fn(Option<Known>)) {
        let Self { port, mut open, mut questions } = self;
        let mut talk = Talk::new(port);
        loop {
            publish(None);
            tokio::select! {
                // Whoever asks after it was opened is not told that it is closed.
                biased;
                opened = open.wait_for(|open| *open) => if opened.is_err() { return },
                Some(question) = questions.recv() => {
                    answer(question.reply, Err(absent()));
                    continue;
                }
            }
            info!("a program of the guest has opened the agent's port");
            talk.begin();
            tokio::select! {
                closed = open.wait_for(|open| !*open) => if closed.is_err() { return },
                () = converse(&mut talk, &mut questions, &publish) => return,
            }
            info!("the agent's port was closed");
        }
    }
}

/// Looks at the agent from time to time, and answers questions in between.
async fn converse(
    talk: &mut Talk,
    questions: &mut mpsc::Receiver<Question>,
    publish: &impl Fn(Option<Known>),
) {
    let (mut pause, mut next) = (FIRST, Instant::now());
    loop {
        tokio::select! {
            question = questions.recv() => match question {
                Some(Question { what, reply }) => {
                    let told = in_time(said::to(talk, what)).await;
                    answer(reply, told.map_err(|error| fault(Code::Hypervisor, chain(&error))));
                }
                None => return,
            },
            () = sleep_until(next) => {
                match in_time(said::known(talk)).await {
                    Ok(known) => publish(Some(known)),
                    Err(error) => debug!(error = chain(&error), "the guest agent does not answer"),
                }
                next = Instant::now() + pause;
                pause = (pause * 2).min(LAST);
            }
        }
    }
}

async fn in_time<T>(told: impl Future<Output = Result<T, AgentError>>) -> Result<T, AgentError> {
    timeout(PATIENCE, told).await.unwrap_or(Err(AgentError::Silent(PATIENCE)))
}

fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    // Whoever asked may have left.
    let _ = reply.send(value);
}

#[cfg(test)]
mod tests;
