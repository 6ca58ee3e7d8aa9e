//! The sockets of a launcher: waits for one to appear, without polling, and connects.

use std::io;
use std::path::Path;

use rustix::fs::inotify::WatchFlags;
use tokio::net::UnixStream;
use vireo_proto::files::SocketPath;

use crate::inotify::Inotify;

/// Returns when something exists at `path`, at once if it does already. The directory must exist.
///
/// # Errors
/// When the directory cannot be watched.
pub(super) async fn appears(path: &Path) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other("a socket path without a directory"))?;
    let inotify = Inotify::new()?;
    // Watch before the check, so that a socket that appears in between is noticed.
    inotify.watch(directory, WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
    while !path.exists() {
        inotify.events().await?;
    }
    Ok(())
}

/// Connects to a socket of a launcher. Its directory belongs to the launcher's user, so no link there is followed.
///
/// # Errors
/// When it is not there, or no process serves it.
pub(crate) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = SocketPath::open(path)?;
    UnixStream::connect(socket.path()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_seen_whether_it_came_before_or_comes_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("launcher.sock");
        let waiting = tokio::spawn({
            let path = path.clone();
            async move { appears(&path).await }
        });
        tokio::task::yield_now().await;
        std::fs::write(dir.path().join("other"), "").unwrap();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        waiting.await.unwrap().unwrap();
        appears(&path).await.unwrap();
    }
}
