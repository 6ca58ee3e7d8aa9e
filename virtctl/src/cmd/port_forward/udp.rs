//! Datagrams: everyone who sends one to the port here gets a stream of their own, until nothing passes for a while.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::{ForwardError, Remote};
use crate::client::Connection;

/// No datagram is larger.
const LARGEST: usize = 64 << 10;
/// Datagrams on their way to the guest; more are lost.
const WAITING: usize = 64;
/// When a sender is forgotten.
const SILENCE: Duration = Duration::from_secs(120);

/// Forwards until the socket fails.
pub(super) async fn datagrams(socket: UdpSocket, remote: Arc<Remote>) -> Result<(), ForwardError> {
    let socket = Arc::new(socket);
    let mut senders: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>> = HashMap::new();
    let mut buffer = vec![0; LARGEST];
    loop {
        let (count, from) = socket.recv_from(&mut buffer).await.map_err(ForwardError::Receive)?;
        senders.retain(|_, sender| !sender.is_closed());
        let sender = senders.entry(from).or_insert_with(|| {
            let (sender, waiting) = mpsc::channel(WAITING);
            let (socket, remote) = (Arc::clone(&socket), Arc::clone(&remote));
            tokio::spawn(async move {
                match remote.open().await {
                    Ok(stream) => exchange(stream, waiting, &socket, from).await,
                    Err(error) => eprintln!("virtctl: {}", crate::chain(&error)),
                }
            });
            sender
        });
        // Where the guest is slower than its client, datagrams are lost as on any network.
        let _ = sender.try_send(buffer.get(..count).unwrap_or_default().to_vec());
    }
}

async fn exchange(
    stream: WebSocketStream<Connection>,
    mut waiting: mpsc::Receiver<Vec<u8>>,
    socket: &UdpSocket,
    client: SocketAddr,
) {
    let (mut to_guest, mut from_guest) = stream.split();
    let once = async || {
        tokio::select! {
            bytes = waiting.recv() => match bytes {
                Some(bytes) => to_guest.send(Message::binary(bytes)).await.is_ok(),
                None => false,
            },
            message = next_datagram(&mut from_guest) => match message {
                Some(bytes) => socket.send_to(&bytes, client).await.is_ok(),
                None => false,
            },
        }
    };
    let mut once = once;
    while timeout(SILENCE, once()).await.unwrap_or(false) {}
}

/// The next from the guest, over pings and what else is none.
async fn next_datagram(
    from_guest: &mut futures_util::stream::SplitStream<WebSocketStream<Connection>>,
) -> Option<Vec<u8>> {
    loop {
        match from_guest.next().await?.ok()? {
            Message::Binary(bytes) => return Some(bytes.to_vec()),
            Message::Close(_) => return None,
            _ => {}
        }
    }
}
