//! The thread of one lane: waits for kicks, for the lane's own file and for orders.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::batching::GivesWay;
use super::queue::Position;
use super::signals::Signals;
use super::{Lane, Queues, RingError};
use crate::config::{Holding, Stalls, ThreadHook, ThreadKind};
use crate::state::SectionError;

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

/// What a lane that rests has to be saved.
#[derive(Clone, Debug, Default)]
pub(super) struct Rest {
    /// Where its queues are.
    pub(super) positions: Vec<(usize, Position)>,
    /// [`Lane::save`].
    pub(super) state: Vec<u8>,
}

impl Rest {
    fn of(lane: &dyn Lane, queues: &Queues) -> Result<Self, &'static str> {
        let positions = queues.positions().ok_or(UNANSWERED)?;
        match lane.save() {
            Ok(state) => Ok(Self { positions, state }),
            Err(SectionError::Unsavable(why)) => Err(why),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a lane has no state");
                Err("its state cannot be read")
            }
        }
    }
}

/// Requests are held, or not answered.
const UNANSWERED: &str =
    "requests are not answered: the host cannot carry them out, or the guest keeps the device from RAM";

struct Control {
    state: Mutex<State>,
    changed: Condvar,
    wake: EventFd,
}

struct State {
    command: Command,
    /// Not serving: parked, or ended.
    quiet: bool,
    /// While it is parked: its state, or why there is none that could be saved.
    rest: Result<Rest, &'static str>,
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
    fn park(&self, lane: &dyn Lane, queues: &Queues) {
        let mut state = self.lock();
        while state.command == Command::Pause {
            if !state.quiet {
                state.rest = Rest::of(lane, queues);
            }
            state.quiet = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.quiet = false;
        state.rest = Err(UNANSWERED);
    }

    /// Waits until nothing is served, or until `deadline`; whether it came to that.
    fn is_quiet_in_time(&self, deadline: Instant, held_counts: bool) -> bool {
        let waits = |state: &mut State| !(state.quiet || held_counts && state.held);
        let patience = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), patience, waits);
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

/// A running worker. Dropping it stops and joins the thread.
pub(super) struct Worker {
    control: Arc<Control>,
    stalls: Stalls,
    thread: Option<JoinHandle<Box<dyn Lane>>>,
}

impl Worker {
    /// Starts serving, or waits for [`Self::resume`] if it begins paused. On failure the lane comes back.
    pub(super) fn spawn(
        name: &str,
        (lane, queues): (Box<dyn Lane>, Queues),
        signals: Arc<Signals>,
        (threads, paused): (ThreadHook, bool),
    ) -> Result<Self, (Box<dyn Lane>, io::Error)> {
        let wake = match EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) {
            Ok(wake) => wake,
            Err(error) => return Err((lane, error)),
        };
        let command = if paused { Command::Pause } else { Command::Process };
        let state = Mutex::new(State { command, quiet: false, rest: Err(UNANSWERED), held: false });
        let control = Arc::new(Control { state, changed: Condvar::new(), wake });
        // The lane goes in after the thread is there, so that it is not lost with one that is not.
        let (hand, take) = mpsc::sync_channel::<Box<dyn Lane>>(1);
        let theirs = control.clone();
        let stalls = lane.stalls();
        let held = control.clone();
        stalls.arm(&Holding(Arc::new(move |is_held| held.set_held(is_held))));
        let starts = threads.clone();
        let thread = thread::Builder::new().name(format!("virtio-{name}")).stack_size(STACK);
        let serve = move || {
            threads.started(ThreadKind::Device);
            let mut lane = take.recv().unwrap_or_else(|_| Box::new(Nothing));
            let _end = End { control: &theirs, signals: &signals };
            let result =
                Loop::new(queues, &theirs, lane.waits_for_kicks()).and_then(|mut run| run.run(lane.as_mut()));
            if let Err(error) = result {
                tracing::warn!(error = &error as &dyn std::error::Error, "a device needs a reset");
                signals.ask_for_reset();
            }
            lane.deactivate();
            lane
        };
        match starts.start(|| thread.spawn(serve)) {
            Ok(thread) => match hand.send(lane) {
                Ok(()) => Ok(Self { control, stalls, thread: Some(thread) }),
                Err(mpsc::SendError(lane)) => Err((lane, io::Error::other("the worker ended at once"))),
            },
            Err(error) => Err((lane, error)),
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

    /// Waits for the end. `None` if the thread panicked and took the lane with it.
    pub(super) fn join(mut self) -> Option<Box<dyn Lane>> {
        self.ask_to_stop();
        self.thread.take()?.join().ok()
    }

    /// Requests that it serves nothing any more, and has nothing in flight; does not wait.
    pub(super) fn ask_to_pause(&self) {
        self.stalls.park(true);
        self.control.give(Command::Pause);
    }

    /// Waits for what [`Self::ask_to_pause`] requested. Whether that is so by `deadline`.
    pub(super) fn is_paused_in_time(&self, deadline: Instant) -> bool {
        self.control.is_quiet_in_time(deadline, true)
    }

    /// Waits until a worker that was asked to stop serves nothing. As [`Self::is_paused_in_time`].
    pub(super) fn is_over_in_time(&self, deadline: Instant) -> bool {
        self.control.is_quiet_in_time(deadline, false)
    }

    /// While it is paused: its state, or why there is none that could be saved.
    pub(super) fn rest(&self) -> Result<Rest, &'static str> {
        self.control.lock().rest.clone()
    }

