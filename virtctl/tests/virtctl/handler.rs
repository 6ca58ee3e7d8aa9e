//! A handler's endpoint, played by the test, and the real `virtctl` before it.

use std::process::{Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

/// How long a step of a test may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Handler {
    pub(crate) state: TempDir,
    listener: UnixListener,
}

impl Handler {
    pub(crate) fn start() -> Self {
        let state = tempfile::tempdir().expect("a scratch directory");
        let listener = UnixListener::bind(state.path().join("handler.sock")).expect("a socket");
        Self { state, listener }
    }

    pub(crate) async fn accept(&self) -> UnixStream {
        let accepted = tokio::time::timeout(TIMEOUT, self.listener.accept()).await;
        accepted.expect("virtctl connects").expect("a connection").0
    }

    /// Answers one request without a stream, and returns its first line.
    pub(crate) async fn answer(&self, status: &str, body: &str) -> String {
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

    /// Accepts a stream of the instance `prod/web`: `console`, `vnc` or `usbredir`.
    pub(crate) async fn websocket(&self, kind: &str) -> WebSocketStream<UnixStream> {
        #[expect(clippy::result_large_err, reason = "the signature is tungstenite's")]
        let check = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
            let path = format!("/v1/namespaces/prod/virtualmachineinstances/web/{kind}");
            assert_eq!(request.uri().path_and_query().map(ToString::to_string), Some(path));
            assert_eq!(request.headers()["sec-websocket-protocol"], "plain.kubevirt.io");
            let chosen = HeaderValue::from_static("plain.kubevirt.io");
            response.headers_mut().insert("sec-websocket-protocol", chosen);
            Ok(response)
        };
        accept_hdr_async(self.accept().await, check).await.expect("a handshake")
    }
}

pub(crate) fn virtctl(state: &TempDir, args: &[&str]) -> Child {
    command(state, args).spawn().expect("virtctl starts")
}

pub(crate) fn command(state: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtctl"));
    command
        .arg("--state-dir")
        .arg(state.path())
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

pub(crate) async fn finish(child: Child) -> Output {
    let output = tokio::time::timeout(TIMEOUT, child.wait_with_output()).await;
    output.expect("virtctl ends").expect("its output")
}
