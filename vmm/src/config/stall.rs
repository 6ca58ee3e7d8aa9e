use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use vireo_vmconfig::ErrorPolicy;

/// How soon a request that was held is tried again; each time it fails it waits twice as long.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// Why a request is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallCause {
    /// The host has no space; else it is an I/O error.
    pub no_space: bool,
    /// The host's words.
    pub message: String,
}

impl StallCause {
    fn of(error: &io::Error) -> Self {
        Self { no_space: is_no_space(error), message: error.to_string() }
    }
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Errors that come of the image itself: trying again would bring them again.
fn is_of_image(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof, Unsupported};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof | Unsupported)
}

/// What is done about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Hold,
    Report,
    Ignore,
}

/// The policy's answer to an error.
pub(crate) fn answer(policy: ErrorPolicy, error: &io::Error) -> Answer {
    match policy {
        ErrorPolicy::Ignore => Answer::Ignore,
        ErrorPolicy::Stop if !is_of_image(error) => Answer::Hold,
        ErrorPolicy::Enospace if is_no_space(error) => Answer::Hold,
        ErrorPolicy::Stop | ErrorPolicy::Enospace | ErrorPolicy::Report => Answer::Report,
    }
}

/// Called when a disk's request is held, with the error, and each time that it fails again; with nothing when none
/// is held any more. Called on a worker of the disk: it must not block, and does not call the [`DiskStall`].
type Listener = Box<dyn Fn(Option<StallCause>) + Send + Sync>;

/// A disk's requests that the host cannot carry out, as the VM's owner sees them: it is notified, and may have them
/// tried again. Lives with the disk's configuration, across all VMs that are built with it.
#[derive(Default)]
pub struct DiskStall {
    lanes: Mutex<Lanes>,
    listener: Mutex<Option<Listener>>,
}

/// What serves the disk.
#[derive(Debug, Default)]
struct Lanes {
    all: Vec<Weak<LaneStall>>,
    /// How many of them hold a request.
    holding: usize,
}

/// The requests of a disk that one lane holds: it serves nothing else meanwhile.
#[derive(Debug)]
pub(crate) struct LaneStall {
    disk: Arc<DiskStall>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Counts the calls of [`DiskStall::retry`].
    asked: u64,
    /// A request is held.
    held: bool,
    /// The worker is to release what it holds.
    released: bool,
    /// The VM is paused: nothing is tried again.
    parked: bool,
    holding: Option<Holding>,
}

/// Called when the worker begins and ends to hold a request.
#[derive(Clone)]
pub(crate) struct Holding(pub(crate) Arc<dyn Fn(bool) + Send + Sync>);

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holding")
    }
}

impl DiskStall {
    /// Registers the listener.
    pub fn listen(&self, listener: impl Fn(Option<StallCause>) + Send + Sync + 'static) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(listener));
    }

    /// Has requests that are held tried again now.
    pub fn retry(&self) {
        let lanes: Vec<_> = self.lanes().all.iter().filter_map(Weak::upgrade).collect();
        for lane in lanes {
            let mut state = lane.lock();
            state.asked = state.asked.wrapping_add(1);
            drop(state);
            lane.changed.notify_all();
        }
    }

    /// For one more lane that serves the disk.
    pub(crate) fn lane(self: &Arc<Self>) -> Arc<LaneStall> {
        let lane = LaneStall { disk: self.clone(), state: Mutex::default(), changed: Condvar::new() };
        let lane = Arc::new(lane);
        let mut lanes = self.lanes();
        lanes.all.retain(|lane| lane.strong_count() > 0);
        lanes.all.push(Arc::downgrade(&lane));
        drop(lanes);
        lane
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, cause: Option<StallCause>) {
        if let Some(listener) = self.listener.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            listener(cause);
        }
    }

    /// A lane holds a request, for the `first` time or once more. Notifies while no other lane can.
    fn begin(&self, cause: StallCause, first: bool) {
        let mut lanes = self.lanes();
        lanes.holding += usize::from(first);
        self.notify(Some(cause));
    }

    /// A lane does not hold its request any more.
    fn end(&self) {
        let mut lanes = self.lanes();
        lanes.holding = lanes.holding.saturating_sub(1);
        if lanes.holding == 0 {
            self.notify(None);
        }
    }
}

