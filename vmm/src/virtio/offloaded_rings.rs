//! Queues of a device that the host's kernel (vhost) or another process (vhost-user) moves: laid out, started and stopped here,
//! by a lane that waits for what concerns them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::notifier::Notifier;
use super::{Queues, RingError};
use crate::sys::vhost::{HostRings, RingFds};

/// Features of rings that the kernel has to know: indirect descriptors, EVENT_IDX, and version 1 of the specification.
pub(super) const RING_FEATURES: u64 = 1 << 28 | 1 << 29 | 1 << 32;

/// What the lane waits for.
const CHANGE: u64 = 0;
const ERROR: u64 = 1;
const CONNECTION: u64 = 2;
/// And the ring's number: an interrupt that goes by the line.
const CALL: u64 = 3;

/// What a device does to have its rings served, and no longer.
pub(super) trait Backend<V> {
    /// Has all rings served.
    fn serve(&self, vhost: &V) -> io::Result<()>;
    /// All are served no longer when this returns, or when their positions are known, whatever the first says.
    fn release(&self, vhost: &V) -> io::Result<()>;
}

/// The rings of an open vhost device, or of a vhost-user connection.
pub(super) struct OffloadedRings<V> {
    name: &'static str,
    vhost: V,
    /// Their numbers in the device, by those that they have over there.
    queues: Vec<usize>,
    /// Rings when what decides over them may have changed.
    change: Arc<Notifier>,
    error: OwnedFd,
    /// For interrupts without messages.
    calls: Vec<OwnedFd>,
    events: OwnedFd,
    /// The rings are served.
    runs: bool,
}

impl<V: HostRings> OffloadedRings<V> {
    /// The rings of `vhost`, which is called `name`, are these queues of the device.
    pub(super) fn new(name: &'static str, vhost: V, queues: Vec<usize>) -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let change = Arc::new(Notifier::new()?);
        let error = eventfd(0, flags)?;
        let calls = queues.iter().map(|_| Ok(eventfd(0, flags)?)).collect::<io::Result<Vec<_>>>()?;
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        let own = [(Some(change.as_fd()), CHANGE), (Some(error.as_fd()), ERROR)];
        let calling = calls.iter().map(|fd| Some(fd.as_fd())).zip(CALL..);
        for (fd, data) in own.into_iter().chain([(vhost.connection(), CONNECTION)]).chain(calling) {
            if let Some(fd) = fd {
                epoll::add(&events, fd, EventData::new_u64(data), EventFlags::IN)?;
            }
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

    /// What serves them.
    pub(super) fn host(&self) -> &V {
        &self.vhost
    }

    /// Whether the driver has enabled all, and the function may access memory. With only some of them, none moves.
    pub(super) fn may_serve(&self, queues: &mut Queues) -> bool {
        self.queues.iter().all(|queue| queues.get(*queue).is_ok_and(|ring| ring.may_serve()))
    }

    /// Has those served that the driver, which has these features, has enabled.
    pub(super) fn start(
        &mut self,
        backend: &impl Backend<V>,
        features: u64,
        queues: &mut Queues,
    ) -> Result<(), RingError> {
        // Before the first ring is served: what fails in between is stopped.
        self.runs = true;
        self.vhost.set_features(self.vhost.features(features)).map_err(RingError::Host)?;
        let mut memory_is_set = false;
        for ((index, queue), own) in (0..).zip(&self.queues).zip(&self.calls) {
            let Ok(ring) = queues.get(*queue) else { continue };
            if !std::mem::replace(&mut memory_is_set, true) {
                self.vhost.set_memory(ring.memory()).map_err(RingError::Host)?;
            }
            let layout = ring.host_layout()?;
            let direct = ring.message_fd()?;
            let call: &dyn AsRawFd = direct.as_ref().map_or(own, |direct| direct);
            let fds = RingFds { kick: ring.kick(), call, error: &self.error };
            self.vhost.set_ring(index, layout, &fds).map_err(RingError::Host)?;
        }
        backend.serve(&self.vhost).map_err(RingError::Host)?;
        for queue in &self.queues {
            // What is in the ring already.
            queues.get(*queue).into_iter().for_each(|ring| ring.again());
        }
        tracing::info!("{} moves queues of the VM", self.name);
        Ok(())
    }

    /// Has them served no longer, and takes the rings' positions over.
    pub(super) fn stop(&mut self, backend: &impl Backend<V>, queues: &mut Queues) -> Result<(), RingError> {
        self.runs = false;
        let mut result = backend.release(&self.vhost).map_err(RingError::Host);
        for (index, queue) in (0..).zip(&self.queues) {
            let Ok(ring) = queues.get(*queue) else { continue };
            let position = self.vhost.position(index).map_err(RingError::Host);
            result = result.and(position.and_then(|position| ring.take_over(position)));
        }
        result
    }

    /// Has them served no longer where the driver takes its rings back.
    pub(super) fn abandon(&mut self, backend: &impl Backend<V>) {
        if !std::mem::take(&mut self.runs) {
            return;
        }
        let mut result = backend.release(&self.vhost);
        for index in (0..).take(self.queues.len()) {
            result = result.and(self.vhost.position(index).map(|_| ()));
        }
        if let Err(error) = result {
            tracing::error!(%error, "{} does not let go of a queue", self.name);
        }
    }

    /// Readable when [`Self::handle_events`] is to be called.
    pub(super) fn source(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Interrupts the driver where that is not done by who serves the rings. Whether the lane is to look at everything again.
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
                CONNECTION => {
                    let error = format!("{} has closed its connection, or speaks out of turn", self.name);
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
