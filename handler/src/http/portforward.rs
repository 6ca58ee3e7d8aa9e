//! A port of a guest as a websocket: dialled from this node, carried unread.
//!
//! Over UDP every binary frame is one datagram. A client that gives no sign of life, not even to pings, is let go.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path as Segments, State};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket, tcp};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tracing::debug;
use vireo_api::v1::VirtualMachineInstance;

use super::console::{PLAIN, running};
use super::fault::Fault;
use super::find;
use crate::launcher::link::chain;
use crate::node::Node;

/// No datagram is larger; also what is read of a stream at once.
const BUFFER: usize = 64 << 10;
/// How long a guest may take to answer the first packet.
const DIAL: Duration = Duration::from_secs(30);
/// How often a client is asked whether it is there.
const PING: Duration = Duration::from_secs(20);
/// How long a client may be silent. As KubeVirt's.
const SILENCE: Duration = Duration::from_secs(60);

/// Forwards to `port` by TCP.
pub(super) async fn tcp(
    node: State<Arc<Node>>,
    Segments((namespace, name, port)): Segments<(String, String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Fault> {
    either(node, Segments((namespace, name, port, "tcp".to_owned())), upgrade).await
}

/// Forwards to `port` by the protocol that is named.
pub(super) async fn either(
    State(node): State<Arc<Node>>,
    Segments((namespace, name, port, protocol)): Segments<(String, String, String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Fault> {
    let port = port.parse().ok().filter(|port| *port != 0);
    let port: u16 = port.ok_or_else(|| Fault::bad_request("the port is no number from 1 to 65535"))?;
    let address = SocketAddr::new(reachable(&*find(&node, namespace, name)?)?, port);
    let upgrade = upgrade
        .map_err(|rejection| Fault::bad_request(format!("a forwarded port is a websocket: {rejection}")))?;
    let upgrade = upgrade.protocols([PLAIN]);
    match protocol.as_str() {
        "tcp" => {
            let guest = dialled(timeout(DIAL, TcpStream::connect(address)).await, address)?;
            // What is small is often what somebody waits for.
            guest.set_nodelay(true).map_err(|error| Fault::internal(chain(&error)))?;
            let (from_guest, to_guest) = guest.into_split();
            Ok(upgrade.on_upgrade(move |client| carry(client, from_guest, to_guest)))
        }
        "udp" => {
            let guest = Arc::new(dialled(timeout(DIAL, datagrams(address)).await, address)?);
            Ok(upgrade.on_upgrade(move |client| carry(client, Arc::clone(&guest), guest)))
        }
        _ => Err(Fault::bad_request(format!("protocol {protocol:?} is neither tcp nor udp"))),
    }
}

/// Where the guest is reached, with KubeVirt's answers where it is not.
fn reachable(vmi: &VirtualMachineInstance) -> Result<IpAddr, Fault> {
    running(vmi)?;
    if vmi.status.conditions.iter().any(|one| one.r#type == "Paused" && one.status == "True") {
        return Err(Fault::not_now(&vmi.metadata.name, "VMI is paused"));
    }
    let first = vmi.status.interfaces.first().map(|interface| interface.ip_address.as_str());
    let first = first.filter(|address| !address.is_empty());
    let first = first.ok_or_else(|| Fault::bad_request("no network interfaces are present"))?;
    first.parse().map_err(|_| Fault::internal(format!("the VMI's address {first:?} is none")))
}

async fn datagrams(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(address).await?;
    Ok(socket)
}

fn dialled<T>(
    dialled: Result<std::io::Result<T>, tokio::time::error::Elapsed>,
    address: SocketAddr,
) -> Result<T, Fault> {
    let why = match dialled {
        Ok(Ok(guest)) => return Ok(guest),
        Ok(Err(error)) => chain(&error),
        Err(_) => format!("no answer in {} s", DIAL.as_secs()),
    };
    Err(Fault::internal(format!("cannot connect to the guest at {address}: {why}")))
}

/// What comes from a guest.
trait Source {
    /// Absent: that was all.
    async fn take(&mut self, buffer: &mut [u8]) -> Option<usize>;
}

/// What goes to a guest.
trait Target {
    /// Absent: nothing goes there any more.
    async fn put(&mut self, bytes: &[u8]) -> Option<()>;
}

impl Source for tcp::OwnedReadHalf {
    async fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.read(buffer).await.ok().filter(|count| *count > 0)
    }
}

impl Target for tcp::OwnedWriteHalf {
    async fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.write_all(bytes).await.ok()
    }
}

impl Source for Arc<UdpSocket> {
    /// A port that nobody listens at is told by an error, after which somebody may.
    async fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            match self.recv(buffer).await {
                Ok(count) => return Some(count),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(_) => return None,
            }
        }
    }
}

