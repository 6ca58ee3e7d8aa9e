//! The life cycle of one VM, and its single owner.
//!
//! Waiting → Starting → Running → Stopping → Killing → Exited → gone, one method per stage; each consumes the stage
//! and returns the next. Commands arrive over a channel and are answered by the current stage; the public status is
//! published through a watch channel, which closes when the session ends.

mod command;
mod dump;
mod hotplug;
mod lifecycle;
mod outcome;
mod stage;
mod start;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::info;
use vireo_proto::launcher::state::Phase;
use vireo_proto::launcher::{Fault, Identity, Outcome, State};

pub use command::{Command, DumpCommand, Handle, HotplugCommand, Watchers};
pub use start::LaunchReply;

use crate::agent::{self, AgentClient, AgentRequest};
use crate::fault::{Code, fault};
use crate::files::PassedFiles;
use crate::firmware::Paths;
use crate::hypervisor::{Hypervisor, Probe};
use crate::launch::Kind;
use crate::statistics::StatsSource;
use stage::Stage;

/// How long a launcher that has nothing to run waits for its handler.
const IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a launcher that is to exit gives a handler that watches it to record how its guest ended.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(5);

/// What a session needs to know about where it runs.
pub trait Node: Send {
    /// What can be run here, looked at when a VM is launched.
    fn probe(&self) -> Probe;
    /// Where this node's firmware is.
    fn firmware(&self) -> &Paths;
    /// Files that the node agent opened.
    fn files(&self) -> &PassedFiles;
    /// The hypervisor of this kind.
    fn hypervisor(&self, kind: Kind) -> Box<dyn Hypervisor>;
}

/// Everything a client may know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionStatus {
    /// Whose launcher this is; absent until a VM was launched.
    pub vmi: Option<Identity>,
    /// The state of the VM.
    pub state: State,
    /// Socket of its VNC server.
    pub vnc_socket: Option<PathBuf>,
}

/// Owns the VM.
pub struct Session {
    node: Box<dyn Node>,
    commands: mpsc::Receiver<Command>,
    status: watch::Sender<SessionStatus>,
    stats_source: watch::Sender<StatsSource>,
    /// Console and DHCP servers; they stop with the session.
    servers: JoinSet<()>,
    /// Requests for the guest agent; taken when the agent's task starts.
    agent_requests: Option<mpsc::Receiver<AgentRequest>>,
    agent: AgentClient,
    /// Whether a program of the guest has opened the agent's port.
    agent_open: watch::Sender<bool>,
    /// The launcher exits as soon as its guest has ended.
    exiting: bool,
    watchers: Watchers,
}

impl Session {
    /// A session that waits for its VM, and a handle to it.
    pub fn new(node: Box<dyn Node>) -> (Self, Handle) {
        let (sender, commands) = mpsc::channel(8);
        let state = State { phase: Phase::Waiting.into(), ..State::default() };
        let (status, seen) = watch::channel(SessionStatus { vmi: None, state, vnc_socket: None });
        let (agent_client, agent_requests) = agent::requests();
        let (stats_source, meters) = watch::channel(None);
        let watchers = Watchers::default();
        let session = Self {
            node,
            commands,
            status,
            stats_source,
            servers: JoinSet::new(),
            agent_requests: Some(agent_requests),
            agent: agent_client.clone(),
            agent_open: watch::Sender::new(false),
            exiting: false,
            watchers: watchers.clone(),
        };
        (session, Handle::new(sender, seen, meters, (agent_client, watchers)))
    }

    /// Runs until the launcher may exit.
    pub async fn run(mut self) {
        let mut stage = Stage::Waiting;
        loop {
            stage = match stage {
                Stage::Waiting => self.waiting().await,
                Stage::Starting(up) => self.starting(up).await,
                Stage::Running(vm) => self.running(vm).await,
                Stage::Stopping(vm, deadline) => self.stopping(vm, deadline).await,
                Stage::Killing(vm, why) => self.killing(vm, why).await,
                Stage::Exited(outcome) => self.exited(outcome).await,
                Stage::Gone => return,
            };
        }
    }

