use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
/// is held any more. Called on the disk's worker: it must not block.
type Listener = Box<dyn Fn(Option<StallCause>) + Send + Sync>;

/// A disk's requests that the host cannot carry out, as the VM's owner sees them: it is notified, and may have them
/// tried again. Lives with the disk's configuration, across all VMs that are built with it.
#[derive(Default)]
pub struct DiskStall {
    state: Mutex<State>,
    changed: Condvar,
    listener: Mutex<Option<Listener>>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts the calls of [`DiskStall::retry`].
    asked: u64,
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

    /// Has a request that is held tried again now.
    pub fn retry(&self) {
        let mut state = self.lock();
        state.asked = state.asked.wrapping_add(1);
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, cause: Option<StallCause>) {
        if let Some(listener) = self.listener.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            listener(cause);
        }
    }

    /// Holds a request that failed `times` times, until it is to be tried again. False: it is to be released.
    pub(crate) fn hold(&self, error: &io::Error, times: u32) -> bool {
        let mut state = self.lock();
        if state.released {
            return false;
        }
        let before = state.asked;
        let holding = state.holding.clone();
        drop(state);
        let tell = |yes| holding.as_ref().map(|Holding(holding)| holding(yes));
        tell(true);
        self.notify(Some(StallCause::of(error)));
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

    /// The VM is paused, or not any more.
    pub(crate) fn park(&self, yes: bool) {
        self.lock().parked = yes;
        self.changed.notify_all();
    }

    /// What was held is held no more.
    pub(crate) fn over(&self) {
        self.notify(None);
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
        f.debug_struct("DiskStall").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Where a device's requests may be held: one for each of its disks.
#[derive(Clone, Debug, Default)]
pub struct Stalls(pub(crate) Vec<Arc<DiskStall>>);

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

    #[test]
    fn what_is_held_goes_on_when_it_is_asked_for_and_ends_with_its_worker() {
        let stall = Arc::new(DiskStall::default());
        let (notify, notified) = std::sync::mpsc::channel();
        stall.listen(move |cause| notify.send(cause).unwrap());
        let full = || io::Error::from(rustix::io::Errno::NOSPC);
        let hold = || {
            let (stall, error) = (stall.clone(), full());
            std::thread::spawn(move || stall.hold(&error, u32::MAX))
        };
        let held = hold();
        assert!(notified.recv().unwrap().unwrap().no_space);
        stall.retry();
        assert!(held.join().unwrap(), "it is tried again long before its time");
        let held = hold();
        notified.recv().unwrap();
        stall.release();
        assert!(!held.join().unwrap());
        assert!(!stall.hold(&full(), 0), "its worker was to come back before");
        stall.arm(None);
        assert!(stall.hold(&full(), 0), "it is retried without a reader");
    }
}
