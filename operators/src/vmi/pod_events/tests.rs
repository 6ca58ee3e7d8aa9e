//! Against an HTTP server in the place of kube-apiserver, which has the events of one Pod.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use vireo_api::names::NODE_LABEL;

use super::*;

/// The UID of the Pod.
const UID: &str = "1";
/// When it was created.
const CREATED: &str = "1970-01-01T00:01:40Z";

/// What a server answers, and how often it was asked.
struct Server {
    answer: Mutex<(u16, Vec<Value>)>,
    asked: Mutex<u32>,
}

type Shared = Arc<Server>;

async fn list(
    State(server): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
) -> (StatusCode, Json<Value>) {
    assert_eq!(
        (query["fieldSelector"].as_str(), query["limit"].as_str()),
        (&*format!("involvedObject.kind=Pod,involvedObject.uid={UID},type=Warning"), "200")
    );
    *server.asked.lock().unwrap() += 1;
    let (code, items) = server.answer.lock().unwrap().clone();
    let list = match code {
        200 => json!({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": items}),
        code => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": "Forbidden", "message": "events is forbidden"}),
    };
    (StatusCode::from_u16(code).unwrap(), Json(list))
}

impl Server {
    /// A server that runs as long as the test.
    async fn start() -> (Shared, Client) {
        let server = Arc::new(Self { answer: Mutex::new((200, Vec::new())), asked: Mutex::new(0) });
        let router =
            Router::new().route("/api/v1/namespaces/n/events", get(list)).with_state(Arc::clone(&server));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        (server, Client::try_from(config).unwrap())
    }

    fn answer(&self, code: u16, items: &[Value]) {
        *self.answer.lock().unwrap() = (code, items.to_vec());
    }

    fn asked(&self) -> u32 {
        *self.asked.lock().unwrap()
    }
}

fn vmi(labels: Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({"metadata": {"name": "x", "namespace": "n", "labels": labels}})).unwrap()
}

fn pod(node: &str, status: Value) -> LauncherPod {
    let metadata = json!({"name": "p", "namespace": "n", "uid": UID, "creationTimestamp": CREATED});
    LauncherPod::read(json!({"metadata": metadata, "spec": {"nodeName": node}, "status": status})).unwrap()
}

/// Seconds after the Pod was created.
fn after(seconds: i64) -> Timestamp {
    Timestamp::from_second(100 + seconds).unwrap()
}

fn event(reason: &str, message: &str, seconds: i64) -> Value {
    json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("{reason}.{seconds}"), "namespace": "n"},
        "involvedObject": {"kind": "Pod", "uid": UID}, "type": "Warning", "reason": reason, "message": message,
        "lastTimestamp": after(seconds).to_string()})
}

fn warning(reason: &str, message: &str) -> Warning {
    Warning { reason: reason.to_owned(), message: message.to_owned() }
}

#[tokio::test]
async fn events_are_read_of_a_pod_that_waits_and_ever_more_seldom() {
    let (server, client) = Server::start().await;
    let (events, vmi, waits) = (PodEvents::default(), vmi(json!({})), pod("node1", json!({})));
    let pods = [&waits];
    let at = |seconds| events.warning(&client, &vmi, &pods, after(seconds));
    let missing = warning("FailedMount", "configmap \"missing\" not found");
    server.answer(200, &[event("FailedMount", &missing.message, 1)]);
    assert_eq!(at(9).await, (None, None), "most need less");
    assert_eq!(server.asked(), 0);
    for (seconds, asked, again) in [
        (10, 1, 10),
        (15, 1, 5),
        (20, 2, 20),
        (39, 2, 1),
        (40, 3, 40),
        (80, 4, 60),
        (139, 4, 1),
        (140, 5, 60),
    ] {
        let expected = (Some(missing.clone()), Some(Duration::from_secs(again)));
        assert_eq!((at(seconds).await, server.asked()), (expected, asked), "{seconds}");
    }
    server.answer(403, &[]);
    assert_eq!(at(200).await, (None, Some(LONGEST)), "a role of the release before");
    assert_eq!(server.asked(), 6);
}

#[tokio::test]
async fn events_are_read_of_no_other_pod() {
    let (server, client) = Server::start().await;
    let events = PodEvents::default();
    let container = |kind: &str, state: Value| json!({kind: [{"name": "compute", "state": state}]});
    let prepared = json!({"conditions": [{"type": READY_TO_START_CONTAINERS, "status": "True"}]});
    let mut leaving = vmi(json!({}));
    leaving.metadata.deletion_timestamp = Some(CREATED.to_owned());
    for (vmi, pod, why) in [
        (vmi(json!({})), pod("", json!({})), "it is not bound"),
        (vmi(json!({})), pod("node1", prepared), "its volumes are mounted"),
        (
            vmi(json!({})),
            pod("node1", container("containerStatuses", json!({"running": {}}))),
            "its launcher runs",
        ),
        (
            vmi(json!({})),
            pod("node1", container("initContainerStatuses", json!({"terminated": {"exitCode": 0}}))),
            "its containers are made",
        ),
        (
            vmi(json!({})),
            pod("node1", container("containerStatuses", json!({"waiting": {"reason": "ErrImagePull"}}))),
            "its status tells why",
        ),
        (vmi(json!({NODE_LABEL: "node1"})), pod("node1", json!({})), "it is handed over"),
        (leaving, pod("node1", json!({})), "it is deleted"),
    ] {
        let found = events.warning(&client, &vmi, &[&pod], after(60)).await;
        assert_eq!((found, server.asked()), ((None, None), 0), "{why}");
    }
}

#[test]
fn the_cause_is_what_the_last_warnings_have_first() {
    let of = |events: &[Value]| {
        Warning::of(events.iter().map(|event| serde_json::from_value(event.clone()).unwrap()))
    };
    let attach = event("FailedAttachVolume", "Multi-Attach error", 60);
    let mount = event("FailedMount", "timed out waiting", 120);
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[event("MissingClusterDNS", "m", 60), event("FailedScheduling", "m", 1)]), None);
    let cause = Some(warning("FailedAttachVolume", "Multi-Attach error"));
    assert_eq!(of(&[attach.clone(), mount.clone()]), cause);
    assert_eq!(of(&[mount, attach.clone()]), cause);
    let later = event("FailedMount", "secret \"a\" not found", 60 + 301);
    let expected = Some(warning("FailedMount", "secret \"a\" not found"));
    assert_eq!(of(&[attach, later.clone()]), expected, "it is attached meanwhile");
    let before = event("FailedMount", "secret \"b\" not found", 300);
    assert_eq!(of(&[later, before]), expected, "the last message of a reason");
    let series = json!({"metadata": {}, "involvedObject": {}, "reason": "NetworkNotReady", "message": "m",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:10.000000Z"}});
    assert_eq!(of(&[series, event("FailedMount", "m", 60)]), Some(warning("NetworkNotReady", "m")));
}
