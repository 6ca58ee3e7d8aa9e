//! The thread that serves one device: waits for kicks, for the device's own file and for orders.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::signals::Signals;
use super::{Device, Queues, RingError};
use crate::config::{Holding, Stalls};

/// Serving keeps no more than a request on the stack; image formats recurse a little.
const STACK: usize = 256 << 10;
const ORDER: u64 = u64::MAX;
const SOURCE: u64 = u64::MAX - 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Command {
    Process,
    Pause,
    Stop,
}

struct Control {
    state: Mutex<State>,
    changed: Condvar,
    wake: EventFd,
}

struct State {
    command: Command,
    /// Not serving: parked, or ended.
    quiet: bool,
    /// A request is held, and not tried again while the VM is paused.
    held: bool,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, command: Command) {
        let mut state = self.lock();
        if state.command != Command::Stop {
            state.command = command;
        }
        drop(state);
        self.changed.notify_all();
        if let Err(error) = self.wake.write(1) {
            tracing::error!(%error, "a worker could not be woken");
        }
    }

    fn command(&self) -> Command {
        self.lock().command
    }

    /// Waits as long as the VM is paused.
    fn park(&self) {
        let mut state = self.lock();
        while state.command == Command::Pause {
            state.quiet = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.quiet = false;
    }

    /// Waits until nothing is served, [`PATIENCE`] at most; whether it came to that.
    fn is_quiet_in_time(&self, held_counts: bool) -> bool {
        let waits = |state: &mut State| !(state.quiet || held_counts && state.held);
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn set_held(&self, held: bool) {
        self.lock().held = held;
        self.changed.notify_all();
    }
}

/// A worker's end, however it comes: wakes the threads that wait for it, and makes the device ask for a reset when it was a
/// panic.
struct End<'a> {
    control: &'a Control,
    signals: &'a Signals,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.signals.ask_for_reset();
        }
        self.control.lock().quiet = true;
        self.control.changed.notify_all();
    }
}

/// How long a worker is waited for that is to be quiet.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running worker. Dropping it stops and joins the thread.
pub(super) struct Worker {
    control: Arc<Control>,
    stalls: Stalls,
    thread: Option<JoinHandle<Box<dyn Device>>>,
}

impl Worker {
    /// Starts serving. On failure the device comes back.
    pub(super) fn spawn(
        name: &str,
        device: Box<dyn Device>,
        queues: Queues,
        signals: Arc<Signals>,
    ) -> Result<Self, (Box<dyn Device>, io::Error)> {
        let wake = match EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) {
            Ok(wake) => wake,
            Err(error) => return Err((device, error)),
        };
        let state = Mutex::new(State { command: Command::Process, quiet: false, held: false });
        let control = Arc::new(Control { state, changed: Condvar::new(), wake });
        // The device goes in after the thread is there, so that it is not lost with one that is not.
        let (hand, take) = mpsc::sync_channel::<Box<dyn Device>>(1);
        let theirs = control.clone();
        let stalls = device.stalls();
        let held = control.clone();
        stalls.arm(&Holding(Arc::new(move |is_held| held.set_held(is_held))));
        let thread =
            thread::Builder::new().name(format!("virtio-{name}")).stack_size(STACK).spawn(move || {
                let mut device = take.recv().unwrap_or_else(|_| Box::new(Nothing));
                let _end = End { control: &theirs, signals: &signals };
                let result = Loop::new(queues, &theirs).and_then(|mut run| run.run(device.as_mut()));
                if let Err(error) = result {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a device needs a reset");
                    signals.ask_for_reset();
                }
                device.deactivate();
                device
            });
        match thread {
            Ok(thread) => match hand.send(device) {
                Ok(()) => Ok(Self { control, stalls, thread: Some(thread) }),
                Err(mpsc::SendError(device)) => Err((device, io::Error::other("the worker ended at once"))),
            },
            Err(error) => Err((device, error)),
        }
    }

    /// Requests its end; does not wait.
    pub(super) fn ask_to_stop(&self) {
        self.control.give(Command::Stop);
        self.stalls.release();
    }

    /// Whether it ended, so that [`Self::join`] does not wait.
    pub(super) fn is_gone(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end. `None` if the thread panicked and took the device with it.
    pub(super) fn join(mut self) -> Option<Box<dyn Device>> {
        self.ask_to_stop();
        self.thread.take()?.join().ok()
    }

    /// Waits until nothing is served any more, and nothing is in flight. Whether that is so after [`PATIENCE`].
    pub(super) fn pause(&self) -> bool {
        self.stalls.park(true);
        self.control.give(Command::Pause);
        self.control.is_quiet_in_time(true)
    }

    /// Waits until a worker that was asked to stop serves nothing. As [`Self::pause`].
    pub(super) fn is_over_in_time(&self) -> bool {
        self.control.is_quiet_in_time(false)
    }

    /// Continues after [`Self::pause`].
    pub(super) fn resume(&self) {
        self.stalls.park(false);
        self.control.give(Command::Process);
    }

    /// Waits for the end, [`PATIENCE`] at most: a disk that hangs keeps its worker.
    pub(super) fn stop(self) {
        self.ask_to_stop();
        if !self.control.is_quiet_in_time(false) {
            tracing::warn!("a device does not stop: the host does not answer its requests");
            // Its thread is left behind.
            std::mem::forget(self);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by its own thread.
            let _ = thread.join();
        }
    }
}

