//! QEMU's guest agent: asked over its port, believed in nothing.
//!
//! The other end is a program of the guest, so whatever comes is the guest's word: one line is read at a time, no
//! longer than [`talk::LINE`], within a deadline; numbers and lengths of what is passed on are bounded by [`said`].
//! One task talks; nobody else waits for the guest.

pub mod run;
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

/// Where an answer goes.
type Reply<T> = oneshot::Sender<Result<T, Fault>>;

/// Somebody's question.
pub enum Question {
    /// What is known.
    Tell(AgentQuestion, Reply<AskAgentResponse>),
    /// Is it there?
    Ping(Reply<()>),
    /// Start a program, with its arguments.
    Run(Vec<String>, Reply<i64>),
    /// How did it end?
    Ended(i64, Reply<Option<run::End>>),
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
        self.put(|reply| Question::Tell(what, reply)).await
    }

    /// Whether the agent answers at all.
    ///
    /// # Errors
    /// When there is no agent, or none that answers.
    pub async fn ping(&self) -> Result<(), Fault> {
        self.put(Question::Ping).await
    }

    async fn put<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        if let Err(mpsc::error::TrySendError::Full(_)) = self.0.try_send(question(reply)) {
            return Err(fault(Code::Conflict, "too many ask the guest agent at once"));
        }
        answer.await.unwrap_or_else(|_| Err(absent()))
    }
}

impl Question {
    /// Answers it with what the agent says now.
    async fn put_to(self, talk: &mut Talk) {
        match self {
            Self::Tell(what, reply) => answer(reply, said::to(talk, what)).await,
            Self::Ping(reply) => answer(reply, run::ping(talk)).await,
            Self::Run(command, reply) => answer(reply, run::start(talk, &command)).await,
            Self::Ended(program, reply) => answer(reply, run::ended(talk, program)).await,
        }
    }
}

/// Answers a question, as long as whoever asked waits.
async fn answer<T>(mut reply: Reply<T>, told: impl Future<Output = Result<T, AgentError>>) {
    tokio::select! {
        biased;
        () = reply.closed() => {}
        told = in_time(told) => {
            // They may have left just now.
            let _ = reply.send(told.map_err(|error| fault(Code::Hypervisor, chain(&error))));
        }
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
                // Without a reply, whoever asked learns that there is none.
                Some(_) = questions.recv() => continue,
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
                Some(question) => question.put_to(talk).await,
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

#[cfg(test)]
mod tests;
