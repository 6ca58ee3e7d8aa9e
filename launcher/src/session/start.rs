use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{error, info, warn};
use vireo_proto::CONSOLE_HISTORY_SOCKET;
use vireo_proto::launcher::{Fault, Hypervisor as WireHypervisor, LaunchRequest, State};
use vireo_proto::launcher::{hypervisor, state::Phase};

use super::stage::{RunningVm, Stage, links};
use super::{Command, IDLE_TIMEOUT, Session, answer, earlier_deadline, outcome, reject};
use crate::agent::{Agent, AgentPort, AgentRequest};
use crate::console::{self, Console, Greeting};
use crate::dhcp;
use crate::fault::{Code, chain, fault, fault_at};
use crate::host;
use crate::hypervisor::{Choice, Starting, choose};
use crate::ipv6;
use crate::launch::{Interface, Kind, Launch};
use crate::{logging, metrics_port, program, socket};

/// How long after the end of the grace period a start may still complete; later it is abandoned.
pub(super) const ABANDON_START: Duration = Duration::from_secs(2);

/// A VM on its way up.
pub(super) struct PendingVm {
    launch: Arc<Launch>,
    console: Console,
    starting: Starting,
    reply: LaunchReply,
    stop: Option<Instant>,
}

/// Who waits for the VM to be up.
pub struct LaunchReply(pub(super) oneshot::Sender<(State, Option<Fault>)>);

impl LaunchReply {
    pub(super) fn answer(self, state: State, fault: Option<Fault>) {
        // The caller may have hung up; the state is published all the same.
        let _ = self.0.send((state, fault));
    }
}

impl Session {
    pub(super) async fn waiting(&mut self) -> Stage {
        let give_up = Instant::now() + IDLE_TIMEOUT;
        loop {
            let command = tokio::select! {
                command = self.commands.recv() => command,
                () = tokio::time::sleep_until(give_up) => return Stage::Gone,
            };
            match command {
                Some(Command::Launch(request, reply)) => return self.launch(*request, reply),
                Some(Command::Shutdown(_, reply) | Command::Kill(reply)) => {
                    answer(reply, Some(fault(Code::Conflict, "no VM was launched")));
                }
                Some(
                    other @ (Command::Lifecycle(..)
                    | Command::Hotplug(..)
                    | Command::Links(..)
                    | Command::Dump(..)),
                ) => reject(other, &self.state()),
                Some(Command::Dismiss(reply)) => {
                    answer(reply, None);
                    return Stage::Gone;
                }
                Some(Command::Exit) | None => return Stage::Gone,
            }
        }
    }

