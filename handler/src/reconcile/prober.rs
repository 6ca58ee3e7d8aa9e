//! Runs the probes of one VMI through its launcher while its guest runs.

mod probe_state;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span, debug};
use vireo_api::spec::{Probe, ProbeHost, ProbeQuestion, Vm};
use vireo_api::v1::VirtualMachineInstanceStatus;
use vireo_proto::launcher::ProbeRequest;
use vireo_proto::launcher::probe_request::{Exec, GuestAgentPing, Header, HttpGet, Question, TcpSocket};

use super::record::Record;
use super::status::{Phase, ProbeStatus, primary};
use crate::launcher::link::{chain, probe};
use crate::network::dns::{self, Resolver};
use crate::network::inside::{by_passt, requested};
use probe_state::{Outcome, ProbeState, Rules};

/// The results of both probes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProbeResults {
    pub(super) readiness: ProbeStatus,
    pub(super) liveness: ProbeStatus,
}

/// Runs the probes until it is dropped.
#[derive(Debug)]
pub(super) struct Prober {
    active: watch::Sender<bool>,
    results: watch::Receiver<ProbeResults>,
    _task: AbortOnDropHandle<()>,
}

impl Prober {
    /// Starts the probes of a VMI whose guest runs. Returns `None` for a VMI without probes.
    pub(super) fn start(record: &Record) -> Option<Self> {
        let spec = &record.vmi.spec;
        if spec.liveness_probe.is_none() && spec.readiness_probe.is_none() {
            return None;
        }
        let vm = record.vm().ok()?;
        let has_ipv6 = has_ipv6(&record.vmi.status);
        let since = running_since(&record.vmi.status);
        let (active, is_active) = watch::channel(true);
        let (publish, results) = watch::channel(ProbeResults::default());
        let one = |probe: Option<&Probe>, field: fn(&mut ProbeResults) -> &mut ProbeStatus| {
            let probe = probe.cloned();
            let request = probe.as_ref().map(|probe| request(probe, &vm, has_ipv6, dns::of_host));
            let (socket, is_active, publish) =
                (record.dir.launcher_socket(), is_active.clone(), publish.clone());
            async move {
                let Some((probe, request)) = probe.zip(request) else { return };
                let state = ProbeState::new(first(&probe, since));
                let run = || run_probe(socket.clone(), request.clone());
                probe_loop(state, Rules::of(&probe), run, is_active, |status| {
                    publish.send_if_modified(|results| {
                        let known = field(results);
                        let differs = known != status;
                        known.clone_from(status);
                        differs
                    });
                })
                .await;
            }
        };
        let readiness = one(vm.readiness_probe(), |results| &mut results.readiness);
        let liveness = one(vm.liveness_probe(), |results| &mut results.liveness);
        let both = async {
            tokio::join!(readiness, liveness);
        };
        let task = tokio::spawn(both.instrument(Span::current()));
        Some(Self { active, results, _task: AbortOnDropHandle::new(task) })
    }

    /// Starts or stops probing. A guest that does not run is not probed and keeps its last results.
    pub(super) fn set_active(&self, active: bool) {
        self.active.send_if_modified(|known| std::mem::replace(known, active) != active);
    }

    /// The current results.
    pub(super) fn results(&self) -> ProbeResults {
        self.results.borrow().clone()
    }

    /// Waits until a result changes.
    pub(super) async fn changed(&mut self) {
        if self.results.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Whether the network of a VMI's Pod has IPv6.
fn has_ipv6(status: &VirtualMachineInstanceStatus) -> bool {
    let addresses = primary(&status.interfaces).into_iter().flat_map(|interface| &interface.ip_addresses);
    addresses.filter_map(|address| address.parse().ok()).any(|address: IpAddr| address.is_ipv6())
}

/// When the guest started to run, if that is recorded.
fn running_since(status: &VirtualMachineInstanceStatus) -> Option<Timestamp> {
    let noted = status.phase_transition_timestamps.iter();
    let mut of_running = noted.filter(|entry| entry.phase == Phase::Running.as_str());
    of_running.next()?.phase_transition_timestamp.as_deref()?.parse().ok()
}

/// The time of the first probe of a guest that has run since `since`.
fn first(probe: &Probe, since: Option<Timestamp>) -> Instant {
    let ran = since.map(|since| Timestamp::now().duration_since(since).unsigned_abs()).unwrap_or_default();
    Instant::now() + probe.initial_delay().saturating_sub(ran)
}

/// Probes while the guest is active, until the prober is dropped.
async fn probe_loop<A: Future<Output = Outcome>>(
    mut state: ProbeState,
    rules: Rules,
    run: impl Fn() -> A,
    mut active: watch::Receiver<bool>,
    publish: impl Fn(&ProbeStatus),
) {
    while active.wait_for(|active| *active).await.is_ok() {
        let due = async {
            sleep_until(state.due).await;
            let sent = Instant::now();
            (run().await, sent)
        };
        let (outcome, sent) = tokio::select! {
            biased;
            // A probe that was under way when the guest was paused does not count.
            paused = active.wait_for(|active| !*active) => match paused {
                Ok(_) => continue,
                Err(_) => return,
            },
            done = due => done,
        };
        state = state.next(&rules, outcome, sent, Instant::now());
        publish(&state.status);
    }
}

async fn run_probe(socket: PathBuf, request: ProbeRequest) -> Outcome {
    match probe(&socket, request).await {
        Ok(None) => Outcome::Success,
        Ok(Some(failure)) => Outcome::Failure(failure),
        Err(error) => {
            debug!(error = chain(&error), "cannot run a probe");
            Outcome::Unknown
        }
    }
}

/// Builds the request to the launcher. `host` gives the host's name servers, for a probe of a host name.
fn request(probe: &Probe, vm: &Vm, has_ipv6: bool, host: impl FnOnce() -> Resolver) -> ProbeRequest {
    let by_tap = requested(vm).map(|inside| inside.net.guest().to_string());
    // passt listens at all addresses of the launcher's network namespace.
    let by_passt = || by_passt(vm).next().map(|_| Ipv4Addr::LOCALHOST.to_string());
    let guest = by_tap.or_else(by_passt).unwrap_or_default();
    let to = |host: &Option<ProbeHost>, port: u16| TcpSocket {
        address: host.as_ref().map_or_else(|| guest.clone(), ToString::to_string),
        port: port.into(),
    };
    let question = match probe.question() {
        ProbeQuestion::HttpGet { path, port, host, tls, headers } => {
            let header =
                |(name, value): &(String, String)| Header { name: name.clone(), value: value.clone() };
            Question::HttpGet(HttpGet {
                to: Some(to(host, *port)),
                tls: *tls,
                path: path.clone(),
                headers: headers.iter().map(header).collect(),
            })
        }
        ProbeQuestion::TcpSocket { port, host } => Question::TcpSocket(to(host, *port)),
        ProbeQuestion::Exec { command } => Question::Exec(Exec { command: command.clone() }),
        ProbeQuestion::GuestAgentPing => Question::GuestAgentPing(GuestAgentPing {}),
    };
    let named = match probe.question() {
        ProbeQuestion::HttpGet { host, .. } | ProbeQuestion::TcpSocket { host, .. } => {
            matches!(host, Some(ProbeHost::Name(_)))
        }
        ProbeQuestion::Exec { .. } | ProbeQuestion::GuestAgentPing => false,
    };
    let resolver = named.then(|| crate::resolve::probe_resolver(vm, &host(), has_ipv6));
    ProbeRequest { timeout_seconds: probe.timeout().as_secs(), question: Some(question), resolver }
}

#[cfg(test)]
mod tests;
