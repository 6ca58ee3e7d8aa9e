//! Connections that are read on for a while after the last answer.
//!
//! A client may be sending a body that was refused before all of it came. Closing the socket on it resets the
//! connection, and the client learns of a broken pipe instead of the answer. So only our side is closed at first, and
//! what still comes is thrown away (RFC 9112, section 9.6).

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::flow_control::Kept;

/// How much is thrown away.
const MOST: usize = 64 << 20;
const CHUNK: usize = 16 << 10;

/// Such a connection.
#[derive(Debug)]
pub(super) struct Lingering<S> {
    stream: S,
    /// How long it is read on.
    longest: Duration,
    /// Set once our side is closed.
    until: Option<Pin<Box<Sleep>>>,
    /// Bytes that are still read.
    left: usize,
    /// What requests keep until the connection is closed.
    _kept: Option<Arc<Kept>>,
}

impl<S> Lingering<S> {
    pub(super) fn over(stream: S, longest: Duration) -> Self {
        Self { stream, longest, until: None, left: MOST, _kept: None }
    }

    pub(super) fn keeping(self, kept: Arc<Kept>) -> Self {
        Self { _kept: Some(kept), ..self }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, longest, until, left, .. } = &mut *self;
        let until = match until {
            Some(until) => until,
            None => {
                ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
                until.insert(Box::pin(sleep(*longest)))
            }
        };
        while *left > 0 && until.as_mut().poll(context).is_pending() {
            let mut chunk = [MaybeUninit::uninit(); CHUNK];
            let mut buffer = ReadBuf::uninit(&mut chunk);
            match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *left = left.saturating_sub(buffer.filled().len()),
                // The client is done, or gone.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::Instant;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn the_client_may_send_on_after_the_answer() {
        let (mut client, server) = duplex(4096);
        let answering = tokio::spawn(async move {
            let mut server = Lingering::over(server, LONGEST);
            server.write_all(b"too large").await.unwrap();
            server.shutdown().await.unwrap();
        });
        client.write_all(&vec![0; 1 << 20]).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "too large");
        drop(client);
        answering.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_connections_are_closed() {
        let (client, server) = duplex(4096);
        let begin = Instant::now();
        Lingering::over(server, LONGEST).shutdown().await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), LONGEST.as_secs(), "a client that sends nothing");
        drop(client);
        let (mut client, server) = duplex(4096);
        let sending = tokio::spawn(async move {
            let mut sent: usize = 0;
            while let Ok(count) = client.write(&[0; 4096]).await {
                sent += count;
            }
            sent
        });
        Lingering::over(server, LONGEST).shutdown().await.unwrap();
        let sent = sending.await.unwrap();
        assert!((MOST..MOST + CHUNK).contains(&sent), "one who never ends: {sent}");
    }
}