    /// Continues after [`Self::ask_to_pause`].
    pub(super) fn resume(&self) {
        self.stalls.park(false);
        self.control.give(Command::Process);
    }

    /// Waits for the end, until `deadline` at most: a disk that hangs keeps its worker.
    pub(super) fn stop(self, deadline: Instant) {
        self.ask_to_stop();
        if !self.is_over_in_time(deadline) {
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

/// Placeholder for a lane that was never handed over.
struct Nothing;

impl Lane for Nothing {
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
    /// The lane's source, and what it is waited for to be.
    watched: Option<(RawFd, EventSet)>,
    gives_way: Option<GivesWay>,
}

impl<'a> Loop<'a> {
    fn new(queues: Queues, control: &'a Control, waits: bool) -> Result<Self, WorkerError> {
        let epoll = Epoll::new()?;
        let kicks: Vec<_> = queues.kicks().collect();
        for (at, (_, kick)) in (0..).zip(&kicks).filter(|_| waits) {
            watch(&epoll, (kick.as_raw_fd(), EventSet::IN), at)?;
        }
        watch(&epoll, (control.wake.as_raw_fd(), EventSet::IN), ORDER)?;
        Ok(Self { queues, kicks, control, epoll, watched: None, gives_way: None })
    }

    fn run(&mut self, lane: &mut dyn Lane) -> Result<(), WorkerError> {
        if !self.follow(lane)? {
            return Ok(());
        }
        self.serve_all(lane)?;
        self.gives_way = lane.gives_way().then(|| GivesWay::new(&self.queues));
        let mut events = [EpollEvent::default(); 8];
        loop {
            self.watch_source(lane)?;
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
                        if self.control.command() == Command::Process {
                            continue;
                        }
                        if !self.follow(lane)? {
                            return Ok(());
                        }
                        // What the lane gave back when it settled, it takes again.
                        self.serve_all(lane)?;
                    }
                    SOURCE => lane.source_ready(&mut self.queues)?,
                    at => self.kicked(lane, usize::try_from(at).unwrap_or(usize::MAX))?,
                }
            }
            if let Some(gives_way) = &mut self.gives_way
                && !gives_way.woken(&self.queues)
            {
                self.gives_way = None;
            }
        }
    }

    /// Follows the last command; returns whether to continue.
    fn follow(&mut self, lane: &mut dyn Lane) -> Result<bool, WorkerError> {
        loop {
            match self.control.command() {
                Command::Process => return Ok(true),
                Command::Stop => return Ok(false),
                Command::Pause => {
                    lane.settle(&mut self.queues)?;
                    self.control.park(lane, &self.queues);
                }
            }
        }
    }

    fn serve_all(&mut self, lane: &mut dyn Lane) -> Result<(), WorkerError> {
        (0..self.kicks.len()).try_for_each(|at| self.kicked(lane, at))
    }

    fn kicked(&mut self, lane: &mut dyn Lane, at: usize) -> Result<(), WorkerError> {
        if let Some((queue, kick)) = self.kicks.get(at) {
            // Empty when it is served without a kick.
            if lane.waits_for_kicks() {
                let _ = kick.read();
            }
            lane.process_queue(*queue, &mut self.queues)?;
        }
        Ok(())
    }

    /// Follows what the lane waits for now.
    fn watch_source(&mut self, lane: &dyn Lane) -> Result<(), WorkerError> {
        let ready = if lane.waits_to_write() { EventSet::OUT } else { EventSet::IN };
        let wanted = lane.source().map(|fd| (fd.as_raw_fd(), ready));
        if wanted == self.watched {
            return Ok(());
        }
        if let Some((old, _)) = self.watched.take() {
            self.epoll.ctl(ControlOperation::Delete, old, EpollEvent::default())?;
        }
        if let Some(source) = wanted {
            watch(&self.epoll, source, SOURCE)?;
            self.watched = wanted;
        }
        Ok(())
    }
}

fn watch(epoll: &Epoll, (fd, ready): (RawFd, EventSet), data: u64) -> io::Result<()> {
    epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(ready, data))
}