/// Placeholder for a device that was never handed over.
struct Nothing;

impl Device for Nothing {
    fn info(&self) -> super::DeviceInfo {
        let config = Arc::new(Vec::new());
        super::DeviceInfo { name: "none", id: 0, class: 0, features: 0, queues: Vec::new(), config }
    }

    fn process_queue(&mut self, queue: usize, _queues: &mut Queues) -> Result<(), RingError> {
        Err(RingError::Absent(queue))
    }
}

/// Why serving ended other than by command.
#[derive(Debug, thiserror::Error)]
enum WorkerError {
    #[error("the driver's ring is unusable")]
    Ring(#[from] RingError),
    #[error("the worker cannot wait for events")]
    Wait(#[from] io::Error),
}

struct Loop<'a> {
    queues: Queues,
    kicks: Vec<(usize, Arc<EventFd>)>,
    control: &'a Control,
    epoll: Epoll,
    watched: Option<RawFd>,
}

impl<'a> Loop<'a> {
    fn new(queues: Queues, control: &'a Control) -> Result<Self, WorkerError> {
        let epoll = Epoll::new()?;
        let kicks: Vec<_> = queues.kicks().collect();
        for (at, (_, kick)) in (0..).zip(&kicks) {
            watch(&epoll, kick.as_raw_fd(), at)?;
        }
        watch(&epoll, control.wake.as_raw_fd(), ORDER)?;
        Ok(Self { queues, kicks, control, epoll, watched: None })
    }

    fn run(&mut self, device: &mut dyn Device) -> Result<(), WorkerError> {
        for at in 0..self.kicks.len() {
            self.kicked(device, at)?;
        }
        let mut events = [EpollEvent::default(); 8];
        loop {
            self.watch_source(device)?;
            let count = match self.epoll.wait(-1, &mut events) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            for event in events.iter().take(count) {
                match event.data() {
                    ORDER => {
                        // Only ever full or empty: nothing is lost.
                        let _ = self.control.wake.read();
                        if !self.follow(device)? {
                            return Ok(());
                        }
                    }
                    SOURCE => device.source_ready(&mut self.queues)?,
                    at => self.kicked(device, usize::try_from(at).unwrap_or(usize::MAX))?,
                }
            }
        }
    }

    /// Follows the last command; returns whether to continue.
    fn follow(&mut self, device: &mut dyn Device) -> Result<bool, WorkerError> {
        loop {
            match self.control.command() {
                Command::Process => return Ok(true),
                Command::Stop => return Ok(false),
                Command::Pause => {
                    device.settle(&mut self.queues)?;
                    self.control.park();
                }
            }
        }
    }

    fn kicked(&mut self, device: &mut dyn Device, at: usize) -> Result<(), WorkerError> {
        if let Some((queue, kick)) = self.kicks.get(at) {
            // Empty when it is served without a kick.
            let _ = kick.read();
            device.process_queue(*queue, &mut self.queues)?;
        }
        Ok(())
    }

    /// Follows what the device waits for now.
    fn watch_source(&mut self, device: &dyn Device) -> Result<(), WorkerError> {
        let wanted = device.source().map(|fd| fd.as_raw_fd());
        if wanted == self.watched {
            return Ok(());
        }
        if let Some(old) = self.watched.take() {
            self.epoll.ctl(ControlOperation::Delete, old, EpollEvent::default())?;
        }
        if let Some(fd) = wanted {
            watch(&self.epoll, fd, SOURCE)?;
            self.watched = wanted;
        }
        Ok(())
    }
}

fn watch(epoll: &Epoll, fd: RawFd, data: u64) -> io::Result<()> {
    epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, data))
}
