//! Unix sockets that only their owner may use.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

/// How long to leave the system alone after it could not give us a connection (no descriptors, no memory).
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process accepts connections there.
    #[error("{0} is in use: another launcher serves it")]
    InUse(PathBuf),
    /// A system call failed.
    #[error("cannot listen on {path}")]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Listens on `path`, mode 0600. A stale socket is replaced.
pub fn bind(path: &Path) -> Result<UnixListener, SocketError> {
    let listen = |source| SocketError::Listen { path: path.to_owned(), source };
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(SocketError::InUse(path.to_owned()));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(listen(error)),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(listen)?;
    // The umask of the process already keeps others out in between.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(listen)?;
    Ok(listener)
}

/// The next connection of a peer that runs as us or as root; others are turned away.
pub async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await.and_then(|(stream, _)| Ok((stream.peer_cred()?, stream))) {
            Ok((peer, stream)) if trusted(peer.uid()) => return stream,
            Ok((peer, _)) => warn!(uid = peer.uid(), "connection rejected: not the owner's uid"),
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_taken_over_when_stale_and_never_when_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(bind(&path), Err(SocketError::InUse(_))));
        drop(first);
        assert!(bind(&path).is_ok());
        assert!(matches!(bind(Path::new("/nonexistent/s")), Err(SocketError::Listen { .. })));
    }

    #[test]
    fn only_root_and_we_are_trusted() {
        let me = rustix::process::geteuid().as_raw();
        assert!(trusted(0) && trusted(me) && !trusted(me + 1));
    }
}
