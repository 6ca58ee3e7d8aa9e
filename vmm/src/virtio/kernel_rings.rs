//! Two queues of a device that the host's kernel moves (vhost): laid out, started and stopped here, by a lane that waits for
//! what concerns them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::notifier::Notifier;
use super::{Queues, RingError};
use crate::memory::GuestMemory;
use crate::sys::vhost::{Ring, RingFds, Vhost};

/// Features of rings that the kernel has to know: indirect descriptors, EVENT_IDX, and version 1 of the specification.
pub(super) const RING_FEATURES: u64 = 1 << 28 | 1 << 29 | 1 << 32;

/// What the lane waits for.
const CHANGE: u64 = 0;
const ERROR: u64 = 1;
/// And the ring's number: an interrupt that goes by the line.
const CALL: u64 = 2;

/// What every vhost device does. See [`Vhost`].
pub(super) trait HostRings: Send {
    fn features(&self, wanted: u64) -> u64;
    fn set_features(&self, features: u64) -> io::Result<()>;
    fn set_memory(&self, memory: &GuestMemory) -> io::Result<()>;
    fn set_ring(&self, index: u32, ring: Ring, fds: &RingFds<'_>) -> io::Result<()>;
    fn position(&self, index: u32) -> io::Result<u16>;
}

impl HostRings for Vhost {
    fn features(&self, wanted: u64) -> u64 {
        self.features(wanted)
    }

    fn set_features(&self, features: u64) -> io::Result<()> {
        self.set_features(features)
    }

    fn set_memory(&self, memory: &GuestMemory) -> io::Result<()> {
        self.set_memory(memory)
    }

    fn set_ring(&self, index: u32, ring: Ring, fds: &RingFds<'_>) -> io::Result<()> {
        self.set_ring(index, ring, fds)
    }

    fn position(&self, index: u32) -> io::Result<u16> {
        self.position(index)
    }
}

/// What a device does to have its rings served by the kernel, and no longer.
pub(super) trait Backend<V> {
    /// Has both rings served.
    fn serve(&self, vhost: &V) -> io::Result<()>;
    /// Both are served no longer when this returns, whatever the first says.
    fn release(&self, vhost: &V) -> io::Result<()>;
}

/// The rings 0 and 1 of an open vhost device.
pub(super) struct KernelRings<V> {
    name: &'static str,
    vhost: V,
    /// Their numbers in the device.
    queues: [usize; 2],
    /// Rings when what decides over them may have changed.
    change: Arc<Notifier>,
    error: OwnedFd,
    /// For interrupts without messages.
    calls: [OwnedFd; 2],
    events: OwnedFd,
    /// The kernel serves the rings.
    runs: bool,
}

impl<V: HostRings> KernelRings<V> {
    /// The rings of `vhost`, which is called `name`, are these queues of the device.
    pub(super) fn new(name: &'static str, vhost: V, queues: [usize; 2]) -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let change = Arc::new(Notifier::new()?);
        let (error, calls) = (eventfd(0, flags)?, [eventfd(0, flags)?, eventfd(0, flags)?]);
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        let [first, second] = calls.each_ref();
        for (fd, data) in [
            (change.as_fd(), CHANGE),
            (error.as_fd(), ERROR),
            (first.as_fd(), CALL),
            (second.as_fd(), CALL + 1),
        ] {
            epoll::add(&events, fd, EventData::new_u64(data), EventFlags::IN)?;
        }
        Ok(Self { name, vhost, queues, change, error, calls, events, runs: false })
    }

    /// What has the lane look at everything again.
    pub(super) fn change(&self) -> &Arc<Notifier> {
        &self.change
    }

    pub(super) fn is_running(&self) -> bool {
        self.runs
    }

    /// The kernel's numbers of the rings, with the device's.
    fn rings(&self) -> [(u32, usize); 2] {
        let [first, second] = self.queues;
        [(0, first), (1, second)]
    }

    /// Whether the driver has enabled both, and the function may access memory. With only one of them, neither moves.
    pub(super) fn may_serve(&self, queues: &mut Queues) -> bool {
        self.queues.iter().all(|queue| queues.get(*queue).is_ok_and(|ring| ring.may_serve()))
    }

    /// Has the kernel serve them for a driver with these features.
    pub(super) fn start(
        &mut self,
        backend: &impl Backend<V>,
        features: u64,
        queues: &mut Queues,
    ) -> Result<(), RingError> {
        // Before the first ring is served: what fails in between is stopped.
        self.runs = true;
        self.vhost.set_features(self.vhost.features(features)).map_err(RingError::Host)?;
        for (index, queue) in self.rings() {
            let ring = queues.get(queue)?;
            if index == 0 {
                self.vhost.set_memory(ring.memory()).map_err(RingError::Host)?;
            }
            let layout = ring.host_layout()?;
            let own = self.calls.get(usize::from(index == 1)).ok_or(RingError::Absent(queue))?;
            let direct = ring.message_fd()?;
            let call: &dyn AsRawFd = direct.as_ref().map_or(own, |direct| direct);
            let fds = RingFds { kick: ring.kick(), call, error: &self.error };
            self.vhost.set_ring(index, layout, &fds).map_err(RingError::Host)?;
        }
        backend.serve(&self.vhost).map_err(RingError::Host)?;
        for queue in self.queues {
            // What is in the ring already.
            queues.get(queue)?.again();
        }
        tracing::info!("{} moves queues of the VM", self.name);
        Ok(())
    }

    /// Stops the kernel, and takes the rings' positions over if they are needed.
    pub(super) fn stop(
        &mut self,
        backend: &impl Backend<V>,
        mut queues: Option<&mut Queues>,
    ) -> Result<(), RingError> {
        self.runs = false;
        let mut result = backend.release(&self.vhost).map_err(RingError::Host);
        for (index, queue) in self.rings() {
            result = result.and(match (self.vhost.position(index), &mut queues) {
                (Ok(position), Some(queues)) => queues.get(queue).and_then(|ring| ring.take_over(position)),
                (Ok(_), None) => Ok(()),
                (Err(error), _) => Err(RingError::Host(error)),
            });
        }
        result
    }

    /// Stops the kernel where the driver takes its rings back.
    pub(super) fn abandon(&mut self, backend: &impl Backend<V>) {
        if self.runs
            && let Err(error) = self.stop(backend, None)
        {
            tracing::error!(%error, "{} does not let go of a queue", self.name);
        }
    }

    /// Readable when [`Self::handle_events`] is to be called.
    pub(super) fn source(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Interrupts the driver where the kernel cannot. Whether the lane is to look at everything again.
    pub(super) fn handle_events(&mut self, queues: &mut Queues) -> Result<bool, RingError> {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 4];
        let no_wait = rustix::time::Timespec::default();
        let count = epoll::wait(&self.events, &mut events, Some(&no_wait)).unwrap_or(0);
        let mut changed = false;
        for event in events.iter().take(count) {
            match event.data.u64() {
                CHANGE => {
                    self.change.settle();
                    changed = true;
                }
                ERROR => {
                    // Not again after the reset.
                    let _ = rustix::io::read(&self.error, &mut [0; 8]);
                    let error = format!("{} cannot follow the ring", self.name);
                    return Err(RingError::Host(io::Error::other(error)));
                }
                call => {
                    let at = usize::try_from(call - CALL).unwrap_or(usize::MAX);
                    if let (Some(fd), Some(queue)) = (self.calls.get(at), self.queues.get(at)) {
                        let _ = rustix::io::read(fd, &mut [0; 8]);
                        queues.get(*queue)?.interrupt();
                    }
                }
            }
        }
        Ok(changed)
    }
}
