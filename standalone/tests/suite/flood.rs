//! Users who make more requests than they may have in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::Value;

use crate::server::Server;

/// More requests than a user may have in flight.
const FLOOD: usize = 300;
/// Requests of others meanwhile.
const ROUNDS: usize = 20;
/// A list of these takes a while.
const LARGE: usize = 900 << 10;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SOON: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(120);

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

/// Lists without an end, and counts how often that is rejected, in the form that clients of Kubernetes wait for.
async fn flood(client: Client, rejected: Arc<AtomicUsize>) {
    loop {
        let request = Request::get(MAPS).body(Body::empty()).unwrap();
        let response = client.send(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        if head.status == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(head.headers["retry-after"], "1");
            let status: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((&status["kind"], &status["reason"]), (&"Status".into(), &"TooManyRequests".into()));
            assert_eq!(status["details"]["retryAfterSeconds"], 1);
            rejected.fetch_add(1, Ordering::Relaxed);
        } else {
            assert_eq!(head.status, StatusCode::OK);
        }
    }
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
    let flooding = server.client_with_certificate("mallory", "readers").await;
    let other = server.client_with_certificate("alice", "readers").await;
    let rejected = Arc::new(AtomicUsize::new(0));
    let mut floods = tokio::task::JoinSet::new();
    for _ in 0..FLOOD {
        floods.spawn(flood(flooding.clone(), Arc::clone(&rejected)));
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
