use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A viewer's connection.
#[derive(Debug)]
pub enum Stream {
    /// On a unix socket.
    Unix(UnixStream),
    /// On a loopback address.
    Tcp(TcpStream),
}

impl Stream {
    /// Another handle of the same connection.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// How long a viewer may be silent while something is expected of it; `None` is forever.
    pub(super) fn set_read_timeout(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(patience),
            Self::Tcp(stream) => stream.set_read_timeout(patience),
        }
    }

    /// How long a viewer may fail to read the data it requested.
    pub(super) fn set_write_timeout(&self, patience: Duration) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(Some(patience)),
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(patience))
            }
        }
    }

    /// Wakes the reading and the writing thread.
    pub(super) fn close(&self) {
        // The other side may have closed it before.
        let _gone = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
