//! Clients that mean harm, and others that must not notice.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::{Api, Client, Error};
use rustix::process::{Resource, Rlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::server::Server;

/// Sooner than the server loses patience with those who hang.
const SOON: Duration = Duration::from_secs(15);
/// More than a server of many has files for, unless it asks.
const CONNECTIONS: u64 = 3000;
/// Clients that come at the same time.
const COMERS: usize = 600;
const DEAF: usize = 20;
const CHANGES: usize = 300;
const LARGE: usize = 100 << 10;
/// All that the deaf did not read would be more than 1 GiB.
const MOST_MEMORY: u64 = 512 << 20;

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

fn map(name: &str, text: String) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("text".to_owned(), text)])),
        ..ConfigMap::default()
    }
}

/// A client that comes anew is served.
async fn others_are_served(server: &Server) {
    let namespaces: Api<Namespace> = Api::all(server.client().await);
    let list = tokio::time::timeout(SOON, async { namespaces.list(&ListParams::default()).await });
    assert!(!list.await.expect("an answer in time").unwrap().items.is_empty());
}

/// As after a restart of the server.
#[tokio::test]
async fn hundreds_who_come_at_once_are_all_let_in() {
    let server = Server::start();
    let mut clients = Vec::new();
    for _ in 0..COMERS {
        clients.push(server.client().await);
    }
    let come = clients.iter().map(|client| async move {
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        maps.watch(&WatchParams::default(), "0").await.map(drop)
    });
    for come in futures_util::future::join_all(come).await {
        come.unwrap();
    }
}

#[tokio::test]
async fn silent_connections_do_not_keep_clients_out() {
    let server = Server::start();
    let files = rustix::process::getrlimit(Resource::Nofile);
    let more = Rlimit { current: Some(CONNECTIONS + 200), maximum: files.maximum };
    rustix::process::setrlimit(Resource::Nofile, more).expect("as many connections as it takes");
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS {
        silent.push(TcpStream::connect(server.address()).await.unwrap());
    }
    others_are_served(&server).await;
}

#[tokio::test]
async fn a_wrong_token_is_401() {
    let server = Server::start();
    let client = server.client_with_token("wrong").await;
    let namespaces: Api<Namespace> = Api::all(client);
    let refused = namespaces.list(&ListParams::default()).await;
    assert!(matches!(&refused, Err(Error::Api(status)) if status.code == 401), "{refused:?}");
}

#[tokio::test]
async fn bodies_that_never_end_do_not_keep_others_waiting() {
    let server = Server::start();
    let begin = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: here\r\n\
        content-type: application/json\r\ncontent-length: 1000\r\n\r\n{";
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut stream = server.stream().await;
        stream.write_all(begin.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        slow.push(stream);
    }
    others_are_served(&server).await;
}

/// What a client is answered that sends all of a body before it reads.
async fn answer_to(server: &Server, head: &str, body: &[u8]) -> String {
    let mut stream = server.stream().await;
    let head = format!("POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: here\r\n{head}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.expect("the server reads on");
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer, and the end of the connection");
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413_for_those_who_send_all_of_it() {
    const TWELVE_MB: usize = 12_000_000;
    let server = Server::start();
    let body = vec![b'x'; TWELVE_MB];
    let length = format!("content-type: application/json\r\ncontent-length: {TWELVE_MB}\r\n");
    let chunked: Vec<u8> = [format!("{TWELVE_MB:x}\r\n").as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    let waiting = format!("{length}expect: 100-continue\r\n");
    let encoding = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
    for (head, body) in
        [(length.as_str(), &body), (&waiting, &Vec::new()), (&waiting, &body), (encoding, &chunked)]
    {
        let answer = answer_to(&server, head, body).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{head}: {answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{head}: {answer}");
        assert!(answer.ends_with('}') && answer.contains("limit is 3145728"), "{head}: {answer}");
    }
    // What is refused for another reason is not read either.
    let wrong = format!("{length}impersonate-user: \r\nimpersonate-group: nobody\r\n");
    let answer = answer_to(&server, &wrong, &body).await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}

#[tokio::test]
async fn watchers_that_never_read_cost_little() {
    let server = Server::start();
    let client = server.client().await;
    let made = maps(&client).create(&PostParams::default(), &map("large", String::new())).await.unwrap();
    let version = made.metadata.resource_version.unwrap();
    let mut deaf = Vec::new();
    for _ in 0..DEAF {
        let maps = maps(&server.client().await);
        deaf.push(maps.watch(&WatchParams::default(), &version).await.unwrap());
    }
    for change in 0..CHANGES {
        let text = change.to_string().repeat(LARGE);
        let patch = Patch::Merge(json!({"data": {"text": text}}));
        maps(&client).patch("large", &PatchParams::default(), &patch).await.unwrap();
    }
    others_are_served(&server).await;
    assert!(server.memory() < MOST_MEMORY, "{} bytes", server.memory());
    drop(deaf);
}
