//! The columns of pods, as Kubernetes' own printer computes them.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{has_terminated, list, text};
use crate::json_path;
use crate::meta;
use crate::resource::{Column, human};

const NONE: &str = "<none>";

pub(super) fn columns() -> Vec<Column> {
    vec![
        Column::computed("Ready", ready).described("Number of containers that are ready, of all containers."),
        Column::computed("Status", |pod| json!(Summary::of(pod).status))
            .described("Why the pod and its containers are in the state that they are in."),
        Column::computed("Restarts", restarts)
            .described("Number of times that containers were restarted, and when the last one was."),
        Column::age(),
        Column::computed("IP", |pod| or(text(pod, "/status/podIPs/0/ip"), text(pod, "/status/podIP")))
            .wide()
            .described("IP address allocated to the pod."),
        Column::computed("Node", |pod| or(text(pod, "/spec/nodeName"), NONE))
            .wide()
            .described("Node that the pod is scheduled to."),
        Column::computed("Nominated Node", |pod| or(text(pod, "/status/nominatedNodeName"), NONE))
            .wide()
            .described("Node on which the pod preempts others."),
        Column::computed("Readiness Gates", readiness_gates)
            .wide()
            .described("Number of readiness gates whose conditions are true, of all readiness gates."),
    ]
}

/// The first of two texts that is not empty.
fn or(text: &str, other: &str) -> Value {
    let first = [text, other].into_iter().find(|text| !text.is_empty());
    json!(first.unwrap_or(NONE))
}

fn ready(pod: &Value) -> Value {
    let summary = Summary::of(pod);
    json!(format!("{}/{}", summary.ready, summary.total))
}

fn restarts(pod: &Value) -> Value {
    let Restarts { count, last } = Summary::of(pod).restarts;
    json!(match last.filter(|_| count > 0) {
        Some(last) => format!("{count} ({} ago)", human(Timestamp::now().as_second() - last.as_second())),
        None => count.to_string(),
    })
}

fn readiness_gates(pod: &Value) -> Value {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return json!(NONE);
    }
    let is_true = |gate: &&Value| condition(pod, text(gate, "/conditionType")) == "True";
    json!(format!("{}/{}", gates.iter().filter(is_true).count(), gates.len()))
}

/// The status of a condition; empty where it is absent.
fn condition<'a>(pod: &'a Value, kind: &str) -> &'a str {
    let found = list(pod, "/status/conditions").iter().find(|condition| text(condition, "/type") == kind);
    found.map(|condition| text(condition, "/status")).unwrap_or_default()
}

/// Restarts of containers.
#[derive(Debug, Default, Clone, Copy)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, container: &Value) {
        self.count += container.get("restartCount").and_then(Value::as_i64).unwrap_or_default();
        let last = json_path::text(container, ".lastState.terminated.finishedAt").parse().ok();
        self.last = self.last.max(last);
    }
}

/// What the containers of a pod come to.
#[derive(Debug)]
struct Summary {
    ready: usize,
    total: usize,
    status: String,
    restarts: Restarts,
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let sidecars = list(pod, "/spec/initContainers").iter().filter(|one| is_sidecar(one)).count();
        let phase = text(pod, "/status/phase");
        let reason = text(pod, "/status/reason");
        let mut summary = Self {
            ready: 0,
            total: list(pod, "/spec/containers").len() + sidecars,
            status: if reason.is_empty() { phase } else { reason }.to_owned(),
            restarts: Restarts::default(),
        };
        let gated = |condition: &Value| {
            text(condition, "/type") == "PodScheduled" && text(condition, "/reason") == "SchedulingGated"
        };
        if list(pod, "/status/conditions").iter().any(gated) {
            summary.status = "SchedulingGated".to_owned();
        }
        let (of_sidecars, is_initializing) = summary.read_init_containers(pod);
        if !is_initializing || condition(pod, "Initialized") == "True" {
            summary.restarts = of_sidecars;
            summary.read_containers(pod);
        }
        if meta::is_being_deleted(pod) && reason == "NodeLost" {
            summary.status = "Unknown".to_owned();
        } else if meta::is_being_deleted(pod) && !has_terminated(pod) {
            summary.status = "Terminating".to_owned();
        }
        summary
    }

    /// Reads the init containers up to the first that has not finished. The restarts of sidecars, and whether there is
    /// such a container.
    fn read_init_containers(&mut self, pod: &Value) -> (Restarts, bool) {
        let specs = list(pod, "/spec/initContainers");
        let mut of_sidecars = Restarts::default();
        for (index, container) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            self.restarts.add(container);
            let is_its = |spec: &&Value| text(spec, "/name") == text(container, "/name");
            let is_sidecar = specs.iter().find(is_its).is_some_and(is_sidecar);
            if is_sidecar {
                of_sidecars.add(container);
            }
            let (terminated, waiting) = (terminated(container), text(container, "/state/waiting/reason"));
            if terminated.is_some_and(|terminated| number(terminated, "exitCode") == 0) {
                continue;
            }
            if is_sidecar && is(container, "started") {
                self.ready += usize::from(is(container, "ready"));
                continue;
            }
            self.status = match terminated {
                Some(terminated) => format!("Init:{}", end(terminated)),
                None if !["", "PodInitializing"].contains(&waiting) => format!("Init:{waiting}"),
                None => format!("Init:{index}/{}", specs.len()),
            };
            return (of_sidecars, true);
        }
        (of_sidecars, false)
    }

    fn read_containers(&mut self, pod: &Value) {
        let mut any_runs = false;
        for container in list(pod, "/status/containerStatuses").iter().rev() {
            self.restarts.add(container);
            let waiting = text(container, "/state/waiting/reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.status);
            } else if let Some(terminated) = terminated(container) {
                self.status = end(terminated);
            } else if is(container, "ready") && container.pointer("/state/running").is_some() {
                any_runs = true;
                self.ready += 1;
            }
        }
        if self.status == "Completed" && any_runs {
            let is_ready = condition(pod, "Ready") == "True";
            self.status = if is_ready { "Running" } else { "NotReady" }.to_owned();
        }
    }
}

fn is_sidecar(container: &Value) -> bool {
    text(container, "/restartPolicy") == "Always"
}

fn terminated(container: &Value) -> Option<&Value> {
    container.pointer("/state/terminated").filter(|terminated| terminated.is_object())
}

/// How a container has ended.
fn end(terminated: &Value) -> String {
    match (text(terminated, "/reason"), number(terminated, "signal")) {
        ("", 0) => format!("ExitCode:{}", number(terminated, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn number(object: &Value, field: &str) -> i64 {
    object.get(field).and_then(Value::as_i64).unwrap_or_default()
}

fn is(object: &Value, field: &str) -> bool {
    object.get(field) == Some(&Value::Bool(true))
}
