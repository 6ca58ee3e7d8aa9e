//! What this program is in the container `guest-console-log` of a launcher Pod: it copies the guest's serial console to
//! the container's log, from the history's beginning until the guest is gone.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use vireo_proto::CONSOLE_HISTORY_SOCKET;

/// How often it is tried again to connect to a console that does not exist yet.
const RETRY: Duration = Duration::from_millis(500);
/// How long the launcher gets to begin. The kubelet starts it first.
const LAUNCHER_TIMEOUT: Duration = Duration::from_secs(300);

/// Copies the console of the VM of the launcher with this socket. Returns when the guest or the launcher is gone, and when
/// `stop` ends it before the guest has a console: output during shutdown is copied.
///
/// # Errors
/// When the output cannot be written.
pub async fn copy(
    launcher: &Path,
    output: &mut (impl AsyncWrite + Unpin),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let console = tokio::select! {
        console = connect(launcher) => console,
        () = stop => None,
    };
    let Some(mut console) = console else { return Ok(()) };
    // The length of the history, which comes first and is a part of the log. A launcher that is gone sends none.
    if console.read_u32().await.is_ok() {
        tokio::io::copy(&mut console, output).await?;
    }
    output.flush().await
}

/// Connects to the console once there is one. Nothing if there will be none.
async fn connect(launcher: &Path) -> Option<UnixStream> {
    let console = launcher.with_file_name(CONSOLE_HISTORY_SOCKET);
    let deadline = Instant::now() + LAUNCHER_TIMEOUT;
    let mut has_begun = false;
    loop {
        if let Ok(console) = UnixStream::connect(&console).await {
            return Some(console);
        }
        match UnixStream::connect(launcher).await {
            Ok(_) => has_begun = true,
            // It leaves its socket behind when it is killed.
            Err(error) if has_begun || error.kind() == io::ErrorKind::ConnectionRefused => return None,
            Err(_) if Instant::now() >= deadline => return None,
            Err(_) => {}
        }
        sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::net::UnixListener;

    use super::*;

    fn directory() -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let launcher = directory.path().join("launcher.sock");
        (directory, launcher)
    }

    #[tokio::test]
    async fn a_console_is_copied_from_its_beginning_to_its_end() {
        let (_directory, launcher) = directory();
        let _launcher = UnixListener::bind(&launcher).unwrap();
        let console = UnixListener::bind(launcher.with_file_name(CONSOLE_HISTORY_SOCKET)).unwrap();
        let guest = async {
            let (mut client, _) = console.accept().await.unwrap();
            client.write_all(b"\0\0\0\x05early, and late").await.unwrap();
        };
        let mut log = Vec::new();
        let (copied, ()) = tokio::join!(copy(&launcher, &mut log, pending()), guest);
        copied.unwrap();
        assert_eq!(String::from_utf8(log).unwrap(), "early, and late");
    }

    #[tokio::test(start_paused = true)]
    async fn a_launcher_without_a_guest_is_waited_for_as_long_as_it_is_there() {
        let (_directory, launcher) = directory();
        let socket = UnixListener::bind(&launcher).unwrap();
        let end = async {
            sleep(RETRY * 5).await;
            drop(socket);
        };
        let begin = Instant::now();
        let mut log = Vec::new();
        let (copied, ()) = tokio::join!(copy(&launcher, &mut log, pending()), end);
        copied.unwrap();
        assert!((RETRY * 5..=RETRY * 6).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        assert!(log.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_begins_is_given_up() {
        let (_directory, launcher) = directory();
        let begin = Instant::now();
        copy(&launcher, &mut Vec::new(), pending()).await.unwrap();
        assert_eq!(begin.elapsed(), LAUNCHER_TIMEOUT);
        copy(&launcher, &mut Vec::new(), ready(())).await.unwrap();
    }
}
