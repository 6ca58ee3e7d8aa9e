use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;
use tokio_tungstenite::tungstenite::Message;

use crate::handler::{Handler, finish, virtctl};

fn console(handler: &Handler) -> Child {
    virtctl(&handler.state, &["console", "web", "-n", "prod"])
}

#[tokio::test]
async fn keys_and_output_pass_after_the_instance_runs() {
    let handler = Handler::start();
    let mut child = console(&handler);
    let first = handler.answer("200 OK", r#"{"status":{"phase":"Scheduled"}}"#).await;
    assert_eq!(first, "GET /apis/kubevirt.io/v1/namespaces/prod/virtualmachineinstances/web HTTP/1.1");
    handler.answer("200 OK", r#"{"status":{"phase":"Running"}}"#).await;
    let mut guest = handler.websocket("console").await;
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
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("Successfully connected to web console. Press Ctrl+] or Ctrl+5 to exit console.")
    );
}

#[tokio::test]
async fn what_an_instance_waits_for_is_printed_once() {
    let handler = Handler::start();
    let child = console(&handler);
    let pulling = r#"{"status":{"phase":"Scheduling","volumeStatus":[
        {"name":"root","reason":"Pulling","message":"a:1 is being pulled: 3 of 9 MiB are here"}]}}"#;
    for status in [r#"{"status":{"phase":"Pending"}}"#, pulling, pulling, r#"{"status":{"phase":"Failed"}}"#]
    {
        handler.answer("200 OK", status).await;
    }
    let output = finish(child).await;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let waits = "Waiting for web: volume root: a:1 is being pulled: 3 of 9 MiB are here\n";
    assert!(stderr.starts_with(&format!("{waits}virtctl: ")), "{stderr}");
    assert!(output.stdout.is_empty());
}

#[tokio::test]
async fn the_escape_leaves_though_the_guest_reads_nothing() {
    let handler = Handler::start();
    let mut child = console(&handler);
    handler.answer("200 OK", r#"{"status":{"phase":"Running"}}"#).await;
    let _guest = handler.websocket("console").await;
    let mut keys = child.stdin.take().expect("its stdin");
    keys.write_all(b"\x1d").await.expect("virtctl reads");
    assert!(finish(child).await.status.success());
}

/// The first attempt is not answered, as by the address of a Pod that is gone.
#[tokio::test]
async fn a_connection_that_is_lost_is_replaced() {
    let handler = Handler::start();
    let child = console(&handler);
    let runs = r#"{"metadata":{"uid":"1"},"status":{"phase":"Running"}}"#;
    handler.answer("200 OK", runs).await;
    drop(handler.websocket("console").await);
    handler.answer("200 OK", runs).await;
    let _silent = handler.accept().await;
    handler.answer("200 OK", runs).await;
    let mut guest = handler.websocket("console").await;
    guest.send(Message::binary("welcome")).await.expect("virtctl reads");
    guest.close(None).await.expect("virtctl is still there");
    let output = finish(child).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("Connected again."), "{stderr}");
    assert_eq!(output.stdout, b"welcome");
}

#[tokio::test]
async fn errors_are_printed() {
    let handler = Handler::start();
    let child = console(&handler);
    let status = r#"{"kind":"Status","message":"virtualmachineinstances \"web\" not found","code":404}"#;
    handler.answer("404 Not Found", status).await;
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("\"web\" not found"));

    let child = console(&handler);
    handler.answer("200 OK", r#"{"status":{"phase":"Failed"}}"#).await;
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is Failed"));

    let scratch = tempfile::tempdir().expect("a scratch directory");
    let output = finish(virtctl(&scratch, &["console", "web"])).await;
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("handler.sock") && stderr.contains("--state-dir"), "{stderr}");
}

#[tokio::test]
async fn history_is_asked_for_and_comes_before_live_bytes() {
    let handler = Handler::start();
    let child = virtctl(&handler.state, &["console", "web", "-n", "prod", "--history"]);
    handler.answer("200 OK", r#"{"status":{"phase":"Running"}}"#).await;
    let mut guest = handler.websocket("console?history=true").await;
    guest.send(Message::text(r#"{"historyBytes":6}"#)).await.expect("virtctl reads");
    guest.send(Message::binary("boot\r\n")).await.expect("virtctl reads");
    guest.send(Message::binary("login: ")).await.expect("virtctl reads");
    guest.close(None).await.expect("virtctl is still there");
    let output = finish(child).await;
    assert!(output.status.success());
    assert_eq!(output.stdout, b"boot\r\nlogin: ", "a program is shown no mark");
}
