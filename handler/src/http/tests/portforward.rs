use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, UdpSocket};
use tokio_tungstenite::tungstenite::Message;
use vireo_api::v1::InterfaceStatus;

use super::*;

/// A running VMI whose guest is this host.
fn with_guest(dir: &Path) -> (Arc<Node>, tokio::task::JoinHandle<io::Result<()>>) {
    with_guest_at(dir, "127.0.0.1")
}

fn with_guest_at(dir: &Path, address: &str) -> (Arc<Node>, tokio::task::JoinHandle<io::Result<()>>) {
    let node = Node::of_a_test(dir);
    let (key, mut vmi) = vmi("default", "one");
    vmi.status.phase = "Running".to_owned();
    vmi.status.interfaces = vec![InterfaceStatus {
        ip_address: address.to_owned(),
        pod_interface_name: "eth0".to_owned(),
        ..InterfaceStatus::default()
    }];
    node.show(&key, Some(vmi));
    let server = tokio::spawn(serve(bind(&node.state.endpoint()).unwrap(), Arc::clone(&node)));
    (node, server)
}

#[tokio::test]
async fn a_connection_is_carried_both_ways_and_ends_with_a_normal_close() {
    let dir = tempfile::tempdir().unwrap();
    let (node, server) = with_guest(dir.path());
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    for path in [format!("portforward/{port}"), format!("portforward/{port}/tcp")] {
        let mut client = open(&node, &path).await;
        let (mut guest, _) = service.accept().await.unwrap();
        client.send(Message::binary("GET")).await.unwrap();
        let mut asked = [0; 3];
        guest.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"GET");
        guest.write_all(b"200").await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::binary("200"));
        drop(guest);
        let Message::Close(Some(frame)) = client.next().await.unwrap().unwrap() else { panic!("no close") };
        assert_eq!(u16::from(frame.code), 1000);
    }
    server.abort();
}

#[tokio::test]
async fn a_frame_is_a_datagram() {
    let dir = tempfile::tempdir().unwrap();
    let (node, server) = with_guest(dir.path());
    let service = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    let mut client = open(&node, &format!("portforward/{port}/udp")).await;
    let mut buffer = [0; 16];
    for frame in ["one", "", "two"] {
        client.send(Message::binary(frame)).await.unwrap();
        let (count, from) = service.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..count], frame.as_bytes());
        service.send_to(&buffer[..count], from).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(frame));
    }
    server.abort();
}

#[tokio::test]
async fn a_guest_with_ipv6_alone_is_reached_by_both_protocols() {
    let dir = tempfile::tempdir().unwrap();
    let (node, server) = with_guest_at(dir.path(), "::1");
    let Ok(service) = TcpListener::bind("[::1]:0").await else {
        return eprintln!("skipped: this host has no IPv6");
    };
    let port = service.local_addr().unwrap().port();
    let mut client = open(&node, &format!("portforward/{port}")).await;
    let (mut guest, _) = service.accept().await.unwrap();
    guest.write_all(b"200").await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::binary("200"));

    let service = UdpSocket::bind("[::1]:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    let mut client = open(&node, &format!("portforward/{port}/udp")).await;
    client.send(Message::binary("one")).await.unwrap();
    let mut buffer = [0; 16];
    let (count, from) = service.recv_from(&mut buffer).await.unwrap();
    service.send_to(&buffer[..count], from).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::binary("one"));
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_gives_no_sign_of_life_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let (node, server) = with_guest(dir.path());
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    let _silent = open(&node, &format!("portforward/{port}")).await;
    let (mut guest, _) = service.accept().await.unwrap();
    assert_eq!(guest.read(&mut [0; 1]).await.unwrap(), 0);
    server.abort();
}

#[tokio::test]
async fn errors_are_reported_before_the_stream_begins() {
    let dir = tempfile::tempdir().unwrap();
    let (node, server) = with_guest(dir.path());
    // The port was in use and is free now.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    for (path, code, said) in [
        (format!("portforward/{closed}"), 500, "cannot connect to the guest at 127.0.0.1"),
        ("portforward/0".to_owned(), 400, "must be a number from 1"),
        ("portforward/ssh".to_owned(), 400, "must be a number from 1"),
        ("portforward/22/sctp".to_owned(), 400, "neither tcp nor udp"),
    ] {
        let actual = try_open(&node, &path).await.map(drop).unwrap_err();
        let tokio_tungstenite::tungstenite::Error::Http(answer) = actual else { panic!("{path}: {actual}") };
        assert_eq!(answer.status(), code, "{path}");
        let body = String::from_utf8_lossy(answer.body().as_deref().unwrap_or_default()).into_owned();
        assert!(body.contains(said), "{path}: {body}");
    }
    server.abort();
}
