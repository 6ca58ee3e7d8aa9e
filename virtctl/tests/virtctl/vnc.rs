use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::handler::{Handler, command, finish, virtctl};

const VNC: [&str; 4] = ["vnc", "web", "-n", "prod"];

/// `virtctl vnc web` where only the programs of `path` are installed.
async fn with_programs(path: &Path) -> Output {
    with_flags(path, &[]).await
}

async fn with_flags(path: &Path, flags: &[&str]) -> Output {
    let handler = Handler::start();
    let words = [&VNC[..], flags].concat();
    let child = command(&handler.state, &words).env("PATH", path).spawn().expect("virtctl starts");
    // What it asks before it opens a port.
    drop(handler.websocket("vnc").await);
    finish(child).await
}

/// A viewer that prints its address, and its exit status.
fn viewer(directory: &Path, status: u8) {
    viewer_named(directory, "xtigervncviewer", status);
}

fn viewer_named(directory: &Path, name: &str, status: u8) {
    let path = directory.join(name);
    let script = format!("#!/bin/sh\necho \"viewer of $1\"\nexit {status}\n");
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_viewer_is_started_and_its_end_is_ours() {
    let programs = tempfile::tempdir().expect("a scratch directory");
    let output = with_programs(programs.path()).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("no viewer is installed") && said(&output).contains("--proxy-only"));

    viewer(programs.path(), 0);
    let output = with_programs(programs.path()).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("viewer of 127.0.0.1::"));

    viewer(programs.path(), 3);
    let output = with_programs(programs.path()).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("xtigervncviewer ended with exit status: 3"), "{}", said(&output));
}

#[tokio::test]
async fn a_viewer_is_chosen_by_its_kind_and_its_path() {
    let (programs, elsewhere) =
        (tempfile::tempdir().expect("scratch"), tempfile::tempdir().expect("scratch"));
    viewer(programs.path(), 0);
    viewer_named(elsewhere.path(), "display", 0);
    let printed = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();

    let output = with_flags(programs.path(), &["--vnc-type", "tiger"]).await;
    assert!(printed(&output).starts_with("viewer of 127.0.0.1::"), "{}", said(&output));
    let output = with_flags(programs.path(), &["--vnc-type", "remote-viewer"]).await;
    assert!(said(&output).contains("looked for remote-viewer)"), "{}", said(&output));
    let path = elsewhere.path().join("display");
    let path = path.to_str().expect("a path of UTF-8");
    let output = with_flags(programs.path(), &["--vnc-type", "remote-viewer", "--vnc-path", path]).await;
    assert!(printed(&output).starts_with("viewer of vnc://127.0.0.1:"), "{}", said(&output));
    let output = with_flags(programs.path(), &["--vnc-type", "tiger", "--vnc-path", "/nonexistent"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot start /nonexistent"), "{}", said(&output));

    let scratch = tempfile::tempdir().expect("a scratch directory");
    for flags in [&["--vnc-path", path][..], &["--vnc-type", "other"]] {
        let output = finish(virtctl(&scratch, &[&VNC[..], flags].concat())).await;
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
    }
}

#[tokio::test]
async fn a_server_is_asked_to_preserve_a_session() {
    let handler = Handler::start();
    let child = virtctl(&handler.state, &[&VNC[..], &["--proxy-only", "--preserve-session"]].concat());
    let message = "Active VNC connection. Request denied.";
    let asked = handler
        .answer("503 Service Unavailable", &format!(r#"{{"kind":"Status","message":"{message}"}}"#))
        .await;
    let expected = "GET /v1/namespaces/prod/virtualmachineinstances/web/vnc?preserveSession=true HTTP/1.1";
    assert_eq!(asked, expected);
    assert_eq!(said(&finish(child).await), format!("virtctl: {message}\n"));
}

#[tokio::test]
async fn a_port_carries_bytes_both_ways_for_each_viewer() {
    let handler = Handler::start();
    let mut child = virtctl(&handler.state, &[&VNC[..], &["--proxy-only"]].concat());
    drop(handler.websocket("vnc").await);
    let mut line = String::new();
    let mut reported = BufReader::new(child.stdout.take().expect("its stdout"));
    reported.read_line(&mut line).await.expect("a line");
    let port: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let port = u16::try_from(port["port"].as_u64().expect("a number")).expect("a port");
    for _ in 0..2 {
        let mut viewer = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
        let mut guest = handler.websocket("vnc").await;
        guest.send(Message::binary("RFB")).await.expect("virtctl reads");
        let mut bytes = [0; 3];
        viewer.read_exact(&mut bytes).await.expect("virtctl writes");
        assert_eq!(&bytes, b"RFB");
        viewer.write_all(b"key").await.expect("virtctl reads");
        assert_eq!(guest.next().await.expect("a frame").expect("a frame"), Message::binary("key"));
    }
}

#[tokio::test]
async fn errors_are_printed() {
    for (status, message) in [
        ("404 Not Found", r#"virtualmachineinstance.kubevirt.io \"web\" not found"#),
        ("400 Bad Request", "No graphics devices are present."),
    ] {
        let screenshot = ["vnc", "screenshot", "web", "-n", "prod", "-f", "-"];
        for words in [&[&VNC[..], &["--proxy-only"]].concat()[..], &screenshot[..]] {
            let handler = Handler::start();
            let child = virtctl(&handler.state, words);
            handler.answer(status, &format!(r#"{{"kind":"Status","message":"{message}"}}"#)).await;
            let output = finish(child).await;
            assert_eq!(output.status.code(), Some(1), "{words:?}");
            assert_eq!(said(&output), format!("virtctl: {}\n", message.replace('\\', "")), "{words:?}");
            assert!(output.stdout.is_empty(), "{words:?}");
        }
    }
    let scratch = tempfile::tempdir().expect("a scratch directory");
    for words in [&["vnc"][..], &["vnc", "--proxy-only"], &["vnc", "screenshot", "web"], &["vnc", "web", "x"]]
    {
        assert_eq!(finish(virtctl(&scratch, words)).await.status.code(), Some(2), "{words:?}");
    }
}
