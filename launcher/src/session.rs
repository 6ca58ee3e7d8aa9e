//! The life of one machine, and its only owner.
//!
//! Waiting → Starting → Running → Stopping → Killing → Exited → gone, one method per stage; each consumes the stage
//! and says what follows. Commands arrive over a channel and are answered by the stage they meet; what others may
//! know is published through a watch channel, whose sender goes when the launcher goes.

mod command;
mod outcome;
mod plug;
mod stage;
mod steer;

use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{error, info, warn};
use vireo_proto::CONSOLE_HISTORY_SOCKET;
use vireo_proto::launcher::{Fault, Hypervisor as WireHypervisor, Identity, LaunchRequest, Outcome, State};
use vireo_proto::launcher::{hypervisor, state::Phase};

pub use command::{Command, Handle, PlugRequest};

use crate::agent::{self, Agent, Plug, Question};
use crate::console::{self, Console, Greeting};
use crate::dhcp;
use crate::fault::{Code, chain, fault, fault_at};
use crate::firmware::Paths;
use crate::host;
use crate::hypervisor::{Choice, Hypervisor, Meter, Probe, Starting, choose};
use crate::launch::{Kind, Launch};
use crate::{logging, socket};
use stage::{Machine, Stage};

/// How long a launcher that has nothing to run waits for its handler.
const UNCLAIMED: Duration = Duration::from_secs(24 * 60 * 60);

/// How long after the end of the grace period a machine may still come up: one that does is ended in order.
const ABANDON_START: Duration = Duration::from_secs(2);

/// What a session needs to know about where it runs.
pub trait Node: Send {
    /// What can be run here, looked at when a machine is launched.
    fn probe(&self) -> Probe;
    /// Where this node's firmware is.
    fn firmware(&self) -> &Paths;
    /// Somebody to run it.
    fn hypervisor(&self, kind: Kind) -> Box<dyn Hypervisor>;
}

/// Everything a client may know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// Whose launcher this is; absent until a machine was launched.
    pub vmi: Option<Identity>,
    /// Where the machine stands.
    pub state: State,
    /// Where its screen is shown.
    pub screen: Option<PathBuf>,
}

/// Where to read what the machine has used, and what it was launched with; absent until it is up.
pub type Metered = Option<(Meter, Arc<Launch>)>;

/// The owner of the machine.
pub struct Session {
    node: Box<dyn Node>,
    commands: mpsc::Receiver<Command>,
    standing: watch::Sender<Standing>,
    metered: watch::Sender<Metered>,
    /// Console and DHCP servers; they stop with the session.
    servers: JoinSet<()>,
    /// What others want to know of the guest's agent; absent once somebody takes care of it.
    questions: Option<mpsc::Receiver<Question>>,
    /// Whether a program of the guest has opened the agent's port.
    agent_open: watch::Sender<bool>,
    /// The launcher was told to go as soon as its guest has.
    leaving: bool,
}

impl Session {
    /// A session that waits for its machine, and the way to talk to it.
    pub fn new(node: Box<dyn Node>) -> (Self, Handle) {
        let (sender, commands) = mpsc::channel(8);
        let state = State { phase: Phase::Waiting.into(), ..State::default() };
        let (standing, seen) = watch::channel(Standing { vmi: None, state, screen: None });
        let (asker, questions) = agent::questions();
        let (metered, meters) = watch::channel(None);
        let session = Self {
            node,
            commands,
            standing,
            metered,
            servers: JoinSet::new(),
            questions: Some(questions),
            agent_open: watch::Sender::new(false),
            leaving: false,
        };
        (session, Handle::new(sender, seen, meters, asker))
    }

    /// Runs until the launcher may exit.
    pub async fn run(mut self) {
        let mut stage = Stage::Waiting;
        loop {
            stage = match stage {
                Stage::Waiting => self.waiting().await,
                Stage::Starting(up) => self.starting(up).await,
                Stage::Running(machine) => self.running(machine).await,
                Stage::Stopping(machine, deadline) => self.stopping(machine, deadline).await,
                Stage::Killing(machine, why) => self.killing(machine, why).await,
                Stage::Exited(outcome) => self.exited(outcome).await,
                Stage::Gone => return,
            };
        }
    }

    fn publish(&self, change: impl FnOnce(&mut State)) {
        self.standing.send_modify(|standing| change(&mut standing.state));
    }

    /// The same where it may change nothing, which is told to nobody.
    fn publish_changed(&self, change: impl FnOnce(&mut State)) {
        self.standing.send_if_modified(|standing| {
            let before = standing.state.clone();
            change(&mut standing.state);
            standing.state != before
        });
    }

    fn enter(&self, phase: Phase) {
        self.publish(|state| state.phase = phase.into());
    }

    fn state(&self) -> State {
        self.standing.borrow().state.clone()
    }

