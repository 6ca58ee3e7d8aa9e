//! Relays bytes between a guest and a websocket client: consoles, displays, forwarded ports, USB devices and VSOCK ports.
//!
//! Binary frames carry the bytes in both directions; text frames are ignored. A client that does not respond to pings
//! is disconnected; so is one that never reads, since it never receives a ping.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UdpSocket;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tracing::debug;

/// The subprotocol for opaque bytes in binary frames.
pub(super) const PLAIN: &str = "plain.kubevirt.io";
/// The largest datagram, and the largest read from a stream.
const BUFFER: usize = 64 << 10;
/// The interval of pings to the client.
const PING: Duration = Duration::from_secs(20);
/// How long a client may be silent. As KubeVirt's.
const SILENCE: Duration = Duration::from_secs(60);

/// Data from a guest.
pub(super) trait Source {
    /// Returns `None` at the end of the data.
    async fn take(&mut self, buffer: &mut [u8]) -> Option<usize>;
}

/// Data to a guest.
pub(super) trait Target {
    /// Returns `None` when the guest accepts no more data.
    async fn put(&mut self, bytes: &[u8]) -> Option<()>;
}

/// One direction of a stream of bytes.
struct Stream<T>(T);

impl<T: AsyncRead + Unpin> Source for Stream<T> {
    async fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.0.read(buffer).await.ok().filter(|count| *count > 0)
    }
}

impl<T: AsyncWrite + Unpin> Target for Stream<T> {
    async fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.0.write_all(bytes).await.ok()
    }
}

impl Source for Arc<UdpSocket> {
    /// An error reports that no process listens on the port; one may do so later.
    async fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            match self.recv(buffer).await {
                Ok(count) => return Some(count),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(_) => return None,
            }
        }
    }
}

impl Target for Arc<UdpSocket> {
    /// A datagram that cannot be sent is dropped.
    async fn put(&mut self, bytes: &[u8]) -> Option<()> {
        drop(self.send(bytes).await);
        Some(())
    }
}

/// Relays both directions of a byte stream until either side ends.
pub(super) async fn relay_stream(
    client: WebSocket,
    (from_guest, to_guest): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
) {
    relay(client, Stream(from_guest), Stream(to_guest)).await;
}

/// Relays data in both directions until either side ends.
pub(super) async fn relay(client: WebSocket, mut from_guest: impl Source, mut to_guest: impl Target) {
    let (to_client, from_client) = client.split();
    tokio::select! {
        () = down(&mut from_guest, to_client) => debug!("the guest's side ended"),
        () = up(from_client, &mut to_guest) => debug!("the client left"),
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
    let close = CloseFrame { code: close_code::NORMAL, reason: "the guest's side was closed".into() };
    // The client may be gone as well.
    let _ = client.send(Message::Close(Some(close))).await;
}

async fn up(mut client: SplitStream<WebSocket>, guest: &mut impl Target) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE, client.next()).await {
        match message {
            Message::Binary(bytes) => {
                if guest.put(&bytes).await.is_none() {
                    // The other direction reports the end, after the last output.
                    std::future::pending::<()>().await;
                }
            }
            Message::Close(_) => return,
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}
