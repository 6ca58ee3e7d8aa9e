//! Disk failures under QEMU: it stops the guest and holds the request, which is carried out again when the guest
//! resumes. So the guest is resumed again and again, with growing intervals, until that works; unless a pause was
//! requested.
//!
//! Values in, values out: QMP events and requests of the session go in, QMP commands and events for the session come out.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use vireo_proto::launcher::DiskFailure;

use crate::hypervisor::Event;

const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(10);
/// How long a resumed guest has to run before its disks count as working again. QEMU reports failures of one disk at
/// most once a second.
const SETTLE: Duration = Duration::from_secs(2);

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Execute this QMP command.
    Execute(&'static str),
    /// Emit an event to the session.
    Emit(Event),
}

/// Whether the guest's CPUs run, and why not.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// Disks that failed, by what QEMU calls them.
    failed: BTreeMap<String, DiskFailure>,
    /// The session requested a pause.
    paused: bool,
    /// QEMU reported that the vCPUs stopped, and not yet that they resumed.
    stopped: bool,
    /// QEMU was queried for the reason of the stop.
    status_queried: bool,
    /// When the disks count as working again, unless something fails before.
    settled_at: Option<Instant>,
    /// When the guest is resumed to retry.
    retry_at: Option<Instant>,
    retries: u32,
}

impl Stall {
    /// Of a VM that has started, paused or not.
    pub(super) fn new(paused: bool) -> Self {
        Self { paused, stopped: paused, ..Self::default() }
    }

