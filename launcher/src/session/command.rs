use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use vireo_proto::launcher::{Fault, LaunchRequest, State};

use super::{LaunchReply, SessionStatus};
use crate::agent::AgentClient;
use crate::fault::{Code, fault};
use crate::hypervisor::VmCommand;
use crate::launch::{Disk, Interface};
use crate::statistics::StatsSource;

/// A command for the session.
pub enum Command {
    /// Start the VM.
    Launch(Box<LaunchRequest>, LaunchReply),
    /// End it within a grace period.
    Shutdown(Duration, oneshot::Sender<Option<Fault>>),
    /// End it now.
    Kill(oneshot::Sender<Option<Fault>>),
    /// Pause, resume or reset the VM.
    Lifecycle(VmCommand, oneshot::Sender<Option<Fault>>),
    /// Attach or detach a device.
    Hotplug(HotplugCommand, oneshot::Sender<Option<Fault>>),
    /// Switch the links of the NICs: these are down.
    Links(Vec<String>, oneshot::Sender<Option<Fault>>),
    /// Write the guest's memory to a file, or forget that.
    Dump(DumpCommand, oneshot::Sender<Option<Fault>>),
    /// The outcome is recorded.
    Dismiss(oneshot::Sender<Option<Fault>>),
    /// The launcher is to exit.
    Exit,
}

/// A device to attach or detach.
#[derive(Debug)]
pub enum HotplugCommand {
    /// A volume, in.
    AttachVolume(Box<Disk>),
    /// A volume, out, by its name.
    DetachVolume(String),
    /// A NIC, in.
    AttachNic(Box<Interface>),
    /// A NIC, out, by its name.
    DetachNic(String),
}

/// About memory dumps.
#[derive(Debug, PartialEq, Eq)]
pub enum DumpCommand {
    /// Write one.
    Begin {
        /// Its volume.
        volume: String,
        /// The name of the file that was passed.
        file: String,
    },
    /// Remove the last one from the state.
    Forget,
}

/// The clients that read the stream of the state.
#[derive(Clone, Debug, Default)]
pub struct Watchers(Arc<AtomicUsize>);

impl Watchers {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Counts one more until the result is dropped.
    fn enter(&self) -> Watcher {
        self.0.fetch_add(1, Ordering::Relaxed);
        Watcher(self.clone())
    }
}

/// One of [`Watchers`].
#[derive(Debug)]
pub struct Watcher(Watchers);

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A handle to a session.
#[derive(Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<SessionStatus>,
    stats_source: watch::Receiver<StatsSource>,
    agent: AgentClient,
    watchers: Watchers,
}

impl Handle {
    pub(super) fn new(
        commands: mpsc::Sender<Command>,
        status: watch::Receiver<SessionStatus>,
        stats_source: watch::Receiver<StatsSource>,
        (agent, watchers): (AgentClient, Watchers),
    ) -> Self {
        Self { commands, status, stats_source, agent, watchers }
    }

    /// Makes the launcher wait at its exit for a client that reads its state, until the result is dropped.
    pub fn watch(&self) -> Watcher {
        self.watchers.enter()
    }

    /// The client of the guest agent.
    pub fn agent(&self) -> &AgentClient {
        &self.agent
    }

    /// Where to read what the VM has used.
    pub fn stats_source(&self) -> StatsSource {
        self.stats_source.borrow().clone()
    }

    /// What is known now, and every change.
    pub fn status(&self) -> watch::Receiver<SessionStatus> {
        self.status.clone()
    }

    /// Starts the VM; returns once it runs or cannot.
    pub async fn launch(&self, request: LaunchRequest) -> (State, Option<Fault>) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Launch(Box::new(request), LaunchReply(reply))).await;
        match answer.await {
            Ok(answer) => answer,
            Err(_) => (self.status.borrow().state.clone(), Some(exiting())),
        }
    }

    /// Shuts the VM down within `grace`.
    pub async fn shutdown(&self, grace: Duration) -> Option<Fault> {
        self.ask(|reply| Command::Shutdown(grace, reply)).await
    }

    /// Kills the VM.
    pub async fn kill(&self) -> Option<Fault> {
        self.ask(Command::Kill).await
    }

    /// Executes a command on the running VM; returns once it is done.
    pub async fn lifecycle(&self, command: VmCommand) -> Option<Fault> {
        self.ask(|reply| Command::Lifecycle(command, reply)).await
    }

    /// Attaches or detaches a device; returns once it is done or has failed.
    pub async fn hotplug(&self, wanted: HotplugCommand) -> Option<Fault> {
        self.ask(|reply| Command::Hotplug(wanted, reply)).await
    }

    /// Switches the links of the NICs: these are down, and the others are up.
    pub async fn set_links(&self, down: Vec<String>) -> Option<Fault> {
        self.ask(|reply| Command::Links(down, reply)).await
    }

    /// Begins a memory dump, or forgets the last one.
    pub async fn dump(&self, command: DumpCommand) -> Option<Fault> {
        self.ask(|reply| Command::Dump(command, reply)).await
    }

    /// Lets the launcher go.
    pub async fn dismiss(&self) -> Option<Fault> {
        self.ask(Command::Dismiss).await
    }

    /// Lets the launcher exit once its guest has ended.
    pub async fn exit(&self) {
        self.send(Command::Exit).await;
    }

    async fn ask(&self, command: impl FnOnce(oneshot::Sender<Option<Fault>>) -> Command) -> Option<Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply)).await;
        answer.await.unwrap_or_else(|_| Some(exiting()))
    }

    async fn send(&self, command: Command) {
        // A session that is gone drops the reply inside, which is what the caller then sees.
        let _ = self.commands.send(command).await;
    }
}

fn exiting() -> Fault {
    fault(Code::Conflict, "the launcher is leaving")
}
