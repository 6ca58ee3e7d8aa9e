//! vhost-user: another process, the back end, moves the queues of a device.

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd as _, IntoRawFd as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Error as ProtocolError, Frontend, VhostUserFrontend as _};
use vhost::{Error, VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::GuestMemoryBackend as _;
use vmm_sys_util::eventfd::EventFd;

use super::vhost::{HostRings, Ring, RingFds};
use crate::memory::GuestMemory;

/// How long a back end has for each answer. It completes the requests of a ring before it answers that the ring is stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The stack of the thread that waits for the end of [`ANSWER_TIMEOUT`].
const STACK: usize = 64 << 10;

const WANTED: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::RESET_DEVICE);

/// A connection to a back end, which knows of no other. Its clones are the same.
#[derive(Clone)]
pub(crate) struct VhostUser {
    frontend: Frontend,
    connection: Arc<Connection>,
    features: u64,
    protocol: VhostUserProtocolFeatures,
}

/// The socket, to wait for its end and to close it.
struct Connection {
    socket: UnixStream,
    timeout: Duration,
    /// The back end was given up.
    timed_out: AtomicBool,
}

impl VhostUser {
    /// Negotiates with the back end at the other end of a socket, which shall serve so many queues.
    ///
    /// # Errors
    /// When it does not answer, or lacks something.
    pub(crate) fn new(socket: UnixStream, queues: usize) -> io::Result<Self> {
        Self::with_timeout(socket, queues, ANSWER_TIMEOUT)
    }

    /// As [`Self::new`], with this timeout for each answer.
    pub(crate) fn with_timeout(socket: UnixStream, queues: usize, timeout: Duration) -> io::Result<Self> {
        let queues = u64::try_from(queues).unwrap_or(u64::MAX);
        socket.set_nonblocking(false)?;
        let connection =
            Connection { socket: socket.try_clone()?, timeout, timed_out: AtomicBool::new(false) };
        let mut frontend = Frontend::from_stream(socket, queues);
        let (features, protocol) = connection.exchange(|| {
            frontend.set_owner()?;
            let features = frontend.get_features()?;
            let protocol = frontend.get_protocol_features()? & WANTED;
            frontend.set_protocol_features(protocol)?;
            if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
                frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
            if protocol.contains(VhostUserProtocolFeatures::MQ) && frontend.get_queue_num()? < queues {
                return Err(Error::VhostUserProtocol(ProtocolError::FeatureMismatch));
            }
            Ok((features, protocol))
        })?;
        Ok(Self { frontend, connection: Arc::new(connection), features, protocol })
    }

    /// Has the back end forget what the driver set up, where it can.
    pub(crate) fn reset(&self) -> io::Result<()> {
        if !self.protocol.contains(VhostUserProtocolFeatures::RESET_DEVICE) {
            return Ok(());
        }
        let mut frontend = self.frontend.clone();
        self.connection.exchange(|| frontend.reset_device())
    }
}

impl HostRings for VhostUser {
    fn features(&self, wanted: u64) -> u64 {
        self.features & wanted
    }

    fn set_features(&self, features: u64) -> io::Result<()> {
        let features = features | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        self.connection.exchange(|| self.frontend.set_features(features))
    }

    fn set_memory(&self, memory: &GuestMemory) -> io::Result<()> {
        let regions = memory.iter().map(VhostUserMemoryRegionInfo::from_guest_region);
        let regions = regions.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
        self.connection.exchange(|| self.frontend.set_mem_table(&regions)).map(drop)
    }

    fn set_ring(&self, index: u32, ring: Ring, fds: &RingFds<'_>) -> io::Result<()> {
        let index = usize::try_from(index).map_err(io::Error::other)?;
        let host = |at: usize| u64::try_from(at).unwrap_or(u64::MAX);
        let layout = VringConfigData {
            queue_max_size: ring.size,
            queue_size: ring.size,
            flags: 0,
            desc_table_addr: host(ring.descriptors),
            used_ring_addr: host(ring.used),
            avail_ring_addr: host(ring.available),
            log_addr: None,
        };
        let (kick, call, error) = (event(fds.kick)?, event(fds.call)?, event(fds.error)?);
        let mut frontend = self.frontend.clone();
        self.connection.exchange(|| {
            frontend.set_vring_num(index, ring.size)?;
            frontend.set_vring_base(index, ring.position)?;
            frontend.set_vring_addr(index, &layout)?;
            frontend.set_vring_err(index, &error)?;
            frontend.set_vring_call(index, &call)?;
            frontend.set_vring_kick(index, &kick)?;
            frontend.set_vring_enable(index, true)
        })
    }

    fn position(&self, index: u32) -> io::Result<u16> {
        let index = usize::try_from(index).map_err(io::Error::other)?;
        let position = self.connection.exchange(|| self.frontend.get_vring_base(index))?;
        u16::try_from(position).map_err(io::Error::other)
    }

    fn connection(&self) -> Option<BorrowedFd<'_>> {
        Some(self.connection.socket.as_fd())
    }
}

impl std::fmt::Debug for VhostUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhostUser").field("features", &self.features).finish_non_exhaustive()
    }
}

impl Connection {
    /// Makes a request of the back end, and closes the connection when it has not answered in time: the front end's own calls wait for ever
    /// on a socket that is open, also where it has a timeout.
    fn exchange<T>(&self, request: impl FnOnce() -> Result<T, Error>) -> io::Result<T> {
        let (answered, waiting) = mpsc::sync_channel::<()>(0);
        let give_up = move || {
            if waiting.recv_timeout(self.timeout) == Err(RecvTimeoutError::Timeout) {
                self.timed_out.store(true, Ordering::SeqCst);
                // Fails where it is closed already.
                let _ = self.socket.shutdown(Shutdown::Both);
            }
        };
        let answer = thread::scope(|scope| {
            let limit = thread::Builder::new().name("vhost-user".to_owned()).stack_size(STACK);
            limit.spawn_scoped(scope, give_up)?;
            let answer = request();
            drop(answered);
            Ok::<_, io::Error>(answer)
        })?;
        answer.map_err(|error| self.describe(error))
    }

    fn describe(&self, error: Error) -> io::Error {
        if self.timed_out.load(Ordering::SeqCst) {
            let text = format!("the back end did not answer within {:?}", self.timeout);
            return io::Error::new(io::ErrorKind::TimedOut, text);
        }
        match error {
            Error::VhostUserProtocol(
                ProtocolError::Disconnected | ProtocolError::PartialMessage | ProtocolError::SocketBroken(_),
            ) => io::Error::new(io::ErrorKind::ConnectionReset, "the back end has closed the connection"),
            error => io::Error::other(error),
        }
    }
}

/// An eventfd of its own for another one's file.
fn event(fd: &dyn AsRawFd) -> io::Result<EventFd> {
    #[expect(
        unsafe_code,
        reason = "the callers' files differ in their types, and none of these is that of a descriptor"
    )]
    // SAFETY: `fd` is borrowed, and with it what it owns, as long as this function runs.
    let fd = unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) };
    let own = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
    #[expect(unsafe_code, reason = "an EventFd is made of nothing else")]
    // SAFETY: the descriptor was made above, and has no other owner.
    Ok(unsafe { EventFd::from_raw_fd(own.into_raw_fd()) })
}