    async fn waiting(&mut self) -> Stage {
        let give_up = Instant::now() + UNCLAIMED;
        loop {
            let command = tokio::select! {
                command = self.commands.recv() => command,
                () = tokio::time::sleep_until(give_up) => return Stage::Gone,
            };
            match command {
                Some(Command::Launch(request, reply)) => return self.launch(*request, reply),
                Some(Command::Shutdown(_, reply) | Command::Kill(reply)) => {
                    answer(reply, Some(fault(Code::Conflict, "no machine was launched")));
                }
                Some(other @ (Command::Steer(..) | Command::Plug(..))) => refuse(other, &self.state()),
                Some(Command::Dismiss(reply)) => {
                    answer(reply, None);
                    return Stage::Gone;
                }
                Some(Command::Leave) | None => return Stage::Gone,
            }
        }
    }

    /// Everything up to the hypervisor, which happens at once.
    fn launch(&mut self, request: LaunchRequest, reply: Launched) -> Stage {
        let vmi = request.vmi.clone().unwrap_or_default();
        logging::name(&vmi);
        self.standing.send_modify(|standing| standing.vmi = Some(vmi));
        match self.prepare(request) {
            Ok((launch, console, starting)) => {
                self.enter(Phase::Starting);
                Stage::Starting(Up { launch, console, starting, reply, stop: None })
            }
            Err(fault) => {
                let stage = self.not_started(fault.clone());
                reply.answer(self.state(), Some(fault));
                stage
            }
        }
    }

    fn prepare(&mut self, request: LaunchRequest) -> Result<(Arc<Launch>, Console, Starting), Fault> {
        let launch = Launch::try_from(request).map_err(|error| fault(Code::Invalid, chain(&error)))?;
        let Choice { kind, reason } = choose(&launch, &self.node.probe())?;
        info!(?kind, reason, "hypervisor chosen");
        self.publish(|state| {
            let kind = match kind {
                Kind::Native => hypervisor::Kind::Native,
                Kind::Qemu => hypervisor::Kind::Qemu,
            };
            state.hypervisor = Some(WireHypervisor { kind: kind.into(), reason });
        });
        self.standing.send_modify(|standing| standing.screen.clone_from(&launch.vnc_socket));
        let mut host = host::open(&launch, kind, self.node.firmware())?;
        host.agent = self.questions.take().map(|questions| self.talk_to_agent(questions)).transpose()?;
        let (console, port) = Console::new();
        if let Some(path) = &launch.console_socket {
            for (path, greeting) in [
                (path.clone(), Greeting::Nothing),
                (path.with_file_name(CONSOLE_HISTORY_SOCKET), Greeting::History),
            ] {
                let listener: UnixListener =
                    socket::bind(&path).map_err(|error| fault(Code::HostResource, chain(&error)))?;
                self.servers.spawn(console::serve(console.clone(), listener, greeting));
            }
        }
        for interface in &launch.interfaces {
            let server = dhcp::Server::bind(interface)
                .map_err(|error| fault_at(Code::HostResource, &interface.field, chain(&error)))?;
            if let Some(server) = server {
                self.servers.spawn(server.run());
            }
        }
        let launch = Arc::new(launch);
        let starting = self.node.hypervisor(kind).start(Arc::clone(&launch), host, port);
        Ok((launch, console, starting))
    }

    /// Takes care of the guest's agent, by the other end of the port that this returns.
    fn talk_to_agent(&mut self, questions: mpsc::Receiver<Question>) -> Result<Plug, Fault> {
        let pair = || {
            let (ours, theirs) = StdStream::pair()?;
            ours.set_nonblocking(true)?;
            Ok((Box::new(UnixStream::from_std(ours)?), theirs))
        };
        let (port, line) =
            pair().map_err(|error: std::io::Error| fault(Code::HostResource, chain(&error)))?;
        let agent = Agent { port, open: self.agent_open.subscribe(), questions };
        let standing = self.standing.clone();
        self.servers.spawn(agent.run(move |known| {
            standing.send_if_modified(|standing| {
                let differs = standing.state.agent != known;
                standing.state.agent = known;
                differs
            });
        }));
        Ok(Plug { line, open: self.agent_open.clone() })
    }

    fn not_started(&self, fault: Fault) -> Stage {
        error!(code = ?fault.code(), field = fault.field, detail = fault.detail, "the machine was not started");
        self.exit(outcome::not_started(fault))
    }

