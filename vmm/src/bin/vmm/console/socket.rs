use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{Seat, lock};
use crate::spool::Spool;

/// A console on a unix socket: one client at a time, the next one waits. Output without a reader is kept, up to
/// the spool's bound, so that a late client sees how the guest started.
pub(super) struct Socket {
    client: Arc<Client>,
    path: PathBuf,
}

#[derive(Default)]
struct Client {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stream: Option<UnixStream>,
    closed: bool,
}

impl Client {
    fn set(&self, stream: Option<UnixStream>) {
        lock(&self.state).stream = stream;
        self.changed.notify_all();
    }

    /// Writes to the client there is, or to the next one; gives up when the console closes.
    fn write(&self, bytes: &[u8]) {
        loop {
            let waiting = |state: &mut State| state.stream.is_none() && !state.closed;
            let state =
                self.changed.wait_while(lock(&self.state), waiting).unwrap_or_else(PoisonError::into_inner);
            let Some(mut stream) = state.stream.as_ref().and_then(|stream| stream.try_clone().ok()) else {
                return;
            };
            drop(state);
            match stream.write_all(bytes) {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(%error, "the console's client is gone");
                    self.set(None);
                }
            }
        }
    }
}

impl Socket {
    /// Makes the socket at `path`, which must not exist.
    pub(super) fn open(path: &Path, seat: Arc<Seat>) -> io::Result<(Self, Spool)> {
        let listener = UnixListener::bind(path)?;
        let client = Arc::new(Client::default());
        let writer = client.clone();
        let spool = Spool::start(move |bytes| writer.write(bytes))?;
        let accepting = client.clone();
        let builder = std::thread::Builder::new().name("console-in".to_owned()).stack_size(super::STACK);
        builder.spawn(move || {
            for stream in listener.incoming() {
                match stream.and_then(|stream| Ok((stream.try_clone()?, stream))) {
                    Ok((reader, writer)) => {
                        accepting.set(Some(writer));
                        serve(reader, &seat);
                        accepting.set(None);
                    }
                    Err(error) => tracing::warn!(%error, "a console client could not be served"),
                }
            }
        })?;
        Ok((Self { client, path: path.to_owned() }, spool))
    }

    /// Output is no longer kept for later clients.
    pub(super) fn close(&self) {
        lock(&self.client.state).closed = true;
        self.client.changed.notify_all();
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The file may have been removed before.
        let _gone = std::fs::remove_file(&self.path);
    }
}

fn serve(mut stream: UnixStream, seat: &Seat) {
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => seat.feed(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
