//! An API server, played by the test, and the real `virtctl` before it, by way of what kubeconfigs and flags say.

use std::process::Stdio;

use futures_util::SinkExt as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;

use crate::handler::{TIMEOUT, finish};

struct Server {
    home: TempDir,
    listener: TcpListener,
}

impl Server {
    async fn start() -> Self {
        let home = tempfile::tempdir().expect("a scratch directory");
        Self { home, listener: TcpListener::bind("127.0.0.1:0").await.expect("a port") }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().expect("a port").port()
    }

    /// Writes a kubeconfig whose current context is of this cluster and this user.
    fn kubeconfig(&self, cluster: &str, user: &str) {
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u, namespace: prod}}}}]\nclusters: [{{name: c, cluster: {cluster}}}]\nusers: [{{name: u, user: {user}}}]\n"
        );
        std::fs::write(self.home.path().join("config"), text).expect("a kubeconfig");
    }

    fn here(&self) -> String {
        format!("{{server: 'http://127.0.0.1:{}'}}", self.port())
    }

    fn virtctl(&self, line: &str) -> Child {
        Command::new(env!("CARGO_BIN_EXE_virtctl"))
            .args(line.split(' '))
            .env_clear()
            .env("KUBECONFIG", self.home.path().join("config"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("virtctl starts")
    }

    async fn accept(&self) -> TcpStream {
        let accepted = tokio::time::timeout(TIMEOUT, self.listener.accept()).await;
        accepted.expect("virtctl connects").expect("a connection").0
    }

    /// Lets a request in, and returns all of it.
    async fn answer(&self) -> String {
        answer(&mut self.accept().await, "200 OK", "{}").await
    }
}

/// A request up to its body.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a whole request"));
    }
    String::from_utf8_lossy(&head).into_owned()
}

async fn answer(stream: &mut TcpStream, status: &str, body: &str) -> String {
    let head = head(stream).await;
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).await.expect("virtctl reads");
    head.to_lowercase()
}

fn has(head: &str, lines: &[&str]) {
    for line in lines {
        assert!(head.contains(&format!("{line}\r\n")), "{line} is missing in:\n{head}");
    }
}

#[tokio::test]
async fn kubectls_flags_say_who_one_is() {
    let server = Server::start().await;
    server.kubeconfig(&server.here(), "{token: t, as: adam}");
    let child = server.virtctl("start web");
    let start = "put /apis/subresources.kubevirt.io/v1/namespaces/prod/virtualmachines/web/start http/1.1";
    has(&server.answer().await, &[start, "authorization: bearer t", "impersonate-user: adam"]);
    assert!(finish(child).await.status.success());

    let child = server.virtctl("--token other --as eve --as-group g --as-group h stop web -n test");
    let stop = "put /apis/subresources.kubevirt.io/v1/namespaces/test/virtualmachines/web/stop http/1.1";
    let lines = [stop, "authorization: bearer other", "impersonate-user: eve", "impersonate-group: g"];
    let head = server.answer().await;
    has(&head, &lines);
    has(&head, &["impersonate-group: h"]);
    assert!(finish(child).await.status.success());
}

#[tokio::test]
async fn a_credential_plugin_is_asked() {
    use std::os::unix::fs::PermissionsExt as _;

    let server = Server::start().await;
    let plugin = server.home.path().join("plugin");
    let credential =
        r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}"#;
    let script = format!("#!/bin/sh\nprintf '{credential}' \"$WORD\"\n");
    std::fs::write(&plugin, script).expect("a plugin");
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o700)).expect("a plugin that runs");
    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never, env: [{name: WORD, value: told}]}}";
    server.kubeconfig(&server.here(), exec);
    let child = server.virtctl("start web");
    has(&server.answer().await, &["authorization: bearer told"]);
    assert!(finish(child).await.status.success());
    // Who shows a token need not ask for one.
    let child = server.virtctl("start web --token mine");
    has(&server.answer().await, &["authorization: bearer mine"]);
    assert!(finish(child).await.status.success());
}

