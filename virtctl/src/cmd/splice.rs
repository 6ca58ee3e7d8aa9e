//! Joins one byte stream of a guest and a local one.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::client::Connection;

/// Bytes carried at once.
const CHUNK: usize = 16 << 10;
/// How long a guest may pause before its stream ends when there is nothing more to send to it: whether the other side
/// closed only its half, and waits for an answer, cannot be known.
const LINGER: Duration = Duration::from_secs(1);

/// The side that ended a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The local one.
    Here,
    /// The guest, or what is between.
    Guest,
}

/// Copies both ways until the guest ends, or this side does and the guest has sent its rest.
pub(super) async fn splice(
    mut from_here: impl AsyncRead + Unpin,
    mut to_here: impl AsyncWrite + Unpin,
    guest: WebSocketStream<Connection>,
) -> Ended {
    let (mut to_guest, mut from_guest) = guest.split();
    let spoke = Notify::new();
    let down = async {
        while let Some(Ok(message)) = from_guest.next().await {
            match message {
                Message::Binary(bytes) => {
                    if to_here.write_all(&bytes).await.is_err() || to_here.flush().await.is_err() {
                        return Ended::Here;
                    }
                    spoke.notify_one();
                }
                Message::Close(_) => return Ended::Guest,
                _ => {}
            }
        }
        Ended::Guest
    };
    let up = async {
        let mut chunk = vec![0; CHUNK];
        while let Ok(count @ 1..) = from_here.read(&mut chunk).await {
            let bytes = chunk.get(..count).unwrap_or_default().to_vec();
            if to_guest.send(Message::binary(bytes)).await.is_err() {
                return Ended::Guest;
            }
        }
        while timeout(LINGER, spoke.notified()).await.is_ok() {}
        Ended::Here
    };
    tokio::select! {
        ended = down => ended,
        ended = up => ended,
    }
}
