//! Our side of QEMU's monitor: a QEMU that stands still and reads nothing must not hold up who speaks to it.

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
const PATIENCE: Duration = Duration::from_secs(5);

/// Says lines to QEMU.
pub(super) struct Writer {
    half: OwnedWriteHalf,
    /// It reads nothing, and a line may have been said in part: nothing more is said.
    stuck: bool,
}

impl Writer {
    pub(super) fn new(half: OwnedWriteHalf) -> Self {
        Self { half, stuck: false }
    }

    /// Says a command without arguments.
    pub(super) async fn send(&mut self, command: &str) {
        self.say(&qmp::command(command)).await;
    }

    /// Says a line.
    pub(super) async fn say(&mut self, line: &str) {
        if self.stuck {
            return;
        }
        // If QEMU is gone, its monitor's end says so to whoever reads it.
        if timeout(PATIENCE, self.half.write_all(line.as_bytes())).await.is_err() {
            warn!("QEMU does not read its monitor");
            self.stuck = true;
        }
    }

    /// Says a line with a descriptor, of which QEMU gets a copy.
    pub(super) async fn say_with(&mut self, line: &str, file: &File) -> io::Result<()> {
        if self.stuck {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let said = timeout(PATIENCE, send_with(&mut self.half, line, file)).await;
        said.unwrap_or_else(|_| {
            self.stuck = true;
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

async fn send_with(half: &mut OwnedWriteHalf, line: &str, file: &File) -> io::Result<()> {
    let stream: &UnixStream = half.as_ref();
    let send = || {
        let (bytes, files) = ([IoSlice::new(line.as_bytes())], [file.as_fd()]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        Ok(sendmsg(stream, &bytes, &mut ancillary, SendFlags::NOSIGNAL)?)
    };
    let said = stream.async_io(Interest::WRITABLE, send).await?;
    half.write_all(line.as_bytes().get(said..).unwrap_or_default()).await
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
        writer.say(&"x".repeat(16 << 20)).await;
        assert!(writer.stuck);
        for _ in 0..1000 {
            writer.send("quit").await;
        }
        let file = tempfile::tempfile().unwrap();
        assert!(writer.say_with("x", &file).await.is_err());
        assert_eq!(begin.elapsed(), PATIENCE);
    }
}
