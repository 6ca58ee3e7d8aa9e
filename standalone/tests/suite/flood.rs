//! Users who make more requests than they may have in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::server::Server;

/// More requests than a user may have in flight.
const FLOOD: usize = 200;
/// Requests of others meanwhile.
const ROUNDS: usize = 10;
/// A list of these takes the server a while, and its response is small.
const LARGE: usize = 900 << 10;
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps?includeObject=None";
const SOON: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(100);

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

async fn prepare(admin: &Client) {
    let bindings: Api<ClusterRoleBinding> = Api::all(admin.clone());
    let kind = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    let ((role, view), (group, readers)) = (kind("ClusterRole", "view"), kind("Group", "readers"));
    let api_group = "rbac.authorization.k8s.io".to_owned();
    let binding = ClusterRoleBinding {
        metadata: named("readers"),
        role_ref: RoleRef { api_group: api_group.clone(), kind: role, name: view },
        subjects: Some(vec![Subject {
            api_group: Some(api_group),
            kind: group,
            name: readers,
            ..Subject::default()
        }]),
    };
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(admin.clone());
    for (name, length) in [("a", LARGE), ("b", LARGE), ("c", LARGE), ("small", 1)] {
        let data = Some(BTreeMap::from([("text".to_owned(), "x".repeat(length))]));
        let map = ConfigMap { metadata: named(name), data, ..ConfigMap::default() };
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
}

/// Lists without an end, and counts how often that is rejected, in the form that clients of Kubernetes wait for. kube's client
/// would wait before it tries again.
async fn flood(mut stream: TlsStream<TcpStream>, rejected: Arc<AtomicUsize>) {
    let request = format!("GET {MAPS} HTTP/1.1\r\nhost: here\r\naccept: {TABLE}\r\n\r\n");
    loop {
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let (head, body) = response(&mut stream).await;
        if head.starts_with("HTTP/1.1 429 ") {
            assert!(head.contains("\r\nretry-after: 1\r\n"), "{head}");
            let status: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((&status["kind"], &status["reason"]), (&"Status".into(), &"TooManyRequests".into()));
            assert_eq!(status["details"]["retryAfterSeconds"], 1);
            rejected.fetch_add(1, Ordering::Relaxed);
        } else {
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        }
    }
}

/// A head and its body.
async fn response(stream: &mut TlsStream<TcpStream>) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase().replace("http/1.1", "HTTP/1.1");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    (head, body)
}

async fn reads(client: &Client) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let read = tokio::time::timeout(SOON, maps.get("small")).await;
    read.expect("an answer in time").unwrap();
}

#[tokio::test]
async fn a_flood_of_one_user_leaves_another_one_and_the_system_answered() {
    let server = Server::start();
    let admin = server.client().await;
    prepare(&admin).await;
    let flooding = server.config_with_certificate("mallory", "readers").await;
    let other = server.client_with_certificate("alice", "readers").await;
    let rejected = Arc::new(AtomicUsize::new(0));
    let mut floods = tokio::task::JoinSet::new();
    for _ in 0..FLOOD {
        floods.spawn(flood(server.stream_of(flooding.clone()).await, Arc::clone(&rejected)));
    }
    let others = async {
        let mut rounds = 0;
        while rounds < ROUNDS || rejected.load(Ordering::Relaxed) == 0 {
            reads(&other).await;
            reads(&admin).await;
            rounds += 1;
        }
    };
    tokio::select! {
        done = tokio::time::timeout(LIMIT, others) => done.expect("requests of the flood are rejected"),
        ended = floods.join_next() => panic!("a flood ended: {ended:?}"),
    }
    // The rejections are counted, and all of them are of users.
    let metrics = admin.request_text(Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap();
    let of = |level: &str| {
        let name = format!("apiserver_flowcontrol_rejected_requests_total{{priority_level=\"{level}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse::<u64>().unwrap()
    };
    assert!(of("users") > 0);
    assert_eq!((of("system"), of("unauthenticated")), (0, 0));
}