    async fn starting(&mut self, mut up: Up) -> Stage {
        loop {
            let stop = up.stop;
            let overdue = async {
                match stop {
                    Some(deadline) => tokio::time::sleep_until(deadline + ABANDON_START).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                started = &mut up.starting => {
                    let stage = match started {
                        Ok(guest) => {
                            self.enter(Phase::Running);
                            info!("the machine runs");
                            self.metered.send_replace(Some((guest.meter(), Arc::clone(&up.launch))));
                            let machine = Machine::new(up.launch, up.console, guest);
                            match up.stop {
                                Some(deadline) => Stage::Stopping(machine, deadline),
                                None => Stage::Running(machine),
                            }
                        }
                        Err(fault) => {
                            up.console.end();
                            self.not_started(fault)
                        }
                    };
                    let fault = match &stage {
                        Stage::Exited(outcome) => outcome.fault.clone(),
                        _ => None,
                    };
                    up.reply.answer(self.state(), fault);
                    return stage;
                }
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown(grace, reply)) => {
                        answer(reply, None);
                        up.stop = sooner(up.stop, grace);
                    }
                    Some(Command::Leave) => {
                        self.leaving = true;
                        up.stop = sooner(up.stop, up.launch.termination_grace);
                    }
                    Some(Command::Kill(reply)) => {
                        answer(reply, None);
                        return self.abandon(up);
                    }
                    Some(other) => refuse(other, &self.state()),
                    None => self.leaving = true,
                },
                () = overdue => {
                    warn!("the machine is not up though its guest should have shut down by now");
                    return self.abandon(up);
                }
            }
        }
    }

    /// Ends a machine that is not up yet.
    fn abandon(&self, up: Up) -> Stage {
        up.console.end();
        // Dropping the future takes down what stands already.
        drop(up.starting);
        let outcome = outcome::killed_while_starting();
        let stage = self.exit(outcome.clone());
        up.reply.answer(self.state(), outcome.fault);
        stage
    }

    fn exit(&self, outcome: Outcome) -> Stage {
        self.agent_open.send_replace(false);
        self.metered.send_replace(None);
        self.publish(|state| {
            state.agent = None;
            state.volumes.clear();
            state.disk_failures.clear();
            state.pause_requested = false;
            state.phase = Phase::Exited.into();
            state.outcome = Some(outcome.clone());
        });
        Stage::Exited(outcome)
    }

    async fn exited(&mut self, outcome: Outcome) -> Stage {
        info!(outcome = ?outcome.kind(), "the machine is gone");
        let give_up = Instant::now() + UNCLAIMED;
        while !self.leaving {
            let command = tokio::select! {
                command = self.commands.recv() => command,
                () = tokio::time::sleep_until(give_up) => return Stage::Gone,
            };
            match command {
                // What they ask for has come to pass.
                Some(Command::Shutdown(_, reply) | Command::Kill(reply)) => answer(reply, None),
                Some(Command::Dismiss(reply)) => {
                    answer(reply, None);
                    return Stage::Gone;
                }
                Some(other @ (Command::Launch(..) | Command::Steer(..) | Command::Plug(..))) => {
                    refuse(other, &self.state());
                }
                Some(Command::Leave) | None => return Stage::Gone,
            }
        }
        Stage::Gone
    }
}

/// A machine on its way up.
pub(crate) struct Up {
    launch: Arc<Launch>,
    console: Console,
    starting: Starting,
    reply: Launched,
    stop: Option<Instant>,
}

/// Who waits for the machine to be up.
pub struct Launched(oneshot::Sender<(State, Option<Fault>)>);

impl Launched {
    fn answer(self, state: State, fault: Option<Fault>) {
        // The caller may have hung up; the state is published all the same.
        let _ = self.0.send((state, fault));
    }
}

/// The earlier of a deadline and one that starts now.
fn sooner(deadline: Option<Instant>, grace: Duration) -> Option<Instant> {
    // A grace beyond what the clock can count is no deadline anybody will see.
    let new = Instant::now().checked_add(grace.min(Duration::from_secs(u64::from(u32::MAX))));
    match (deadline, new) {
        (Some(old), Some(new)) => Some(old.min(new)),
        (old, new) => old.or(new),
    }
}

fn answer(reply: oneshot::Sender<Option<Fault>>, fault: Option<Fault>) {
    // The caller may have hung up.
    let _ = reply.send(fault);
}

/// Answers what cannot be done while a machine is or was there.
fn refuse(command: Command, state: &State) {
    match command {
        Command::Launch(_, reply) => {
            let fault = fault(Code::Conflict, "a launcher launches one machine, once");
            reply.answer(state.clone(), Some(fault));
        }
        Command::Dismiss(reply) => {
            answer(reply, Some(fault(Code::Conflict, "the guest still runs")));
        }
        Command::Steer(_, reply) | Command::Plug(_, reply) => {
            answer(reply, Some(fault(Code::Conflict, "VMI is not running")))
        }
        Command::Shutdown(_, reply) | Command::Kill(reply) => answer(reply, None),
        Command::Leave => {}
    }
}

#[cfg(test)]
mod tests;