#[tokio::test]
async fn a_server_behind_an_http_proxy_is_reached() {
    let server = Server::start().await;
    let cluster = format!(
        "{{server: 'http://api.example:8080', proxy-url: 'http://me:se%40cret@127.0.0.1:{}'}}",
        server.port()
    );
    server.kubeconfig(&cluster, "{token: t}");
    let child = server.virtctl("start web");
    let mut proxy = server.accept().await;
    let tunnel = head(&mut proxy).await;
    assert!(tunnel.starts_with("CONNECT api.example:8080 HTTP/1.1\r\n"), "{tunnel}");
    assert!(tunnel.to_lowercase().contains("proxy-authorization: basic"), "{tunnel}");
    assert!(tunnel.contains("bWU6c2VAY3JldA=="), "me:se@cret, in base64: {tunnel}");
    proxy.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("virtctl reads");
    has(&answer(&mut proxy, "200 OK", "{}").await, &["authorization: bearer t"]);
    assert!(finish(child).await.status.success());
}

#[tokio::test]
async fn a_server_behind_a_socks_proxy_is_reached() {
    let server = Server::start().await;
    let cluster =
        format!("{{server: 'http://api.example:8080', proxy-url: 'socks5://127.0.0.1:{}'}}", server.port());
    server.kubeconfig(&cluster, "{token: t}");
    let child = server.virtctl("start web");
    let mut proxy = server.accept().await;
    // RFC 1928: the methods, none of which asks who one is; then a name and a port to connect to.
    assert_eq!(proxy.read_u8().await.expect("a version"), 5);
    let methods = proxy.read_u8().await.expect("their number");
    proxy.read_exact(&mut vec![0; methods.into()]).await.expect("methods");
    proxy.write_all(&[5, 0]).await.expect("virtctl reads");
    let mut asked = vec![0; 4 + 1 + "api.example".len() + 2];
    proxy.read_exact(&mut asked).await.expect("a request");
    assert_eq!(asked, [&[5, 1, 0, 3, 11], "api.example".as_bytes(), &8080_u16.to_be_bytes()].concat());
    proxy.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.expect("virtctl reads");
    has(&answer(&mut proxy, "200 OK", "{}").await, &["authorization: bearer t"]);
    assert!(finish(child).await.status.success());
}

#[tokio::test]
async fn streams_are_opened_as_requests_are() {
    let server = Server::start().await;
    server.kubeconfig(&server.here(), "{token: t, as: adam}");
    let child = server.virtctl("console web");
    let running = r#"{"status":{"phase":"Running"}}"#;
    answer(&mut server.accept().await, "200 OK", running).await;
    #[expect(clippy::result_large_err, reason = "the signature is tungstenite's")]
    let check = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
        let path = "/apis/subresources.kubevirt.io/v1/namespaces/prod/virtualmachineinstances/web/console";
        assert_eq!(request.uri().path(), path);
        assert_eq!(request.headers()["authorization"], "Bearer t");
        assert_eq!(request.headers()["impersonate-user"], "adam");
        let chosen = HeaderValue::from_static("plain.kubevirt.io");
        response.headers_mut().insert("sec-websocket-protocol", chosen);
        Ok(response)
    };
    let mut guest = accept_hdr_async(server.accept().await, check).await.expect("a handshake");
    guest.send(Message::binary("login: ")).await.expect("virtctl reads");
    guest.close(None).await.expect("virtctl is still there");
    let output = finish(child).await;
    assert!(output.status.success());
    assert_eq!(output.stdout, b"login: ");

    let child = server.virtctl("port-forward --stdio vmi/web 22");
    let rejection = r#"{"kind":"Status","message":"VMI is not running","code":400}"#;
    answer(&mut server.accept().await, "400 Bad Request", rejection).await;
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("VMI is not running"));
}

#[tokio::test]
async fn servers_that_are_absent_or_silent_are_reported() {
    let server = Server::start().await;
    server.kubeconfig(&server.here(), "{token: t}");
    let child = server.virtctl("--request-timeout 50ms start web");
    let _deaf = server.accept().await;
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("does not answer within 50ms"));

    let output = finish(server.virtctl("--server http://127.0.0.1:1 start web")).await;
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot connect to http://127.0.0.1:1"), "{said}");
}

#[tokio::test]
async fn a_handler_takes_no_credentials() {
    let output = Command::new(env!("CARGO_BIN_EXE_virtctl"))
        .args(["--as", "eve", "guestosinfo", "web"])
        .env_clear()
        .output()
        .await
        .expect("virtctl runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("virt-handler has no users, so --as needs a server"), "{said}");
}
