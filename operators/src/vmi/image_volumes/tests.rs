//! Against an HTTP server in the place of kube-apiserver: one with image volumes is not available on every host.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use kube::runtime::watcher;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use vireo_client::Kind;

use super::*;

/// What a server does with a Pod that has an image volume.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Keeps,
    /// It knows no such field: a volume without a source is an empty directory.
    TakesForEmpty,
    /// The feature is disabled.
    Drops,
    Refuses(u16),
}

/// A server that counts how often it was asked.
struct Server {
    version: Mutex<&'static str>,
    answer: Mutex<Answer>,
    asked: AtomicUsize,
}

type Shared = Arc<Server>;

async fn create(
    State(server): State<Shared>,
    RawQuery(query): RawQuery,
    Json(mut pod): Json<Value>,
) -> (StatusCode, Json<Value>) {
    assert!(query.is_some_and(|query| query.contains("dryRun=All")), "nothing is stored");
    assert_eq!(pod["spec"]["volumes"][0]["image"]["reference"], pod["spec"]["containers"][0]["image"]);
    server.asked.fetch_add(1, Ordering::SeqCst);
    match *server.answer.lock().unwrap() {
        Answer::Keeps => {}
        Answer::TakesForEmpty => pod["spec"]["volumes"][0] = json!({"name": "image", "emptyDir": {}}),
        Answer::Drops => pod["spec"]["volumes"] = json!([]),
        Answer::Refuses(code) => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                "reason": "Forbidden", "message": "violates PodSecurity"});
            return (StatusCode::from_u16(code).unwrap(), Json(status));
        }
    }
    (StatusCode::CREATED, Json(pod))
}

async fn version(State(server): State<Shared>) -> Json<Value> {
    let version = *server.version.lock().unwrap();
    Json(json!({"major": "1", "minor": "35", "gitVersion": version, "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}))
}

impl Server {
    /// A server that runs as long as the test, and image volumes of its cluster.
    async fn start(answer: Answer) -> (Shared, ImageVolumes) {
        let answer = Mutex::new(answer);
        let server = Arc::new(Self { version: Mutex::new("v1.35.0"), answer, asked: AtomicUsize::new(0) });
        let router = Router::new()
            .route("/version", get(version))
            .route("/api/v1/namespaces/kubevirt/pods", post(create))
            .with_state(Arc::clone(&server));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let nodes = Informer::new(Kind::NODE.all(&client), watcher::Config::default(), Node::read);
        (server, ImageVolumes::new(client, nodes))
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn served(volumes: &ImageVolumes) -> Option<bool> {
    *volumes.served.borrow()
}

#[tokio::test]
async fn a_server_has_image_volumes_if_it_keeps_one() {
    for (answer, expected) in [
        (Answer::Keeps, true),
        (Answer::TakesForEmpty, false),
        (Answer::Drops, false),
        (Answer::Refuses(403), false),
        (Answer::Refuses(422), false),
    ] {
        let (_server, volumes) = Server::start(answer).await;
        assert_eq!(served(&volumes), None);
        volumes.ask(&mut None).await.unwrap();
        assert_eq!(served(&volumes), Some(expected), "{answer:?}");
        assert_eq!(volumes.delivery(), ImageDelivery::Containers, "no node is known to mount images");
    }
}

#[tokio::test]
async fn a_server_is_asked_again_when_it_is_of_another_version() {
    let (server, volumes) = Server::start(Answer::Drops).await;
    let mut answered = None;
    for _ in 0..3 {
        volumes.ask(&mut answered).await.unwrap();
    }
    assert_eq!((server.asked(), served(&volumes)), (1, Some(false)));
    *server.answer.lock().unwrap() = Answer::Keeps;
    *server.version.lock().unwrap() = "v1.36.1";
    volumes.ask(&mut answered).await.unwrap();
    assert_eq!((server.asked(), served(&volumes)), (2, Some(true)));
}

#[tokio::test]
async fn a_server_that_fails_is_asked_again() {
    let (server, volumes) = Server::start(Answer::Refuses(500)).await;
    let mut answered = None;
    assert!(volumes.ask(&mut answered).await.is_err());
    assert_eq!((answered.as_deref(), served(&volumes)), (None, None));
    tokio::select! {
        () = volumes.run() => {}
        () = volumes.synced() => {}
    }
    assert_eq!(served(&volumes), Some(false), "the controller does not wait for it");
    *server.answer.lock().unwrap() = Answer::Keeps;
    volumes.ask(&mut answered).await.unwrap();
    assert_eq!(served(&volumes), Some(true));
}

#[tokio::test]
async fn images_are_volumes_if_all_nodes_of_instances_mount_them() {
    let (_server, volumes) = Server::start(Answer::Keeps).await;
    volumes.ask(&mut None).await.unwrap();
    let node = |kubelet: &str, schedulable: &str| {
        let info = json!({"kubeletVersion": kubelet, "containerRuntimeVersion": "containerd://2.1.4"});
        let labels = json!({"kubevirt.io/schedulable": schedulable});
        Node::read(json!({"metadata": {"labels": labels}, "status": {"nodeInfo": info}})).unwrap()
    };
    let (new, old, other) = (node("v1.35.1", "true"), node("v1.34.3", "true"), node("v1.30.0", "false"));
    for (nodes, expected) in [
        (vec![], ImageDelivery::Containers),
        (vec![&other], ImageDelivery::Containers),
        (vec![&new, &other], ImageDelivery::Volumes),
        (vec![&new, &old], ImageDelivery::Containers),
    ] {
        assert_eq!(volumes.delivery_to(nodes.into_iter()), expected);
    }
}
