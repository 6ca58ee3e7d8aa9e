//! Programs of the guest, which its agent runs. What they print stays in the guest.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::sleep;
use vireo_proto::launcher::Fault;

use super::talk::{AgentError, Talk};
use super::{Asker, Question};

/// How soon it is asked whether a program has ended; then less and less often.
const FIRST: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(1);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit code.
    Code(i64),
    /// By a signal or an exception of this number.
    Signal(i64),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "the command ended with exit code {code}"),
            Self::Signal(number) => write!(f, "the command was ended by signal {number}"),
        }
    }
}

impl Asker {
    /// Runs a program and waits for its end; the caller has a deadline. A program that is not waited for runs on.
    ///
    /// # Errors
    /// When there is no agent, none that answers, or none that can run the program.
    pub async fn run(&self, command: Vec<String>) -> Result<End, Fault> {
        let program = self.put(|reply| Question::Run(command, reply)).await?;
        let mut pause = FIRST;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(LAST);
            if let Some(end) = self.put(|reply| Question::Ended(program, reply)).await? {
                return Ok(end);
            }
        }
    }
}

pub(super) async fn ping(talk: &mut Talk) -> Result<(), AgentError> {
    talk.ask::<IgnoredAny>("guest-ping").await.map(drop)
}

#[derive(Deserialize)]
struct Started {
    pid: i64,
}

/// Starts a program; its number.
pub(super) async fn start(talk: &mut Talk, command: &[String]) -> Result<i64, AgentError> {
    let (path, arguments) = command.split_first().map_or(("", &[][..]), |(path, rest)| (path.as_str(), rest));
    let arguments = json!({ "path": path, "arg": arguments, "capture-output": false });
    let started: Started = talk.tell(&json!({ "execute": "guest-exec", "arguments": arguments })).await?;
    Ok(started.pid)
}

#[derive(Deserialize)]
struct Stands {
    exited: bool,
    exitcode: Option<i64>,
    signal: Option<i64>,
}

/// How the program of this number ended, if it did.
pub(super) async fn ended(talk: &mut Talk, program: i64) -> Result<Option<End>, AgentError> {
    let arguments = json!({ "pid": program });
    let stands: Stands =
        talk.tell(&json!({ "execute": "guest-exec-status", "arguments": arguments })).await?;
    let end = match (stands.exitcode, stands.signal) {
        (Some(code), _) => End::Code(code),
        (None, Some(number)) => End::Signal(number),
        (None, None) => End::Code(-1),
    };
    Ok(stands.exited.then_some(end))
}