    /// Handles a launch request up to the hypervisor's start.
    fn launch(&mut self, request: LaunchRequest, reply: LaunchReply) -> Stage {
        let vmi = request.vmi.clone().unwrap_or_default();
        logging::name(&vmi);
        self.status.send_modify(|status| status.vmi = Some(vmi));
        match self.prepare(request) {
            Ok((launch, console, starting)) => {
                self.enter(Phase::Starting);
                Stage::Starting(PendingVm { launch, console, starting, reply, stop: None })
            }
            Err(fault) => {
                let stage = self.fail_start(fault.clone());
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
        self.status.send_modify(|status| status.vnc_socket.clone_from(&launch.vnc_socket));
        let mut host = host::open(&launch, kind, self.node.firmware(), self.node.files())?;
        if let Some(pinning) = &host.pinning {
            let field = &launch.fields.dedicated_cpus;
            pinning.confine_process().map_err(|error| fault_at(Code::HostResource, field, chain(&error)))?;
        }
        if let Some(offloaded) = offloaded(&launch.interfaces, &host.vhost) {
            info!(offloaded);
            self.publish_changed(|state| {
                if let Some(chosen) = &mut state.hypervisor {
                    chosen.reason = format!("{}; {offloaded}", chosen.reason);
                }
            });
        }
        let vsock_cid = host.vsock.as_ref().map_or(0, |vsock| vsock.cid);
        self.publish_changed(|state| state.vsock_cid = vsock_cid);
        host.agent = self
            .agent_requests
            .take()
            .map(|agent_requests| self.connect_agent(agent_requests))
            .transpose()?;
        host.metrics_port = host.metrics.take().map(|metrics| self.serve_metrics(metrics)).transpose()?;
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
            let server = dhcp::Server::bind(interface, self.node.files())
                .map_err(|error| fault_at(Code::HostResource, &interface.field, chain(&error)))?;
            if let Some(server) = server {
                self.servers.spawn(server.run());
            }
            let server = ipv6::Server::bind(interface, self.node.files())
                .map_err(|error| fault_at(Code::HostResource, &interface.field, chain(&error)))?;
            if let Some(server) = server {
                self.servers.spawn(server.run());
            }
        }
        let launch = Arc::new(launch);
        let starting = self.node.hypervisor(kind).start(Arc::clone(&launch), host, port);
        Ok((launch, console, starting))
    }

    /// Answers the guest's requests for metrics at the other end of the port that this returns.
    fn serve_metrics(&mut self, metrics: File) -> Result<StdStream, Fault> {
        let (port, stream) = port()?;
        self.servers.spawn(metrics_port::serve(port, metrics));
        Ok(stream)
    }

    /// Takes care of the guest's agent, by the other end of the port that this returns.
    fn connect_agent(&mut self, requests: mpsc::Receiver<AgentRequest>) -> Result<AgentPort, Fault> {
        let (port, stream) = port()?;
        let agent = Agent { port: Box::new(port), open: self.agent_open.subscribe(), requests };
        let status = self.status.clone();
        self.servers.spawn(agent.run(move |known| {
            status.send_if_modified(|status| {
                let differs = status.state.agent != known;
                status.state.agent = known;
                differs
            });
        }));
        Ok(AgentPort { stream, open: self.agent_open.clone() })
    }

    fn fail_start(&self, fault: Fault) -> Stage {
        error!(code = ?fault.code(), field = fault.field, detail = fault.detail, "the VM was not started");
        self.exit(outcome::not_started(fault))
    }

    pub(super) async fn starting(&mut self, mut up: PendingVm) -> Stage {
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
                            let links = links(up.launch.interfaces.iter(), |nic| nic.link_up);
                            self.publish(|state| state.links = Some(links));
                            self.enter(Phase::Running);
                            info!("the VM runs");
                            self.stats_source.send_replace(Some((guest.meter(), Arc::clone(&up.launch))));
                            self.servers.spawn(program::release_what_starts_need());
                            let vm = RunningVm::new(up.launch, up.console, guest);
                            match up.stop {
                                Some(deadline) => Stage::Stopping(vm, deadline),
                                None => Stage::Running(vm),
                            }
                        }
                        Err(fault) => {
                            up.console.end();
                            self.fail_start(fault)
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
                        up.stop = earlier_deadline(up.stop, grace);
                    }
                    Some(Command::Exit) => {
                        self.exiting = true;
                        up.stop = earlier_deadline(up.stop, up.launch.termination_grace);
                    }
                    Some(Command::Kill(reply)) => {
                        answer(reply, None);
                        return self.abandon(up);
                    }
                    Some(other) => reject(other, &self.state()),
                    None => self.exiting = true,
                },
                () = overdue => {
                    warn!("the VM is not up though its guest should have shut down by now");
                    return self.abandon(up);
                }
            }
        }
    }

    /// Ends a VM that is not up yet.
    fn abandon(&self, up: PendingVm) -> Stage {
        up.console.end();
        // Dropping the future undoes what was started.
        drop(up.starting);
        let outcome = outcome::killed_while_starting();
        let stage = self.exit(outcome.clone());
        up.reply.answer(self.state(), outcome.fault);
        stage
    }
}

/// The ends of a port: ours, and the hypervisor's.
fn port() -> Result<(UnixStream, StdStream), Fault> {
    let pair = || {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok((UnixStream::from_std(ours)?, theirs))
    };
    pair().map_err(|error: std::io::Error| fault(Code::HostResource, chain(&error)))
}

/// Whose queues the host's kernel moves, by the node's vhost-net for each queue of each NIC.
fn offloaded(interfaces: &[Interface], vhost: &[Vec<OwnedFd>]) -> Option<String> {
    let with_vhost = interfaces.iter().zip(vhost).filter(|(_, devices)| !devices.is_empty());
    let names: Vec<_> = with_vhost.map(|(interface, _)| interface.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("vhost-net moves the queues of the NICs {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::sample;

    #[test]
    fn nics_with_vhost_net_are_named() {
        let mut interfaces = sample::kernel_boot().interfaces;
        interfaces.push(Interface { name: "second".to_owned(), ..interfaces[0].clone() });
        let device = || OwnedFd::from(File::open("/dev/null").unwrap());
        assert_eq!(offloaded(&interfaces, &[Vec::new(), Vec::new()]), None);
        let text = offloaded(&interfaces, &[Vec::new(), vec![device(), device()]]).unwrap();
        assert_eq!(text, "vhost-net moves the queues of the NICs second");
    }
}
