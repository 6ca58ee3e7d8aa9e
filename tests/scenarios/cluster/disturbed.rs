//! Components that are killed at random points, and an API server that does not answer.

use std::env;
use std::time::{Duration, Instant};

use serde_json::Value;
use vireo_tests::HostError;
use vireo_tests::cluster;
use vireo_tests::eventually::eventually;

use super::{EMULATED, STEP, Vireo, cluster_up, installation, leaves_nothing, machine};
use crate::scenarios::probes::condition;

/// How often a component is killed, unless `VIREO_KILL_ROUNDS` says otherwise.
const ROUNDS: u32 = 4;
/// How long the API server does not answer, unless `VIREO_OUTAGE_SECONDS` says otherwise: longer than a Lease lives.
const OUTAGE: u32 = 45;
/// The longest time from a request until the component is killed: VMs start and stop within it.
const LATEST: Duration = Duration::from_secs(4);
/// Until the cluster is as before an outage: the kubelet waits up to 5 minutes before it starts again what ended often.
const RECOVERY: Duration = Duration::from_secs(400);
/// Until a cluster has Vireo, and until everything is as it was after kills and outages.
const INSTALLED: Duration = Duration::from_secs(1200);
/// The VM that runs all the time.
const STEADY: &str = "steady";
/// The VM that is started, restarted and deleted.
const MOVING: &str = "moving";
const QEMU: &str = "qemu-system-x86_64";
const COMPONENTS: [&str; 4] = ["virt-handler", "virt-controller", "virt-api", "virt-operator"];

/// A number from the environment.
fn number(variable: &str, default: u32) -> u32 {
    let given = env::var(variable).ok().filter(|given| !given.is_empty());
    given.map_or(default, |given| given.parse().unwrap_or_else(|error| panic!("{variable}={given}: {error}")))
}

/// How long all of this may take.
pub(super) fn limit() -> Duration {
    Duration::from_secs(60) * number("VIREO_KILL_ROUNDS", ROUNDS)
        + Duration::from_secs(2) * number("VIREO_OUTAGE_SECONDS", OUTAGE)
}

fn vm(name: &str) -> String {
    machine::bare("Always", "None").replace("{name: bare}", &format!("{{name: {name}}}"))
}

/// What must not change of a VM that goes on: its instance and the process of its launcher.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    uid: String,
    launcher: String,
}

impl Identity {
    fn of(vireo: &Vireo<'_>, name: &str) -> Result<Self, HostError> {
        let uid = vireo.uid(name)?;
        let pod = vireo.pod(name)?;
        let status = &pod["status"]["containerStatuses"][0];
        assert_eq!(status["restartCount"], 0, "{status:#}");
        let launcher = status["containerID"].as_str().unwrap_or_default().to_owned();
        Ok(Self { uid, launcher })
    }
}

fn is_ready(vmi: &Value) -> bool {
    vmi["status"]["phase"] == "Running" && condition(vmi, "Ready")["status"] == "True"
}

/// Repeats a command until the API server carries it out: a webhook may be away.
fn insist(vireo: &Vireo<'_>, line: &str, input: &str) -> Result<(), HostError> {
    let mut refused = 0;
    eventually(&format!("kubectl {line}"), STEP, || {
        let done = vireo.kubectl(line, Some(input))?;
        refused += u32::from(done.status != vireo_tests::Status::Code(0));
        Ok(done.status == vireo_tests::Status::Code(0))
    })?;
    if refused > 0 {
        eprintln!("cluster: `kubectl {line}` was refused {refused} times");
    }
    Ok(())
}

