//! Programs of the guest, which its agent runs. What they print stays in the guest.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::sleep;
use vireo_proto::launcher::Fault;

use super::transport::{AgentError, Transport};
use super::{AgentClient, AgentRequest};

/// First interval between polls of a program's status; it doubles up to the second.
const FIRST_POLL: Duration = Duration::from_millis(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

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

impl AgentClient {
    /// Runs a program and waits for its end; the caller has a deadline. A program that is not waited for runs on.
    ///
    /// # Errors
    /// When no agent is connected, it does not respond, or it cannot run the program.
    pub async fn exec(&self, command: Vec<String>) -> Result<End, Fault> {
        let program = self.send(|reply| AgentRequest::Exec(command, reply)).await?;
        let mut pause = FIRST_POLL;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
            if let Some(end) = self.send(|reply| AgentRequest::ExecStatus(program, reply)).await? {
                return Ok(end);
            }
        }
    }
}

pub(super) async fn ping(transport: &mut Transport) -> Result<(), AgentError> {
    transport.ask::<IgnoredAny>("guest-ping").await.map(drop)
}

#[derive(Deserialize)]
struct Started {
    pid: i64,
}

/// Starts a program; its number.
pub(super) async fn start(transport: &mut Transport, command: &[String]) -> Result<i64, AgentError> {
    let (path, arguments) = command.split_first().map_or(("", &[][..]), |(path, rest)| (path.as_str(), rest));
    let arguments = json!({ "path": path, "arg": arguments, "capture-output": false });
    let started: Started =
        transport.execute(&json!({ "execute": "guest-exec", "arguments": arguments })).await?;
    Ok(started.pid)
}

#[derive(Deserialize)]
struct ExecStatus {
    exited: bool,
    exitcode: Option<i64>,
    signal: Option<i64>,
}

/// How the program of this number ended, if it did.
pub(super) async fn ended(transport: &mut Transport, program: i64) -> Result<Option<End>, AgentError> {
    let arguments = json!({ "pid": program });
    let status: ExecStatus =
        transport.execute(&json!({ "execute": "guest-exec-status", "arguments": arguments })).await?;
    let end = match (status.exitcode, status.signal) {
        (Some(code), _) => End::Code(code),
        (None, Some(number)) => End::Signal(number),
        (None, None) => End::Code(-1),
    };
    Ok(status.exited.then_some(end))
}
