//! The real `virtctl` against a handler's endpoint played by the test.

use std::process::{Output, Stdio};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

const PATIENCE: Duration = Duration::from_secs(30);

struct Handler {
    state: TempDir,
    listener: UnixListener,
}

impl Handler {
    fn start() -> Self {
        let state = tempfile::tempdir().expect("a scratch directory");
        let listener = UnixListener::bind(state.path().join("handler.sock")).expect("a socket");
        Self { state, listener }
    }

    fn console(&self, name: &str) -> Child {
        virtctl(&self.state, &["console", name, "-n", "prod"])
    }

    async fn accept(&self) -> UnixStream {
        let accepted = tokio::time::timeout(PATIENCE, self.listener.accept()).await;
        accepted.expect("virtctl connects").expect("a connection").0
    }

    /// Answers one plain request and returns its first line.
    async fn answer(&self, status: &str, body: &str) -> String {
        let mut stream = self.accept().await;
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.expect("a whole request"));
        }
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}");
        let answer = format!("{head}\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.expect("virtctl reads");
        String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned()
    }

    async fn websocket(&self) -> WebSocketStream<UnixStream> {
        #[expect(clippy::result_large_err, reason = "the signature is tungstenite's")]
        fn check(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
            let path = "/v1/namespaces/prod/virtualmachineinstances/web/console";
            assert_eq!(request.uri().path(), path);
            assert_eq!(request.headers()["sec-websocket-protocol"], "plain.kubevirt.io");
            let chosen = HeaderValue::from_static("plain.kubevirt.io");
            response.headers_mut().insert("sec-websocket-protocol", chosen);
            Ok(response)
        }
        accept_hdr_async(self.accept().await, check).await.expect("a handshake")
    }
}

fn virtctl(state: &TempDir, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_virtctl"))
        .arg("--state-dir")
        .arg(state.path())
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("virtctl starts")
}

async fn finish(child: Child) -> Output {
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    output.expect("virtctl ends").expect("its output")
}

#[tokio::test]
async fn keys_and_output_pass_after_the_instance_runs() {
    let handler = Handler::start();
    let mut child = handler.console("web");
    let first = handler.answer("200 OK", r#"{"status":{"phase":"Scheduled"}}"#).await;
    assert_eq!(first, "GET /apis/kubevirt.io/v1/namespaces/prod/virtualmachineinstances/web HTTP/1.1");
    handler.answer("200 OK", r#"{"status":{"phase":"Running"}}"#).await;
    let mut guest = handler.websocket().await;
    guest.send(Message::binary("login: ")).await.expect("virtctl reads");
    let mut keys = child.stdin.take().expect("its stdin");
    keys.write_all(b"root\n").await.expect("virtctl reads");
    // The end of a pipe is not the end of the session.
    drop(keys);
    let typed = guest.next().await.expect("keys").expect("a frame");
    assert_eq!(typed, Message::binary("root\n"));
    guest.send(Message::binary("welcome")).await.expect("virtctl is still there");
    guest.close(None).await.expect("virtctl is still there");
    let output = finish(child).await;
    assert!(output.status.success());
    assert_eq!(output.stdout, b"login: welcome");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Successfully connected to web console. Press Ctrl+] or Ctrl+5 to exit console."));
}

#[tokio::test]
async fn the_escape_leaves_though_the_guest_reads_nothing() {
    let handler = Handler::start();
    let mut child = handler.console("web");
    handler.answer("200 OK", r#"{"status":{"phase":"Running"}}"#).await;
    let _guest = handler.websocket().await;
    let mut keys = child.stdin.take().expect("its stdin");
    keys.write_all(b"\x1d").await.expect("virtctl reads");
    assert!(finish(child).await.status.success());
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    let handler = Handler::start();
    let child = handler.console("web");
    let status = r#"{"kind":"Status","message":"virtualmachineinstances \"web\" not found","code":404}"#;
    handler.answer("404 Not Found", status).await;
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("\"web\" not found"));

    let child = handler.console("web");
    handler.answer("200 OK", r#"{"status":{"phase":"Failed"}}"#).await;
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is Failed"));

    let nobody = tempfile::tempdir().expect("a scratch directory");
    let output = finish(virtctl(&nobody, &["console", "web"])).await;
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("handler.sock") && said.contains("--state-dir"), "{said}");
}