/// One component at a time is killed at a random point of the start, the restart or the end of a VM, or beside an open
/// console. The VM does as it is told all the same, and another VM goes on.
pub(super) fn components_are_killed(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let rounds = number("VIREO_KILL_ROUNDS", ROUNDS);
    let seed = env::var("VIREO_KILL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    vireo.step(&format!("components are killed {rounds} times (VIREO_KILL_SEED={seed})"));
    let mut random = fastrand::Rng::with_seed(seed);
    vireo.feed("apply -f -", &vm(STEADY));
    vireo.becomes(&format!("vmi {STEADY}"), "is ready", is_ready)?;
    let steady = Identity::of(vireo, STEADY)?;
    let mut before = None;
    for round in 0..rounds {
        // Each of them at least once in as many rounds.
        let component = COMPONENTS[usize::try_from(round).unwrap_or_default() % COMPONENTS.len()];
        let after = LATEST.mul_f32(random.f32());
        let what = Round { number: round, component, after, all: random.u8(..5) == 0 };
        before = what.run(vireo, before.as_deref(), random.u8(..3))?;
        assert_eq!(Identity::of(vireo, STEADY)?, steady, "{what:?}");
        vireo.becomes(&format!("vmi {STEADY}"), "is ready", is_ready)?;
    }
    insist(vireo, &format!("delete vm {MOVING} --ignore-not-found"), "")?;
    vireo.gone(MOVING)
}

#[derive(Debug)]
struct Round {
    number: u32,
    component: &'static str,
    after: Duration,
    /// Whether all replicas are killed.
    all: bool,
}

impl Round {
    /// The UID of the moving VM's instance after the round, if there is one.
    fn run(&self, vireo: &Vireo<'_>, before: Option<&str>, action: u8) -> Result<Option<String>, HostError> {
        let (component, after) = (self.component, self.after.as_secs_f32());
        let action = match (before, action) {
            (None, _) => "start",
            (Some(_), 0) => "delete",
            (Some(_), 1) => "restart",
            (Some(_), _) => "console",
        };
        let victims = if self.all { "all" } else { "one" };
        vireo.step(&format!(
            "round {}: {action}, and after {after:.1} s {victims} of {component} is killed",
            self.number
        ));
        let choose = if self.all { "cat" } else { "cut -d ' ' -f 1" };
        // The delay is what the round is about: the point at which the component dies.
        let kill = format!("(sleep {after:.3}; kill -9 $(pidof {component} | {choose})) >/dev/null 2>&1 &");
        vireo.shell(&kill)?;
        let open = if action == "console" { Some(vireo.try_console(STEADY)?) } else { None };
        let left = match action {
            "start" => {
                insist(vireo, "apply -f -", &vm(MOVING))?;
                vireo.phase(MOVING, "Running")?;
                Some(vireo.uid(MOVING)?)
            }
            "delete" => {
                insist(vireo, &format!("delete vm {MOVING} --wait=false"), "")?;
                vireo.gone(MOVING)?;
                None
            }
            "restart" => {
                let before = before.unwrap_or_default();
                eventually("the VM is restarted", STEP, || {
                    let restart = vireo.virtctl(&format!("restart {MOVING}"))?;
                    Ok(restart.status == vireo_tests::Status::Code(0) || vireo.uid(MOVING)? != before)
                })?;
                vireo.another_runs(MOVING, before)?;
                Some(vireo.uid(MOVING)?)
            }
            _ => before.map(str::to_owned),
        };
        self.is_back(vireo)?;
        if open.is_some() {
            eventually("there is a console again", STEP, || Ok(vireo.try_console(STEADY)?.is_ok()))?;
        }
        Ok(left)
    }

    /// Waits until the component runs again. Its Pods are replaced: the kubelet takes ever longer to start a container
    /// again.
    fn is_back(&self, vireo: &Vireo<'_>) -> Result<(), HostError> {
        let pods = format!("pods -n kubevirt -l kubevirt.io={}", self.component);
        let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        let mut replaced = false;
        eventually(&format!("{} was killed and is complete again", self.component), STEP, || {
            let pods = vireo.items(&pods)?;
            let restarted = pods.iter().filter(|pod| restarts(pod).is_some_and(|count| count > 0));
            let mut left = 0;
            for pod in restarted {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                vireo.kubectl(&format!("-n kubevirt delete pod {name} --wait=false"), None)?;
                left += 1;
            }
            replaced |= left > 0;
            let ready = |pod: &Value| condition(pod, "Ready")["status"] == "True";
            Ok(replaced && left == 0 && !pods.is_empty() && pods.iter().all(ready))
        })
    }
}

/// The API server does not answer for a while. Meanwhile one guest ends, and the node agent is killed. Afterwards all is as
/// it should be, and guests that had nothing to do with it went on.
pub(super) fn api_server_is_away(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let outage = Duration::from_secs(number("VIREO_OUTAGE_SECONDS", OUTAGE).into());
    vireo.step(&format!("the API server does not answer for {} s", outage.as_secs()));
    let other_guests = vireo.processes(QEMU)?;
    vireo.feed("apply -f -", &vm(MOVING));
    vireo.becomes(&format!("vmi {MOVING}"), "is ready", is_ready)?;
    vireo.becomes(&format!("vmi {STEADY}"), "is ready", is_ready)?;
    let (steady, ended) = (Identity::of(vireo, STEADY)?, Identity::of(vireo, MOVING)?);
    let is_other = |process: &&str| other_guests.split_whitespace().any(|one| one == *process);
    let guests = vireo.processes(QEMU)?;
    let guest: Vec<&str> = guests.split_whitespace().filter(|process| !is_other(process)).collect();
    assert_eq!(guest.len(), 1, "{other_guests} before, {guests} now");
    let since = Instant::now();
    vireo.shell("pkill -STOP -x kube-apiserver")?;
    vireo.shell(&format!("kill -9 {} $(pidof virt-handler)", guest[0]))?;
    eventually("the kubelet has started another node agent", STEP, || {
        Ok(!vireo.processes("virt-handler")?.is_empty())
    })?;
    eventually("the outage lasts", outage * 2, || Ok(since.elapsed() >= outage))?;
    assert_eq!(vireo.processes(QEMU)?, other_guests, "the other guests go on");
    vireo.shell("pkill -CONT -x kube-apiserver")?;

    vireo.step("the API server answers again");
    eventually("the VM whose guest ended has another instance", RECOVERY, || {
        let vmi = vireo.kubectl(&format!("get vmi {MOVING} -o json"), None)?;
        let vmi: Value = serde_json::from_str(&vmi.stdout).unwrap_or_default();
        Ok(vmi["metadata"]["uid"].as_str().is_some_and(|uid| uid != ended.uid) && is_ready(&vmi))
    })?;
    vireo.becomes(&format!("vmi {STEADY}"), "is ready", is_ready)?;
    assert_eq!(Identity::of(vireo, STEADY)?, steady);
    eventually("all components are available", RECOVERY, || {
        let kubevirt = vireo.json("-n kubevirt get kubevirt kubevirt")?;
        let complete = condition(&kubevirt, "Degraded")["status"] == "False";
        Ok(condition(&kubevirt, "Available")["status"] == "True" && complete)
    })?;
    vireo.ok(&format!("delete vm {STEADY} {MOVING} {}", super::LIMIT));
    vireo.gone(STEADY)?;
    vireo.gone(MOVING)
}

/// The same for long, on a cluster of its own: `hack/test cluster disturbances`.
#[test]
fn for_long() -> Result<(), HostError> {
    let begun = Instant::now();
    let cluster = cluster_up("cluster-disturbed", &cluster::images(), INSTALLED + limit())?;
    let vireo = Vireo::new(&cluster, begun);
    installation::becomes_available(&vireo)?;
    installation::configure(&vireo, EMULATED)?;
    components_are_killed(&vireo)?;
    api_server_is_away(&vireo)?;
    leaves_nothing(&vireo)?;
    vireo.step("end");
    cluster.done();
    Ok(())
}
