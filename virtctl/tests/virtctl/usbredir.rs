use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Child;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::handler::{Handler, TIMEOUT, command, finish, virtctl};

const LAUNCH: [&str; 5] = ["usbredir", "0951:1666", "web", "-n", "prod"];
const NO_LAUNCH: [&str; 5] = ["usbredir", "web", "--no-launch", "-n", "prod"];

/// `virtctl usbredir 0951:1666 web` with a `usbredirect` that runs these lines.
async fn with_program(lines: &str) -> Output {
    let programs = tempfile::tempdir().expect("a scratch directory");
    let path = programs.path().join("usbredirect");
    std::fs::write(&path, format!("#!/bin/bash\n{lines}\n")).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let handler = Handler::start();
    let child =
        command(&handler.state, &LAUNCH).env("PATH", programs.path()).spawn().expect("virtctl starts");
    let mut guest = handler.websocket("usbredir").await;
    guest.send(Message::binary("hello\n")).await.expect("virtctl reads");
    finish(child).await
}

/// Starts `virtctl usbredir web --no-launch`, with the guest's side and the address for a client.
async fn without_program(handler: &Handler) -> (Child, WebSocketStream<UnixStream>, String) {
    let mut child = virtctl(&handler.state, &NO_LAUNCH);
    let guest = handler.websocket("usbredir").await;
    let mut line = String::new();
    let mut reported = BufReader::new(child.stdout.take().expect("its stdout"));
    reported.read_line(&mut line).await.expect("a line");
    let address = line.strip_prefix("User can connect usbredir client at: ").expect("the address");
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    (child, guest, address.trim().to_owned())
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn usbredirect_gets_the_device_and_the_port_and_its_end_is_ours() {
    let output =
        with_program("echo \"$1 $2 $3\"\nexec 3<>/dev/tcp/${4/://}\nread -r line <&3; echo \"$line\"").await;
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--device 0951:1666 --to\nhello\n");

    let output = with_program("echo no such device >&2; exit 3").await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(printed(&output), "no such device\nvirtctl: usbredirect ended with exit status: 3\n");
}

#[tokio::test]
async fn a_client_of_the_user_is_served_until_it_leaves() {
    let handler = Handler::start();
    let (child, mut guest, address) = without_program(&handler).await;
    // Nothing is lost that comes before the client, and pings are answered.
    guest.send(Message::binary("hel")).await.expect("virtctl reads");
    guest.send(Message::Ping("x".into())).await.expect("virtctl reads");
    let pong = tokio::time::timeout(TIMEOUT, guest.next()).await.expect("an answer");
    assert_eq!(pong.expect("a frame").expect("a frame"), Message::Pong("x".into()));
    let mut client = TcpStream::connect(&address).await.expect("a connection");
    guest.send(Message::binary("lo")).await.expect("virtctl reads");
    let mut bytes = [0; 5];
    client.read_exact(&mut bytes).await.expect("virtctl writes");
    assert_eq!(&bytes, b"hello");
    client.write_all(b"device").await.expect("virtctl reads");
    assert_eq!(guest.next().await.expect("a frame").expect("a frame"), Message::binary("device"));
    drop(client);
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert!(!matches!(guest.next().await, Some(Ok(Message::Binary(_)))), "the guest's side ends, too");
}

#[tokio::test]
async fn the_end_of_the_guest_is_an_error() {
    for connects in [false, true] {
        let handler = Handler::start();
        let (child, guest, address) = without_program(&handler).await;
        let client = if connects { TcpStream::connect(&address).await.ok() } else { None };
        assert_eq!(client.is_some(), connects);
        drop(guest);
        let output = finish(child).await;
        assert_eq!(output.status.code(), Some(1), "{connects}");
        assert_eq!(printed(&output), "virtctl: the connection to the VMI was closed\n", "{connects}");
    }
}

#[tokio::test]
async fn errors_are_printed() {
    for (status, message) in [
        ("409 Conflict", "Not configured with USB Redirection"),
        ("503 Service Unavailable", "All USB devices are in use."),
    ] {
        let handler = Handler::start();
        let child = virtctl(&handler.state, &NO_LAUNCH);
        handler.answer(status, &format!(r#"{{"kind":"Status","message":"{message}"}}"#)).await;
        let output = finish(child).await;
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert_eq!(printed(&output), format!("virtctl: can't access VMI web: {message}\n"));
        assert!(output.stdout.is_empty());
    }
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let without_programs = |words: &[&str]| {
        command(&scratch, words).env("PATH", Path::new("/absent")).spawn().expect("virtctl starts")
    };
    for (words, expected) in [
        (&LAUNCH[..], "cannot find usbredirect in $PATH"),
        (&["usbredir", "web"], "are required"),
        (&["usbredir", "stick", "web"], "\"stick\" is not a USB device"),
        (&["usbredir", "1-2", "web", "--no-launch"], "--no-launch takes the name"),
    ] {
        let output = finish(without_programs(words)).await;
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(printed(&output).contains(expected), "{words:?}: {}", printed(&output));
    }
    for words in [&["usbredir"][..], &["usbredir", "1-2", "web", "x"]] {
        assert_eq!(finish(without_programs(words)).await.status.code(), Some(2), "{words:?}");
    }
}