impl LaneStall {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a request that failed `times` times, until it is to be tried again. False: it is to be released.
    pub(crate) fn hold(&self, error: &io::Error, times: u32) -> bool {
        let mut state = self.lock();
        if state.released {
            return false;
        }
        let before = state.asked;
        let holding = state.holding.clone();
        let first = !std::mem::replace(&mut state.held, true);
        drop(state);
        let tell = |yes| holding.as_ref().map(|Holding(holding)| holding(yes));
        tell(true);
        self.disk.begin(StallCause::of(error), first);
        let pause = RETRY_FIRST.saturating_mul(1 << times.min(8)).min(RETRY_LAST);
        state = self.lock();
        let waits = |state: &mut State| !state.released && state.asked == before;
        let waited = self.changed.wait_timeout_while(state, pause, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let waits = |state: &mut State| !state.released && state.parked;
        let state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        // While the lock is held: a pause that follows does not count the request as held.
        tell(false);
        !state.released
    }

    /// What was held is held no more.
    pub(crate) fn over(&self) {
        if std::mem::take(&mut self.lock().held) {
            self.disk.end();
        }
    }

    /// The VM is paused, or not any more.
    pub(crate) fn park(&self, yes: bool) {
        self.lock().parked = yes;
        self.changed.notify_all();
    }

    /// A worker begins to serve the disk; `holding` is called when it begins and ends to hold a request.
    pub(crate) fn arm(&self, holding: Option<Holding>) {
        let mut state = self.lock();
        (state.released, state.parked, state.holding) = (false, false, holding);
    }

    /// The worker is to come back: what it holds fails.
    pub(crate) fn release(&self) {
        self.lock().released = true;
        self.changed.notify_all();
    }
}

impl fmt::Debug for DiskStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskStall").field("holding", &self.lanes().holding).finish_non_exhaustive()
    }
}

/// Where a lane's requests may be held: one for each of its disks.
#[derive(Clone, Debug, Default)]
pub struct Stalls(pub(crate) Vec<Arc<LaneStall>>);

impl Stalls {
    pub(crate) fn arm(&self, holding: &Holding) {
        self.0.iter().for_each(|stall| stall.arm(Some(holding.clone())));
    }

    pub(crate) fn park(&self, yes: bool) {
        self.0.iter().for_each(|stall| stall.park(yes));
    }

    pub(crate) fn release(&self) {
        self.0.iter().for_each(|stall| stall.release());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_its_answer() {
        use rustix::io::Errno;
        let os = |errno: Errno| io::Error::from(errno);
        // As libraries wrap it.
        let wrapped = || io::Error::new(io::ErrorKind::StorageFull, "allocating a cluster: no space");
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "the image makes no sense");
        for (policy, answers) in [
            (ErrorPolicy::Stop, [Answer::Hold, Answer::Hold, Answer::Hold, Answer::Hold, Answer::Report]),
            (
                ErrorPolicy::Enospace,
                [Answer::Hold, Answer::Hold, Answer::Hold, Answer::Report, Answer::Report],
            ),
            (ErrorPolicy::Report, [Answer::Report; 5]),
            (ErrorPolicy::Ignore, [Answer::Ignore; 5]),
        ] {
            let errors = [os(Errno::NOSPC), os(Errno::DQUOT), wrapped(), os(Errno::IO), broken()];
            assert_eq!(errors.map(|error| answer(policy, &error)), answers, "{policy:?}");
        }
        assert!(StallCause::of(&wrapped()).no_space && !StallCause::of(&os(Errno::IO)).no_space);
    }

    fn full() -> io::Error {
        io::Error::from(rustix::io::Errno::NOSPC)
    }

    fn hold(lane: &Arc<LaneStall>, times: u32) -> std::thread::JoinHandle<bool> {
        let lane = lane.clone();
        std::thread::spawn(move || lane.hold(&full(), times))
    }

    #[test]
    fn what_is_held_goes_on_when_it_is_asked_for_and_ends_with_its_worker() {
        let stall = Arc::new(DiskStall::default());
        let lane = stall.lane();
        let (notify, notified) = std::sync::mpsc::channel();
        stall.listen(move |cause| notify.send(cause).unwrap());
        let held = hold(&lane, u32::MAX);
        assert!(notified.recv().unwrap().unwrap().no_space);
        stall.retry();
        assert!(held.join().unwrap(), "it is tried again long before its time");
        let held = hold(&lane, u32::MAX);
        notified.recv().unwrap();
        lane.release();
        assert!(!held.join().unwrap());
        assert!(!lane.hold(&full(), 0), "its worker was to come back before");
        lane.arm(None);
        assert!(lane.hold(&full(), 0), "it is retried without a reader");
    }

    #[test]
    fn a_disk_works_again_when_none_of_its_lanes_holds_a_request() {
        let stall = Arc::new(DiskStall::default());
        let (notify, notified) = std::sync::mpsc::channel();
        stall.listen(move |cause| notify.send(cause.is_some()).unwrap());
        let lanes = [stall.lane(), stall.lane()];
        let held: Vec<_> = lanes.iter().map(|lane| hold(lane, u32::MAX)).collect();
        assert!(notified.recv().unwrap() && notified.recv().unwrap());
        stall.retry();
        assert!(held.into_iter().all(|held| held.join().unwrap()), "both are tried again");
        lanes[0].over();
        assert!(notified.try_recv().is_err(), "the other one is held");
        // A worker that was to come back before it held anything.
        let idle = stall.lane();
        idle.release();
        assert!(!idle.hold(&full(), 0));
        idle.over();
        assert!(notified.try_recv().is_err());
        lanes[1].over();
        assert!(!notified.recv().unwrap());
    }
}
