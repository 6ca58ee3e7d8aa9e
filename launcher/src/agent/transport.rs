//! The agent's protocol: JSON, a command and an answer a line.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, de};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use super::Io;
use super::response::cut;
use crate::lines::{Line, line};

/// The longest answer, in bytes. Those of guests with hundreds of NICs are shorter.
pub(super) const MAX_LINE: usize = 256 << 10;
/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest error description kept, in characters.
const MAX_REASON: usize = 256;
/// What no JSON contains: after it, agents forget half a command, and we half an answer.
const SENTINEL: u8 = 0xff;

/// Why a request fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgentError {
    /// Nothing in time.
    #[error("the guest agent does not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The port is gone.
    #[error("the guest agent's port cannot be used")]
    Port(#[from] std::io::Error),
    /// Longer than [`MAX_LINE`].
    #[error("the guest agent's answer has no end")]
    TooLong,
    /// Not the expected JSON.
    #[error("the guest agent's answer cannot be read")]
    Answer(#[from] serde_json::Error),
    /// The agent returned an error, perhaps with a description.
    #[error("the guest agent returned an error{0}")]
    Refused(String),
}

/// A conversation with an agent.
pub(super) struct Transport {
    from: BufReader<ReadHalf<Box<dyn Io>>>,
    to: WriteHalf<Box<dyn Io>>,
    /// Whether the next line answers the next command. Not so after an answer that was not waited for.
    synchronized: bool,
    count: u64,
}

/// A response message; unknown fields are ignored.
struct Answer<T>(Result<T, String>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Answer<T> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Message<T> {
            #[serde(rename = "return")]
            value: Option<T>,
            #[serde(default)]
            error: ErrorBody,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ErrorBody {
            desc: String,
        }
        let message = Message::deserialize(deserializer)?;
        let why = || match cut(&message.error.desc, MAX_REASON) {
            why if why.is_empty() => why,
            why => format!(": {why}"),
        };
        Ok(Self(message.value.ok_or_else(why)))
    }
}

impl Transport {
    pub(super) fn new(port: Box<dyn Io>) -> Self {
        let (from, to) = split(port);
        Self { from: BufReader::new(from), to, synchronized: false, count: 0 }
    }

    /// Another agent may be there.
    pub(super) fn reset(&mut self) {
        self.synchronized = false;
    }

    /// Executes a command that has no arguments.
    pub(super) async fn ask<T: DeserializeOwned>(&mut self, command: &str) -> Result<T, AgentError> {
        self.execute(&json!({ "execute": command })).await
    }

    /// Executes a command.
    pub(super) async fn execute<T: DeserializeOwned>(&mut self, command: &Value) -> Result<T, AgentError> {
        self.execute_within(ANSWER_TIMEOUT, command).await
    }

    /// Executes a command that may take longer.
    pub(super) async fn execute_within<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
        command: &Value,
    ) -> Result<T, AgentError> {
        timeout(limit, self.exchange(command)).await.unwrap_or(Err(AgentError::Timeout(limit)))
    }

    async fn exchange<T: DeserializeOwned>(&mut self, command: &Value) -> Result<T, AgentError> {
        if !self.synchronized {
            self.synchronize().await?;
        }
        // Also when this future is dropped in between.
        self.synchronized = false;
        self.to.write_all(format!("{command}\n").as_bytes()).await?;
        let line = self.line().await?;
        self.synchronized = true;
        serde_json::from_slice::<Answer<T>>(&line)?.0.map_err(AgentError::Refused)
    }

    /// Makes sure that the next line read answers the next command.
    async fn synchronize(&mut self) -> Result<(), AgentError> {
        self.count += 1;
        let id = self.count;
        let command = json!({ "execute": "guest-sync-delimited", "arguments": { "id": id } });
        let mut bytes = vec![SENTINEL];
        bytes.extend(format!("{command}\n").bytes());
        self.to.write_all(&bytes).await?;
        loop {
            self.pass_sentinel().await?;
            let line = self.line().await?;
            // An older answer, or none, is passed over.
            if serde_json::from_slice::<Answer<u64>>(&line).is_ok_and(|answer| answer.0 == Ok(id)) {
                return Ok(());
            }
        }
    }

    async fn pass_sentinel(&mut self) -> Result<(), AgentError> {
        loop {
            let bytes = self.from.fill_buf().await?;
            if bytes.is_empty() {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
            let (count, found) = match bytes.iter().position(|byte| *byte == SENTINEL) {
                Some(at) => (at + 1, true),
                None => (bytes.len(), false),
            };
            self.from.consume(count);
            if found {
                return Ok(());
            }
        }
    }

    /// What comes before the end of the line.
    async fn line(&mut self) -> Result<Vec<u8>, AgentError> {
        match line(&mut self.from, MAX_LINE).await? {
            Line::Text(line) => Ok(line),
            Line::TooLong => Err(AgentError::TooLong),
        }
    }
}
