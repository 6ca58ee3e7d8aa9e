use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpStream, UdpSocket};
use tokio_tungstenite::tungstenite::Message;

use crate::handler::{Handler, finish, virtctl};

const WEB: [&str; 2] = ["port-forward", "vmi/web/prod"];

#[tokio::test]
async fn every_port_is_served_and_every_connection_has_its_own_stream() {
    let handler = Handler::start();
    let mut child = virtctl(&handler.state, &[&WEB[..], &["0:80", "udp/0:53"]].concat());
    let mut reported = BufReader::new(child.stdout.take().expect("its stdout")).lines();
    let mut line = async || reported.next_line().await.expect("a line").expect("a line");
    let (tcp, udp) = (line().await, line().await);
    assert!(tcp.starts_with("forwarding tcp 127.0.0.1:") && tcp.ends_with(" to 80"), "{tcp}");
    assert!(udp.starts_with("forwarding udp 127.0.0.1:") && udp.ends_with(" to 53"), "{udp}");
    let address = |line: &str| line.split(' ').nth(2).unwrap_or_default().to_owned();

    for _ in 0..2 {
        let mut here = TcpStream::connect(address(&tcp)).await.expect("a connection");
        let mut guest = handler.websocket("portforward/80/tcp").await;
        here.write_all(b"ask").await.expect("virtctl reads");
        assert_eq!(guest.next().await.expect("a frame").expect("a frame"), Message::binary("ask"));
        // A client that has closed its half still gets the answer.
        here.shutdown().await.expect("virtctl reads");
        guest.send(Message::binary("answer")).await.expect("virtctl reads");
        guest.close(None).await.expect("virtctl reads");
        let mut answer = String::new();
        here.read_to_string(&mut answer).await.expect("virtctl writes");
        assert_eq!(answer, "answer");
    }

    let here = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    here.connect(address(&udp)).await.expect("an address");
    here.send(b"one").await.expect("virtctl receives");
    let mut guest = handler.websocket("portforward/53/udp").await;
    here.send(b"two").await.expect("virtctl receives");
    for expected in ["one", "two"] {
        assert_eq!(guest.next().await.expect("a frame").expect("a frame"), Message::binary(expected));
    }
    guest.send(Message::binary("three")).await.expect("virtctl reads");
    let mut buffer = [0; 16];
    let count = here.recv(&mut buffer).await.expect("virtctl sends");
    assert_eq!(&buffer[..count], b"three");
}

#[tokio::test]
async fn a_port_may_be_standard_input_and_output() {
    let handler = Handler::start();
    let mut child = virtctl(&handler.state, &[&WEB[..], &["22", "--stdio=true"]].concat());
    let mut guest = handler.websocket("portforward/22/tcp").await;
    let mut to_guest = child.stdin.take().expect("its stdin");
    to_guest.write_all(b"SSH-2.0-here").await.expect("virtctl reads");
    assert_eq!(guest.next().await.expect("a frame").expect("a frame"), Message::binary("SSH-2.0-here"));
    guest.send(Message::binary("SSH-2.0-there")).await.expect("virtctl reads");
    guest.close(None).await.expect("virtctl reads");
    // It ends with the guest, though its input is still open.
    let output = finish(child).await;
    assert!(output.status.success());
    assert_eq!(output.stdout, b"SSH-2.0-there");
    drop(to_guest);
}

#[tokio::test]
async fn errors_are_printed() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    for (words, said) in [
        (&["port-forward", "web", "80"][..], "KIND/NAME"),
        (&["port-forward", "pod/web", "80"], "neither vm nor vmi"),
        (&["port-forward", "vm/web", "80"], "no virtual machines"),
        (&["port-forward", "vmi/web", "http"], "invalid port"),
        (&["port-forward", "vmi/web", "80", "81", "--stdio"], "one port"),
        (&["port-forward", "vmi/web", "udp/53", "--stdio"], "udp"),
        (&["ssh", "web"], "KIND/NAME"),
        (&["scp", "a", "b"], "must be in a guest"),
        (&["scp", "vmi/a:b", "vmi/c:d"], "both paths are in guests"),
    ] {
        let output = finish(virtctl(&scratch, words)).await;
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(reported.contains(said), "{words:?}: {reported}");
    }
    let handler = Handler::start();
    let child = virtctl(&handler.state, &[&WEB[..], &["22", "--stdio"]].concat());
    handler.answer("409 Conflict", r#"{"kind":"Status","message":"VMI is paused"}"#).await;
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "virtctl: VMI is paused\n");
}
