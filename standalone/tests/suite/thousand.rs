//! A thousand connections of each hostile kind: others are served meanwhile, memory is bounded, and the connections end.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{ListParams, PostParams};
use rustix::process::{Resource, Rlimit};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::server::Server;

const CONNECTIONS: usize = 1000;
/// Bytes of an answer that is not read.
const LARGE: usize = 600 << 10;
/// How many of them a client requests that reads none: more than the kernel holds for it.
const UNREAD: usize = 20;
/// Of an answer to a client that does no harm.
const SOON: Duration = Duration::from_secs(15);
/// Of the server's clients: a fifth of what they have otherwise, so that the tests end soon.
const TIMEOUTS: &[&str] = &["--client-timeout", "4"];
/// All connections have ended: on a quiet machine, 4 s for what is no request, 6 s for a body and as much after the answer,
/// 12 s for an answer.
const END: Duration = Duration::from_secs(100);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(100);
/// More than the server has at first.
const MOST_MEMORY: u64 = 400 << 20;
/// Of a client that is slow.
const PAUSE: Duration = Duration::from_secs(1);
const POST: &str =
    "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n";

/// How often a client sends on after the beginning of an answer. The server reads on for a while, which has a test in
/// vireo-apiserver.
const AFTER: usize = 16;

/// A connection of any kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// What a client does once it is connected.
#[derive(Clone, Copy)]
enum Conduct {
    /// Sends this, and waits.
    Once(&'static [u8]),
    /// Sends the first, and then the second again and again, with pauses.
    Slowly(&'static [u8], &'static [u8]),
    /// The same as fast as it can, and a little after the answer.
    Fast(&'static [u8], &'static [u8]),
    /// Sends this at once, and reads nothing.
    Unread(&'static [u8]),
}

/// Until the server ends the connection. What it answered, from the beginning.
async fn conduct(mut stream: Box<dyn Stream>, conduct: Conduct) -> Vec<u8> {
    let (first, more, pause) = match conduct {
        Conduct::Once(first) | Conduct::Unread(first) => (first, None, None),
        Conduct::Slowly(first, more) => (first, Some(more), Some(PAUSE)),
        Conduct::Fast(first, more) => (first, Some(more), Some(Duration::ZERO)),
    };
    let (mut answer, mut left) = (Vec::new(), AFTER);
    // The server may end it at any time.
    let mut open = stream.write_all(first).await.is_ok() && stream.flush().await.is_ok();
    while let (true, Some(more), 1..) = (open, more, left) {
        if let Some(pause) = pause {
            // Being slow is what some do; they wait for an answer meanwhile.
            let mut chunk = [0; 1024];
            match tokio::time::timeout(pause, stream.read(&mut chunk)).await {
                Ok(Ok(read)) if read > 0 => answer.extend(chunk.get(..read).unwrap_or_default()),
                Ok(_) => return answer,
                Err(_) => {}
            }
            left -= usize::from(!answer.is_empty());
        }
        open = stream.write_all(more).await.is_ok() && stream.flush().await.is_ok();
        // The others of this thread go on, too.
        tokio::task::yield_now().await;
    }
    if matches!(conduct, Conduct::Unread(_)) {
        // Its end is seen by reading alone.
        return std::future::pending().await;
    }
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

/// Who connects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    /// By TCP alone.
    Plain,
    /// By TLS, without credentials.
    Unauthenticated,
    /// With an administrator's certificate.
    Administrator,
}

async fn connect(server: &Server, client: Client) -> Box<dyn Stream> {
    match client {
        Client::Plain => Box::new(TcpStream::connect(server.address()).await.unwrap()),
        Client::Unauthenticated => Box::new(server.unauthenticated_stream().await),
        Client::Administrator => Box::new(server.stream().await),
    }
}

/// What all of them were answered, without those that were answered nothing.
async fn all(client: Client, conduct: Conduct) -> Vec<Vec<u8>> {
    let files = rustix::process::getrlimit(Resource::Nofile);
    let more = Rlimit { current: Some(CONNECTIONS as u64 + 200), maximum: files.maximum };
    rustix::process::setrlimit(Resource::Nofile, more).expect("as many connections as it takes");
    let server = Server::start_with(TIMEOUTS);
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    maps.create(&PostParams::default(), &large()).await.unwrap();
    drop(maps);
    let (before, idle) = (server.memory(), server.sockets());
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let stream = connect(&server, client).await;
        clients.spawn(self::conduct(stream, conduct));
    }
    let mut most = 0;
    // While they are there, and as they go.
    for _ in 0..5 {
        let namespaces: Api<Namespace> = Api::all(server.client().await);
        let begin = Instant::now();
        let list = tokio::time::timeout(SOON, async { namespaces.list(&ListParams::default()).await });
        assert!(!list.await.expect("an answer in time").unwrap().items.is_empty());
        most = most.max(server.memory());
        eprintln!(
            "{} connections left, others wait {:?}, {} MiB",
            clients.len(),
            begin.elapsed(),
            most >> 20
        );
    }
    let all_end = async {
        while server.sockets() > idle {
            most = most.max(server.memory());
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(END, all_end).await.expect("the server ends all connections");
    assert!(most < before + MOST_MEMORY, "from {before} to {most} bytes");
    if matches!(conduct, Conduct::Unread(_)) {
        return Vec::new();
    }
    let ended = tokio::time::timeout(END, clients.join_all()).await.expect("the clients see it");
    ended.into_iter().filter(|answer| !answer.is_empty()).collect()
}

fn large() -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some("large".to_owned()), ..ObjectMeta::default() },
        data: Some([("text".to_owned(), "x".repeat(LARGE))].into()),
        ..ConfigMap::default()
    }
}

