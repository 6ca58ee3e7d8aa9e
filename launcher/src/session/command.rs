use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use vireo_proto::launcher::{Fault, LaunchRequest, State};

use super::{Launched, Metered, Standing};
use crate::agent::Asker;
use crate::fault::{Code, fault};
use crate::hypervisor::Order;
use crate::launch::Disk;

/// What a session can be asked.
pub enum Command {
    /// Start the machine.
    Launch(Box<LaunchRequest>, Launched),
    /// End it within a grace period.
    Shutdown(Duration, oneshot::Sender<Option<Fault>>),
    /// End it now.
    Kill(oneshot::Sender<Option<Fault>>),
    /// Pause it, let it go on, reset it.
    Steer(Order, oneshot::Sender<Option<Fault>>),
    /// Plug a volume in or out.
    Plug(PlugRequest, oneshot::Sender<Option<Fault>>),
    /// The outcome is recorded.
    Dismiss(oneshot::Sender<Option<Fault>>),
    /// The launcher itself was told to go.
    Leave,
}

/// A volume that is to be plugged.
#[derive(Debug)]
pub enum PlugRequest {
    /// In.
    In(Box<Disk>),
    /// Out, by its name.
    Out(String),
}

/// The way to talk to a session.
#[derive(Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    standing: watch::Receiver<Standing>,
    metered: watch::Receiver<Metered>,
    agent: Asker,
}

impl Handle {
    pub(super) fn new(
        commands: mpsc::Sender<Command>,
        standing: watch::Receiver<Standing>,
        metered: watch::Receiver<Metered>,
        agent: Asker,
    ) -> Self {
        Self { commands, standing, metered, agent }
    }

    /// Whom to ask what the guest's agent says.
    pub fn agent(&self) -> &Asker {
        &self.agent
    }

    /// Where to read what the machine has used.
    pub fn metered(&self) -> Metered {
        self.metered.borrow().clone()
    }

    /// What is known now, and every change.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Starts the machine; returns once it runs or cannot.
    pub async fn launch(&self, request: LaunchRequest) -> (State, Option<Fault>) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Launch(Box::new(request), Launched(reply))).await;
        match answer.await {
            Ok(answer) => answer,
            Err(_) => (self.standing.borrow().state.clone(), Some(leaving())),
        }
    }

    /// Asks for an end within `grace`.
    pub async fn shutdown(&self, grace: Duration) -> Option<Fault> {
        self.ask(|reply| Command::Shutdown(grace, reply)).await
    }

    /// Asks for an end now.
    pub async fn kill(&self) -> Option<Fault> {
        self.ask(Command::Kill).await
    }

    /// Tells a guest that runs something that does not end it; returns once it is done.
    pub async fn steer(&self, order: Order) -> Option<Fault> {
        self.ask(|reply| Command::Steer(order, reply)).await
    }

    /// Plugs a volume in or out; returns once it is done, or cannot be.
    pub async fn plug(&self, wanted: PlugRequest) -> Option<Fault> {
        self.ask(|reply| Command::Plug(wanted, reply)).await
    }

    /// Lets the launcher go.
    pub async fn dismiss(&self) -> Option<Fault> {
        self.ask(Command::Dismiss).await
    }

    /// Tells the launcher to go once its guest has.
    pub async fn leave(&self) {
        self.send(Command::Leave).await;
    }

    async fn ask(&self, command: impl FnOnce(oneshot::Sender<Option<Fault>>) -> Command) -> Option<Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply)).await;
        answer.await.unwrap_or_else(|_| Some(leaving()))
    }

    async fn send(&self, command: Command) {
        // A session that is gone drops the reply inside, which is what the caller then sees.
        let _ = self.commands.send(command).await;
    }
}

fn leaving() -> Fault {
    fault(Code::Conflict, "the launcher is leaving")
}