    fn publish(&self, change: impl FnOnce(&mut State)) {
        self.status.send_modify(|status| change(&mut status.state));
    }

    /// The same, without a notification if nothing changes.
    fn publish_changed(&self, change: impl FnOnce(&mut State)) {
        self.status.send_if_modified(|status| {
            let before = status.state.clone();
            change(&mut status.state);
            status.state != before
        });
    }

    fn enter(&self, phase: Phase) {
        self.publish(|state| state.phase = phase.into());
    }

    fn state(&self) -> State {
        self.status.borrow().state.clone()
    }

    fn exit(&self, outcome: Outcome) -> Stage {
        self.agent_open.send_replace(false);
        self.stats_source.send_replace(None);
        self.publish(|state| {
            state.agent = None;
            state.volumes.clear();
            state.links = None;
            state.disk_failures.clear();
            state.memory_dump = None;
            state.pause_requested = false;
            state.phase = Phase::Exited.into();
            state.outcome = Some(outcome.clone());
        });
        Stage::Exited(outcome)
    }

    async fn exited(&mut self, outcome: Outcome) -> Stage {
        info!(outcome = ?outcome.kind(), "the VM is gone");
        let mut give_up = Instant::now() + IDLE_TIMEOUT;
        loop {
            if self.exiting {
                // A Pod that is deleted takes its launcher with it, and the handler shall know of the end.
                match self.watchers.is_empty() {
                    true => return Stage::Gone,
                    false => give_up = give_up.min(Instant::now() + OUTCOME_TIMEOUT),
                }
            }
            let command = tokio::select! {
                command = self.commands.recv() => command,
                () = tokio::time::sleep_until(give_up) => return Stage::Gone,
            };
            match command {
                // Done already.
                Some(Command::Shutdown(_, reply) | Command::Kill(reply)) => answer(reply, None),
                Some(Command::Dismiss(reply)) => {
                    answer(reply, None);
                    return Stage::Gone;
                }
                Some(
                    other @ (Command::Launch(..)
                    | Command::Lifecycle(..)
                    | Command::Hotplug(..)
                    | Command::Links(..)
                    | Command::Dump(..)),
                ) => {
                    reject(other, &self.state());
                }
                Some(Command::Exit) => self.exiting = true,
                None => return Stage::Gone,
            }
        }
    }
}

/// The earlier of a deadline and one that starts now.
fn earlier_deadline(deadline: Option<Instant>, grace: Duration) -> Option<Instant> {
    // A grace period that overflows the clock is not a deadline.
    let new = Instant::now().checked_add(grace.min(Duration::from_secs(u64::from(u32::MAX))));
    match (deadline, new) {
        (Some(old), Some(new)) => Some(old.min(new)),
        (old, new) => old.or(new),
    }
}

fn answer(reply: oneshot::Sender<Option<Fault>>, fault: Option<Fault>) {
    // The caller may be gone.
    let _ = reply.send(fault);
}

/// Answers what cannot be done while a VM is or was there.
fn reject(command: Command, state: &State) {
    match command {
        Command::Launch(_, reply) => {
            let fault = fault(Code::Conflict, "a launcher launches one VM, once");
            reply.answer(state.clone(), Some(fault));
        }
        Command::Dismiss(reply) => {
            answer(reply, Some(fault(Code::Conflict, "the guest still runs")));
        }
        Command::Lifecycle(_, reply)
        | Command::Hotplug(_, reply)
        | Command::Links(_, reply)
        | Command::Dump(_, reply) => answer(reply, Some(fault(Code::Conflict, "VMI is not running"))),
        Command::Shutdown(_, reply) | Command::Kill(reply) => answer(reply, None),
        Command::Exit => {}
    }
}

#[cfg(test)]
mod tests;