/// For as long as the test runs.
fn leak(text: String) -> &'static [u8] {
    Box::leak(text.into_bytes().into())
}

fn all_begin(answers: &[Vec<u8>], status: &str) {
    let wrong = answers.iter().find(|answer| !answer.starts_with(status.as_bytes()));
    assert!(wrong.is_none(), "{status}: {}", String::from_utf8_lossy(wrong.unwrap()));
    assert!(!answers.is_empty(), "{status}");
}

#[tokio::test]
async fn silent_connections_end() {
    assert!(all(Client::Plain, Conduct::Once(b"")).await.is_empty());
}

#[tokio::test]
async fn tls_handshakes_that_are_never_finished_end() {
    // The beginning of a ClientHello of 512 bytes.
    all(Client::Plain, Conduct::Slowly(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00")).await;
}

#[tokio::test]
async fn slow_heads_end() {
    all(Client::Unauthenticated, Conduct::Slowly(b"GET /version HTTP/1.1\r\nhost: here\r\nx: ", b"x")).await;
}

#[tokio::test]
async fn heads_that_never_end_are_cut_off() {
    let answers = all(
        Client::Unauthenticated,
        Conduct::Fast(b"GET /version HTTP/1.1\r\nhost: here\r\nx: ", &[b'x'; 4096]),
    )
    .await;
    all_begin(&answers, "HTTP/1.1 431 ");
}

#[tokio::test]
async fn slow_bodies_end() {
    let head = leak(format!("{POST}content-length: 1000000\r\n\r\n{{"));
    let answers = all(Client::Administrator, Conduct::Slowly(head, b" ")).await;
    all_begin(&answers, "HTTP/1.1 408 ");
}

#[tokio::test]
async fn chunks_that_never_end_are_cut_off() {
    let head = leak(format!("{POST}transfer-encoding: chunked\r\n\r\n"));
    let chunk = leak(format!("4000\r\n{:width$}\r\n", 0, width = 0x4000));
    let answers = all(Client::Administrator, Conduct::Fast(head, chunk)).await;
    // Too large, no room for all of them at once, or, on a busy machine, too slow.
    let statuses = ["HTTP/1.1 413 ", "HTTP/1.1 429 ", "HTTP/1.1 408 "];
    let other =
        answers.iter().find(|answer| !statuses.iter().any(|status| answer.starts_with(status.as_bytes())));
    assert!(other.is_none(), "{}", String::from_utf8_lossy(other.unwrap()));
    assert!(!answers.is_empty(), "no connection was answered");
}

#[tokio::test]
async fn compressed_bodies_are_not_unpacked() {
    // A gzip of 1 GiB of zeros would be as small; what is behind its first bytes does not matter.
    let head =
        leak(format!("{POST}content-encoding: gzip\r\ncontent-length: 20\r\nconnection: close\r\n\r\n"));
    let body =
        [head, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xed\xc1\x01\x01\x00\x00\x00\x80\x90"].concat();
    let answers = all(Client::Administrator, Conduct::Once(Box::leak(body.into()))).await;
    assert_eq!(answers.len(), CONNECTIONS);
    all_begin(&answers, "HTTP/1.1 4");
}

#[tokio::test]
async fn connections_whose_answers_are_never_read_end() {
    let request = "GET /api/v1/namespaces/default/configmaps/large HTTP/1.1\r\nhost: here\r\n\r\n";
    all(Client::Administrator, Conduct::Unread(leak(request.repeat(UNREAD)))).await;
}
