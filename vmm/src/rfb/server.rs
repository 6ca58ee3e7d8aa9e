use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use super::stream::Stream;
use super::viewer;
use crate::display::Display;

/// The most viewers of one display.
const MAX_VIEWERS: usize = 16;
const STACK: usize = 256 << 10;
/// How long accepting pauses when the process has run out of files.
const BREATH: Duration = Duration::from_millis(200);

/// Where viewers connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket that is made there, for its owner only.
    Unix(PathBuf),
    /// A loopback address.
    Tcp(SocketAddr),
}

/// Why a text is not an address to listen at.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseAddressError {
    /// Neither of the two forms.
    #[error("{0:?}: write unix:PATH or 127.0.0.1:PORT")]
    Form(String),
    /// Others could connect.
    #[error(
        "{0} is not a loopback address, and viewers are not authenticated: use a loopback address or unix:PATH"
    )]
    NotLoopback(SocketAddr),
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let address: SocketAddr = text.parse().map_err(|_| ParseAddressError::Form(text.to_owned()))?;
        if address.ip().is_loopback() {
            Ok(Self::Tcp(address))
        } else {
            Err(ParseAddressError::NotLoopback(address))
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener) => listener.accept().map(|(stream, _)| stream.into()),
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| stream.into()),
        }
    }

    /// Wakes the accepting thread, for the last time.
    fn close(&self) {
        let outcome = match self {
            Self::Unix(listener) => rustix::net::shutdown(listener.as_fd(), Shutdown::Both),
            Self::Tcp(listener) => rustix::net::shutdown(listener.as_fd(), Shutdown::Both),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "viewers could not be kept from connecting");
        }
    }
}

/// Shows a display to viewers. Dropping it ends their connections.
pub struct Server {
    shared: Arc<Shared>,
    address: Address,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    display: Display,
    listener: Listener,
    viewers: Mutex<Viewers>,
}

#[derive(Default)]
struct Viewers {
    /// By number, a handle of each connection.
    streams: BTreeMap<u64, Stream>,
    next: u64,
    closed: bool,
}

impl Shared {
    fn viewers(&self) -> MutexGuard<'_, Viewers> {
        self.viewers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Listens at `address`; fails if it is in use.
    pub fn listen(address: &Address, display: Display) -> io::Result<Self> {
        let (listener, address) = match address {
            Address::Unix(path) => (Listener::Unix(bind(path)?), address.clone()),
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                let address = listener.local_addr()?;
                (Listener::Tcp(listener), Address::Tcp(address))
            }
        };
        let shared = Arc::new(Shared { display, listener, viewers: Mutex::default() });
        let theirs = shared.clone();
        let builder = std::thread::Builder::new().name("vnc".to_owned()).stack_size(STACK);
        let accepting = Some(builder.spawn(move || accept(&theirs))?);
        Ok(Self { shared, address, accepting })
    }

    /// The address it listens at, with the actual port.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

/// For its owner only from the first moment on: the mode of an unbound socket is that of its file.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket.into())
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut viewers = self.shared.viewers();
        viewers.closed = true;
        viewers.streams.values().for_each(Stream::close);
        drop(viewers);
        self.shared.listener.close();
        if let Some(accepting) = self.accepting.take()
            && accepting.join().is_err()
        {
            tracing::error!("the thread that accepts viewers panicked");
        }
        if let Address::Unix(path) = &self.address {
            // The file may have been removed before.
            let _gone = std::fs::remove_file(path);
        }
    }
}

fn accept(shared: &Arc<Shared>) {
    loop {
        let outcome = shared.listener.accept();
        if shared.viewers().closed {
            return;
        }
        if let Err(error) = outcome.and_then(|stream| admit(stream, shared)) {
            tracing::warn!(%error, "a viewer could not be served");
            std::thread::sleep(BREATH);
        }
    }
}

fn admit(stream: Stream, shared: &Arc<Shared>) -> io::Result<()> {
    let mut viewers = shared.viewers();
    if viewers.streams.len() >= MAX_VIEWERS {
        tracing::warn!(most = MAX_VIEWERS, "one viewer too many was turned away");
        return Ok(());
    }
    let number = viewers.next;
    viewers.next += 1;
    viewers.streams.insert(number, stream.try_clone()?);
    drop(viewers);
    let theirs = shared.clone();
    let builder = std::thread::Builder::new().name("vnc-in".to_owned()).stack_size(STACK);
    let spawned = builder.spawn(move || {
        tracing::debug!(number, "a viewer has come");
        match viewer::serve(stream, &theirs.display) {
            Ok(()) => tracing::debug!(number, "a viewer has left"),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::info!(number, %error, cause, "a viewer is gone");
            }
        }
        theirs.viewers().streams.remove(&number);
    });
    spawned.map(drop).inspect_err(|_| drop(shared.viewers().streams.remove(&number)))
}

#[cfg(test)]
mod tests;
