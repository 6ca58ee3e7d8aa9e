//! Our side of QEMU's monitor: a QEMU that is paused and reads nothing must not hold up who speaks to it.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::time::timeout;
use tracing::warn;

use super::qmp;

/// How long a QEMU that reads nothing is waited for, once. Its socket takes thousands of commands before.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes lines to QEMU's monitor.
pub(super) struct Writer {
    half: OwnedWriteHalf,
    /// A write timed out, perhaps in the middle of a line: nothing more is written.
    stuck: bool,
}

impl Writer {
    pub(super) fn new(half: OwnedWriteHalf) -> Self {
        Self { half, stuck: false }
    }

    /// Sends a command without arguments.
    pub(super) async fn send_command(&mut self, command: &str) {
        self.write_line(&qmp::command(command)).await;
    }

    /// Writes a line.
    pub(super) async fn write_line(&mut self, line: &str) {
        if self.stuck {
            return;
        }
        // If QEMU is gone, reading its monitor reports that.
        if timeout(WRITE_TIMEOUT, self.half.write_all(line.as_bytes())).await.is_err() {
            warn!("QEMU does not read its monitor");
            self.stuck = true;
        }
    }

    /// Writes a line with a descriptor, of which QEMU gets a copy.
    pub(super) async fn write_with_fd(&mut self, line: &str, file: &File) -> io::Result<()> {
        if self.stuck {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let sent = timeout(WRITE_TIMEOUT, send_with(&mut self.half, line, file)).await;
        sent.unwrap_or_else(|_| {
            self.stuck = true;
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

async fn send_with(half: &mut OwnedWriteHalf, line: &str, file: &File) -> io::Result<()> {
    let stream: &UnixStream = half.as_ref();
    let send_command = || {
        let (bytes, files) = ([IoSlice::new(line.as_bytes())], [file.as_fd()]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        Ok(sendmsg(stream, &bytes, &mut ancillary, SendFlags::NOSIGNAL)?)
    };
    let sent = stream.async_io(Interest::WRITABLE, send_command).await?;
    half.write_all(line.as_bytes().get(sent..).unwrap_or_default()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_reads_nothing_is_waited_for_once() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (_, half) = ours.into_split();
        let mut writer = Writer::new(half);
        let begin = tokio::time::Instant::now();
        writer.write_line(&"x".repeat(16 << 20)).await;
        assert!(writer.stuck);
        for _ in 0..1000 {
            writer.send_command("quit").await;
        }
        let file = tempfile::tempfile().unwrap();
        assert!(writer.write_with_fd("x", &file).await.is_err());
        assert_eq!(begin.elapsed(), WRITE_TIMEOUT);
    }
}