impl Target for Arc<UdpSocket> {
    /// What cannot be sent is lost, as datagrams are.
    async fn put(&mut self, bytes: &[u8]) -> Option<()> {
        drop(self.send(bytes).await);
        Some(())
    }
}

/// Carries bytes both ways until either side ends.
async fn carry(client: WebSocket, mut from_guest: impl Source, mut to_guest: impl Target) {
    let (to_client, from_client) = client.split();
    tokio::select! {
        () = down(&mut from_guest, to_client) => debug!("the guest ended a forwarded connection"),
        () = up(from_client, &mut to_guest) => debug!("the client left a forwarded connection"),
    }
}

async fn down(guest: &mut impl Source, mut client: SplitSink<WebSocket, Message>) {
    let mut buffer = vec![0; BUFFER];
    let mut pings = interval_at(Instant::now() + PING, PING);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            count = guest.take(&mut buffer) => match count {
                Some(count) => Message::Binary(buffer.get(..count).unwrap_or_default().to_vec().into()),
                None => break,
            },
            _ = pings.tick() => Message::Ping("keep alive".into()),
        };
        if client.send(message).await.is_err() {
            return;
        }
    }
    let close = CloseFrame { code: close_code::NORMAL, reason: "the guest closed the connection".into() };
    // The client may be gone as well.
    let _ = client.send(Message::Close(Some(close))).await;
}

async fn up(mut client: SplitStream<WebSocket>, guest: &mut impl Target) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE, client.next()).await {
        match message {
            Message::Binary(bytes) => {
                if guest.put(&bytes).await.is_none() {
                    // Its end is told by the other direction, after the last of its output.
                    std::future::pending::<()>().await;
                }
            }
            Message::Close(_) => return,
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use vireo_api::v1::{Condition, InterfaceStatus};

    use super::*;

    #[test]
    fn the_answers_are_kubevirts() {
        let vmi = |phase: &str, address: Option<&str>, paused: bool| {
            let mut vmi = VirtualMachineInstance::default();
            vmi.status.phase = phase.to_owned();
            vmi.status.interfaces = address
                .map(|address| InterfaceStatus { ip_address: address.into(), ..Default::default() })
                .into_iter()
                .collect();
            if paused {
                let kind = Condition { r#type: "Paused".into(), status: "True".into(), ..Default::default() };
                vmi.status.conditions.push(kind);
            }
            reachable(&vmi).map_err(|fault| fault.code.as_u16())
        };
        assert_eq!(vmi("Running", Some("10.201.0.2"), false), Ok([10, 201, 0, 2].into()));
        assert_eq!(vmi("Running", Some("10.201.0.2"), true), Err(409));
        assert_eq!(vmi("Running", None, false), Err(400));
        assert_eq!(vmi("Running", Some(""), false), Err(400));
        assert_eq!(vmi("Scheduled", Some("10.201.0.2"), false), Err(400));
        assert_eq!(vmi("Failed", Some("10.201.0.2"), false), Err(409));
    }
}