    /// When [`Self::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.settled_at, self.retry_at].into_iter().flatten().min()
    }

    fn report(&self) -> Action {
        let mut failures: Vec<_> = self.failed.values().cloned().collect();
        failures.dedup();
        Action::Emit(Event::DisksFailed(failures))
    }

    fn retry_later(&mut self, now: Instant) {
        self.settled_at = None;
        self.retry_at = (!self.paused)
            .then(|| now + RETRY_FIRST.saturating_mul(1 << self.retries.min(8)).min(RETRY_LAST));
    }

    /// Resumes the guest to retry the held requests.
    fn try_again(&mut self, now: Instant) -> Action {
        self.retry_at = None;
        self.settled_at = Some(now + SETTLE);
        self.retries = self.retries.saturating_add(1);
        Action::Execute("cont")
    }

    fn clear(&mut self) -> Option<Action> {
        self.settled_at = None;
        self.retry_at = None;
        self.retries = 0;
        let failed = !std::mem::take(&mut self.failed).is_empty();
        failed.then(|| self.report())
    }

    /// A request of a disk failed, and QEMU stops the guest for it. Each failure is reported.
    pub(super) fn failed(&mut self, node: String, failure: DiskFailure, now: Instant) -> Vec<Action> {
        self.failed.insert(node, failure);
        self.retry_later(now);
        vec![self.report()]
    }

    /// CPUs stopped.
    pub(super) fn stopped(&mut self, now: Instant) -> Vec<Action> {
        self.stopped = true;
        if !self.failed.is_empty() {
            self.retry_later(now);
        }
        if self.paused {
            return vec![Action::Emit(Event::Paused)];
        }
        if self.failed.is_empty() && !self.status_queried {
            // Not requested: the reason may arrive late, or never.
            self.status_queried = true;
            return vec![Action::Execute("query-status")];
        }
        Vec::new()
    }

    /// What QEMU answers to the question why it stopped.
    pub(super) fn on_status(&mut self, status: &str, now: Instant) -> Vec<Action> {
        if !std::mem::take(&mut self.status_queried)
            || !self.stopped
            || self.paused
            || !self.failed.is_empty()
        {
            return Vec::new();
        }
        match status {
            "io-error" => self.failed(String::new(), DiskFailure::default(), now),
            // Stopped while its memory is dumped: QEMU resumes it.
            "running" | "save-vm" => Vec::new(),
            // Stopped by another QMP client: then it stays paused.
            _ => {
                self.paused = true;
                vec![Action::Emit(Event::Paused)]
            }
        }
    }

    /// vCPUs resumed.
    pub(super) fn resumed(&mut self) -> Vec<Action> {
        self.stopped = false;
        match self.failed.is_empty() {
            true => vec![Action::Emit(Event::Resumed)],
            // Not before it is known whether they stay so.
            false => Vec::new(),
        }
    }

    /// The session requests a pause.
    pub(super) fn pause(&mut self) -> Vec<Action> {
        self.paused = true;
        self.retry_at = None;
        self.settled_at = None;
        match self.stopped {
            // QEMU sends no event for that.
            true => vec![Action::Emit(Event::Paused)],
            false => vec![Action::Execute("stop")],
        }
    }

    /// The session requests the end of a pause.
    pub(super) fn resume(&mut self, now: Instant) -> Vec<Action> {
        self.paused = false;
        if self.failed.is_empty() {
            return vec![Action::Execute("cont")];
        }
        self.retries = 0;
        vec![Action::Emit(Event::Resumed), self.try_again(now)]
    }

    /// A memory dump has ended, during which QEMU resumes nothing.
    pub(super) fn dumped(&self) -> Option<Action> {
        let is_to_run = self.stopped && !self.paused && self.failed.is_empty();
        is_to_run.then_some(Action::Execute("cont"))
    }

    /// The VM was reset: no request is held any more, and it resumes unless a pause is requested.
    pub(super) fn reset(&mut self) -> Vec<Action> {
        let Some(reported) = self.clear() else { return Vec::new() };
        let go_on = (self.stopped && !self.paused).then_some(Action::Execute("cont"));
        [reported].into_iter().chain(go_on).collect()
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Action> {
        if self.settled_at.is_some_and(|at| at <= now) {
            // QEMU did not resume; its error was logged.
            return match self.stopped {
                true => {
                    self.retry_later(now);
                    Vec::new()
                }
                false => self.clear().into_iter().collect(),
            };
        }
        match self.retry_at.is_some_and(|at| at <= now) {
            true => vec![self.try_again(now)],
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_ends_during_a_dump_ends_with_it() {
        let now = Instant::now();
        let mut stall = Stall::new(true);
        assert_eq!(stall.dumped(), None, "paused before and after");
        assert_eq!(stall.resume(now), [Action::Execute("cont")]);
        assert_eq!(stall.dumped(), Some(Action::Execute("cont")), "QEMU refused the first");
        stall.resumed();
        assert_eq!(stall.dumped(), None);
    }

    fn full(disk: &str) -> DiskFailure {
        DiskFailure { disk: disk.to_owned(), no_space: true, message: "No space left on device".to_owned() }
    }

    fn reported(failures: &[DiskFailure]) -> Action {
        Action::Emit(Event::DisksFailed(failures.to_vec()))
    }

    /// One whose disk has just failed.
    fn failed(now: Instant) -> Stall {
        let mut stall = Stall::new(false);
        assert_eq!(stall.failed("disk0".to_owned(), full("data"), now), [reported(&[full("data")])]);
        assert_eq!(stall.stopped(now), [], "an error is reported once");
        stall
    }

    #[test]
    fn a_guest_goes_on_once_there_is_room() {
        let mut now = Instant::now();
        let mut stall = failed(now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let due = stall.deadline().unwrap();
            pauses.push((due - now).as_secs());
            now = due;
            assert_eq!(stall.tick(now), [Action::Execute("cont")]);
            assert_eq!(stall.resumed(), [], "it may stop again at once");
            assert_eq!(stall.failed("disk0".to_owned(), full("data"), now), [reported(&[full("data")])]);
            assert_eq!(stall.stopped(now), []);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        now = stall.deadline().unwrap();
        assert_eq!(stall.tick(now), [Action::Execute("cont")]);
        stall.resumed();
        assert_eq!(stall.deadline(), Some(now + SETTLE));
        assert_eq!(stall.tick(now + SETTLE), [reported(&[])]);
        assert_eq!(stall.deadline(), None);
        // The next time begins anew.
        assert_eq!(stall.failed("disk0".to_owned(), full("data"), now).len(), 1);
        assert_eq!(stall.deadline(), Some(now + RETRY_FIRST));
    }

    #[test]
    fn a_pause_of_the_owner_is_the_owners_to_end() {
        let now = Instant::now();
        let mut stall = failed(now);
        assert_eq!(stall.pause(), [Action::Emit(Event::Paused)], "it is paused already");
        assert_eq!(stall.deadline(), None, "it is not resumed");
        assert_eq!(stall.tick(now + Duration::from_secs(3600)), []);
        let expected = [Action::Emit(Event::Resumed), Action::Execute("cont")];
        assert_eq!(stall.resume(now), expected, "it is tried at once");
        // It fails again, and is tried again by itself.
        assert_eq!(stall.resumed(), []);
        stall.failed("disk0".to_owned(), full("data"), now);
        stall.stopped(now);
        assert!(stall.deadline().is_some());

        // It was paused before the request failed.
        let mut stall = Stall::new(false);
        assert_eq!(stall.pause(), [Action::Execute("stop")]);
        assert_eq!(stall.stopped(now), [Action::Emit(Event::Paused)]);
        assert_eq!(stall.failed("disk0".to_owned(), full("data"), now), [reported(&[full("data")])]);
        assert_eq!(stall.deadline(), None);

        // It is paused while it is tried.
        let mut stall = failed(now);
        stall.tick(now + RETRY_FIRST);
        stall.resumed();
        assert_eq!(stall.pause(), [Action::Execute("stop")]);
        assert_eq!(stall.stopped(now), [Action::Emit(Event::Paused)]);
        assert_eq!(stall.deadline(), None);
    }

    #[test]
    fn without_a_failure_a_pause_is_a_pause() {
        let now = Instant::now();
        let mut stall = Stall::new(true);
        assert_eq!(stall.resume(now), [Action::Execute("cont")]);
        assert_eq!(stall.resumed(), [Action::Emit(Event::Resumed)]);
        assert_eq!(stall.pause(), [Action::Execute("stop")]);
        assert_eq!(stall.stopped(now), [Action::Emit(Event::Paused)]);
        assert_eq!(stall.deadline(), None);
        assert_eq!(stall.reset(), []);
    }

    #[test]
    fn the_cause_of_an_unrequested_pause_is_queried() {
        let now = Instant::now();
        let ask = || {
            let mut stall = Stall::new(false);
            assert_eq!(stall.stopped(now), [Action::Execute("query-status")]);
            stall
        };
        assert_eq!(ask().on_status("paused", now), [Action::Emit(Event::Paused)]);
        assert_eq!(ask().on_status("running", now), []);
        let mut stall = ask();
        assert_eq!(stall.on_status("io-error", now), [reported(&[DiskFailure::default()])]);
        assert!(stall.deadline().is_some());
        // The failure was reported after all.
        let mut stall = ask();
        stall.failed("disk0".to_owned(), full("data"), now);
        assert_eq!(stall.on_status("io-error", now), []);
        assert_eq!(Stall::new(false).on_status("paused", now), [], "not requested");
    }

    #[test]
    fn a_reset_forgets_what_is_held() {
        let now = Instant::now();
        let mut stall = failed(now);
        assert_eq!(stall.reset(), [reported(&[]), Action::Execute("cont")]);
        assert_eq!(stall.resumed(), [Action::Emit(Event::Resumed)]);
        let mut stall = failed(now);
        stall.pause();
        assert_eq!(stall.reset(), [reported(&[])], "it stays paused");
    }

    #[test]
    fn every_disk_that_fails_is_named() {
        let now = Instant::now();
        let mut stall = failed(now);
        let broken = DiskFailure {
            disk: "root".to_owned(),
            no_space: false,
            message: "Input/output error".to_owned(),
        };
        let reported_now = stall.failed("disk1".to_owned(), broken.clone(), now);
        assert_eq!(reported_now, [reported(&[full("data"), broken])]);
    }
}
