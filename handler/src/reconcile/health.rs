//! The probes of one VMI: asked by its launcher, again and again, while its guest runs.

mod course;

use std::path::PathBuf;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tracing::{Instrument as _, Span, debug};
use vireo_api::spec::{Probe, ProbeHost, ProbeQuestion, Vm};
use vireo_api::v1::VirtualMachineInstanceStatus;
use vireo_proto::launcher::ProbeRequest;
use vireo_proto::launcher::probe_request::{Exec, GuestAgentPing, Header, HttpGet, Question, TcpSocket};

use super::act::inside;
use super::record::Record;
use super::status::Phase;
use crate::launcher::link::{chain, probe};
use crate::network::dns::{self, Resolver};
pub(super) use course::Standing;
use course::{Course, Outcome, Rules};

/// What is known by both probes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) readiness: Standing,
    pub(super) liveness: Standing,
}

/// Whoever runs the probes. They end when it is dropped.
#[derive(Debug)]
pub(super) struct Health {
    awake: watch::Sender<bool>,
    told: watch::Receiver<Told>,
    task: JoinHandle<()>,
}

impl Drop for Health {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Health {
    /// Runs the probes of a VMI whose guest runs; absent where it has none.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let spec = &record.vmi.spec;
        if spec.liveness_probe.is_none() && spec.readiness_probe.is_none() {
            return None;
        }
        let vm = record.vm().ok()?;
        let since = running_since(&record.vmi.status);
        let (awake, heard) = watch::channel(true);
        let (tell, told) = watch::channel(Told::default());
        let one = |probe: Option<&Probe>, place: fn(&mut Told) -> &mut Standing| {
            let probe = probe.cloned();
            let request = probe.as_ref().map(|probe| request(probe, &vm, dns::of_host));
            let (socket, heard, tell) = (record.dir.launcher_socket(), heard.clone(), tell.clone());
            async move {
                let Some((probe, request)) = probe.zip(request) else { return };
                let course = Course::begin(first(&probe, since));
                let ask = || ask(socket.clone(), request.clone());
                follow(course, Rules::of(&probe), ask, heard, |standing| {
                    tell.send_if_modified(|told| {
                        let known = place(told);
                        let differs = known != standing;
                        known.clone_from(standing);
                        differs
                    });
                })
                .await;
            }
        };
        let readiness = one(vm.readiness_probe(), |told| &mut told.readiness);
        let liveness = one(vm.liveness_probe(), |told| &mut told.liveness);
        let both = async {
            tokio::join!(readiness, liveness);
        };
        let task = tokio::spawn(both.instrument(Span::current()));
        Some(Self { awake, told, task })
    }

    /// Nobody asks a guest that does not run, and what is known of it stays.
    pub(super) fn wake(&self, awake: bool) {
        self.awake.send_if_modified(|known| std::mem::replace(known, awake) != awake);
    }

    /// What is known now.
    pub(super) fn told(&self) -> Told {
        self.told.borrow().clone()
    }

    /// Waits until something else is known.
    pub(super) async fn changed(&mut self) {
        if self.told.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// When the guest began to run, if it was noted.
fn running_since(status: &VirtualMachineInstanceStatus) -> Option<Timestamp> {
    let noted = status.phase_transition_timestamps.iter();
    let mut of_running = noted.filter(|entry| entry.phase == Phase::Running.as_str());
    of_running.next()?.phase_transition_timestamp.as_deref()?.parse().ok()
}

/// When a guest that runs since then is asked first.
fn first(probe: &Probe, since: Option<Timestamp>) -> Instant {
    let ran = since.map(|since| Timestamp::now().duration_since(since).unsigned_abs()).unwrap_or_default();
    Instant::now() + probe.initial_delay().saturating_sub(ran)
}

/// Asks while the guest is awake, until nobody wants to know any more.
async fn follow<A: Future<Output = Outcome>>(
    mut course: Course,
    rules: Rules,
    ask: impl Fn() -> A,
    mut awake: watch::Receiver<bool>,
    tell: impl Fn(&Standing),
) {
    while awake.wait_for(|awake| *awake).await.is_ok() {
        let due = async {
            sleep_until(course.due).await;
            let asked = Instant::now();
            (ask().await, asked)
        };
        let (outcome, asked) = tokio::select! {
            biased;
            // What it did not answer while it stood still is not held against it.
            asleep = awake.wait_for(|awake| !*awake) => match asleep {
                Ok(_) => continue,
                Err(_) => return,
            },
            told = due => told,
        };
        course = course.next(&rules, outcome, asked, Instant::now());
        tell(&course.standing);
    }
}

async fn ask(socket: PathBuf, request: ProbeRequest) -> Outcome {
    match probe(&socket, request).await {
        Ok(None) => Outcome::Well,
        Ok(Some(failure)) => Outcome::Ill(failure),
        Err(error) => {
            debug!(error = chain(&error), "a probe cannot be asked");
            Outcome::Unknown
        }
    }
}

/// How the launcher is asked. `host` has the host's name servers, which are needed where a probe names its target.
fn request(probe: &Probe, vm: &Vm, host: impl FnOnce() -> Resolver) -> ProbeRequest {
    let guest = inside(vm).map(|inside| inside.guest().to_string()).unwrap_or_default();
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
    let resolver = named.then(|| crate::resolve::resolver(vm, &host()));
    ProbeRequest { timeout_seconds: probe.timeout().as_secs(), question: Some(question), resolver }
}

#[cfg(test)]
mod tests;
