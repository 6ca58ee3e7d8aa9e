//! File systems that the agent freezes, so that copies of the guest's disks are consistent, and thaws again.

use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use vireo_proto::launcher::Fault;

use super::transport::{AgentError, Transport};
use super::{AgentClient, AgentRequest};
use crate::fault::chain;

/// How the agent calls file systems that are frozen.
pub const FROZEN: &str = "frozen";
/// How long a freeze may take: the guest first writes to its disks what it has in memory.
pub(super) const FREEZE_TIMEOUT: Duration = Duration::from_secs(50);
/// When a thaw is tried again that failed; the pause doubles up to the second.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(60);

impl AgentClient {
    /// Freezes the file systems of the guest. They are thawed after some time, unless that is zero.
    ///
    /// # Errors
    /// When no agent is connected, it does not respond, or it does not freeze them.
    pub async fn freeze(&self, thaw_after: Duration) -> Result<(), Fault> {
        self.send(|reply| AgentRequest::Freeze(thaw_after, reply)).await
    }

    /// Thaws the file systems of the guest.
    ///
    /// # Errors
    /// When no agent is connected, it does not respond, or it does not thaw them.
    pub async fn thaw(&self) -> Result<(), Fault> {
        self.send(AgentRequest::Thaw).await
    }
}

/// When file systems are thawed without a request. It survives the agent's connection: an agent that is restarted still
/// has its file systems frozen.
#[derive(Debug, Default)]
pub(super) struct Freezer {
    thaw_at: Option<Instant>,
    retry: Duration,
    /// A freeze failed, and its thaw is still to come.
    has_failed: bool,
}

impl Freezer {
    /// Freezes. Where that fails, or is not waited for, a thaw follows: the agent may do it all the same.
    pub(super) async fn freeze(
        &mut self,
        transport: &mut Transport,
        thaw_after: Duration,
    ) -> Result<(), AgentError> {
        if status(transport).await? == FROZEN {
            if !self.has_failed {
                return Ok(());
            }
            // The thaw that is due soon would end this freeze.
            self.thaw(transport).await?;
        }
        self.has_failed = true;
        self.schedule(Duration::ZERO);
        let command = json!({ "execute": "guest-fsfreeze-freeze" });
        let frozen: Result<IgnoredAny, _> = transport.execute_within(FREEZE_TIMEOUT, &command).await;
        frozen?;
        (self.thaw_at, self.has_failed) = (None, false);
        if !thaw_after.is_zero() {
            self.schedule(thaw_after);
        }
        Ok(())
    }

    /// Thaws.
    pub(super) async fn thaw(&mut self, transport: &mut Transport) -> Result<(), AgentError> {
        transport.ask::<IgnoredAny>("guest-fsfreeze-thaw").await?;
        (self.thaw_at, self.has_failed) = (None, false);
        Ok(())
    }

    /// Returns when a thaw is due.
    pub(super) async fn due(&self) {
        match self.thaw_at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// The thaw that is due; another try follows one that fails.
    pub(super) async fn thaw_when_due(&mut self, transport: &mut Transport) {
        let pause = self.retry;
        // Before the attempt, so that one which is not waited for is repeated as well.
        self.schedule(pause);
        match self.thaw(transport).await {
            Ok(()) => info!("the file systems of the guest are thawed: the time to unfreeze is over"),
            Err(error) => {
                warn!(error = chain(&error), "cannot thaw the file systems of the guest");
                self.schedule(pause);
                self.retry = (pause * 2).min(LAST_RETRY);
            }
        }
    }

    fn schedule(&mut self, after: Duration) {
        // One that overflows the clock never comes.
        self.thaw_at = Instant::now().checked_add(after);
        self.retry = FIRST_RETRY;
    }
}

/// What the agent says of the file systems.
pub(super) async fn status(transport: &mut Transport) -> Result<String, AgentError> {
    transport.ask("guest-fsfreeze-status").await
}
