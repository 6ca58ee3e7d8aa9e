//! What is done when a disk of the guest fails: QEMU stops the guest and holds the request, which is carried out again
//! when the guest goes on. So it is let go on again and again, less and less often, until that works; unless somebody
//! paused it for reasons of their own.
//!
//! Values in, values out: what QEMU says and what the owner wants goes in, what to say to either comes out.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use vireo_proto::launcher::DiskFailure;

use crate::hypervisor::Event;

const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(10);
/// How long a guest that was let go on has to go on before its disks count as working again. QEMU tells of failures of one
/// disk at most once a second.
const SETTLE: Duration = Duration::from_secs(2);

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Say this command to QEMU.
    Say(&'static str),
    /// Tell the owner.
    Tell(Event),
}

/// Whether the guest's CPUs run, and why not.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// Disks that failed, by what QEMU calls them.
    failed: BTreeMap<String, DiskFailure>,
    /// The owner wants the guest to stand still.
    paused: bool,
    /// QEMU has said that CPUs stopped, and not that they go on.
    stopped: bool,
    /// QEMU was asked why it stopped.
    asked: bool,
    /// Since it was let go on: when its disks count as working if nothing happens.
    settles: Option<Instant>,
    /// When it is let go on.
    retry: Option<Instant>,
    times: u32,
}

impl Stall {
    /// Of a machine that has started, paused or not.
    pub(super) fn new(paused: bool) -> Self {
        Self { paused, stopped: paused, ..Self::default() }
    }

    /// When [`Self::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.settles, self.retry].into_iter().flatten().min()
    }

    fn told(&self) -> Step {
        let mut failures: Vec<_> = self.failed.values().cloned().collect();
        failures.dedup();
        Step::Tell(Event::DisksFailed(failures))
    }

    fn retry_later(&mut self, now: Instant) {
        self.settles = None;
        self.retry =
            (!self.paused).then(|| now + RETRY_FIRST.saturating_mul(1 << self.times.min(8)).min(RETRY_LAST));
    }

    /// Lets the guest go on, and sees what comes of it.
    fn try_again(&mut self, now: Instant) -> Step {
        self.retry = None;
        self.settles = Some(now + SETTLE);
        self.times = self.times.saturating_add(1);
        Step::Say("cont")
    }

    fn works(&mut self) -> Option<Step> {
        self.settles = None;
        self.retry = None;
        self.times = 0;
        let failed = !std::mem::take(&mut self.failed).is_empty();
        failed.then(|| self.told())
    }

    /// A request of a disk failed, and QEMU stops the guest for it. The failure is told again each time.
    pub(super) fn failed(&mut self, node: String, failure: DiskFailure, now: Instant) -> Vec<Step> {
        self.failed.insert(node, failure);
        self.retry_later(now);
        vec![self.told()]
    }

    /// CPUs stopped.
    pub(super) fn stopped(&mut self, now: Instant) -> Vec<Step> {
        self.stopped = true;
        if !self.failed.is_empty() {
            self.retry_later(now);
        }
        if self.paused {
            return vec![Step::Tell(Event::Paused)];
        }
        if self.failed.is_empty() && !self.asked {
            // Nobody wanted that: its reason may be told late, or never.
            self.asked = true;
            return vec![Step::Say("query-status")];
        }
        Vec::new()
    }

    /// What QEMU answers to the question why it stopped.
    pub(super) fn is(&mut self, status: &str, now: Instant) -> Vec<Step> {
        if !std::mem::take(&mut self.asked) || !self.stopped || self.paused || !self.failed.is_empty() {
            return Vec::new();
        }
        match status {
            "io-error" => self.failed(String::new(), DiskFailure::default(), now),
            // As by somebody else who talks to it: then it is to stay so.
            "running" => Vec::new(),
            _ => {
                self.paused = true;
                vec![Step::Tell(Event::Paused)]
            }
        }
    }

    /// CPUs go on.
    pub(super) fn resumed(&mut self) -> Vec<Step> {
        self.stopped = false;
        match self.failed.is_empty() {
            true => vec![Step::Tell(Event::Resumed)],
            // Not before it is known whether they stay so.
            false => Vec::new(),
        }
    }

    /// The owner wants the guest to stand still.
    pub(super) fn pause(&mut self) -> Vec<Step> {
        self.paused = true;
        self.retry = None;
        self.settles = None;
        match self.stopped {
            // QEMU has nothing to say about that.
            true => vec![Step::Tell(Event::Paused)],
            false => vec![Step::Say("stop")],
        }
    }

    /// The owner wants the guest to go on.
    pub(super) fn resume(&mut self, now: Instant) -> Vec<Step> {
        self.paused = false;
        if self.failed.is_empty() {
            return vec![Step::Say("cont")];
        }
        self.times = 0;
        vec![Step::Tell(Event::Resumed), self.try_again(now)]
    }

    /// The machine was reset: no request is held any more, and it goes on unless it is to stand still.
    pub(super) fn reset(&mut self) -> Vec<Step> {
        let Some(told) = self.works() else { return Vec::new() };
        let go_on = (self.stopped && !self.paused).then_some(Step::Say("cont"));
        [told].into_iter().chain(go_on).collect()
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Step> {
        if self.settles.is_some_and(|at| at <= now) {
            // A QEMU that did not go on says nothing: its refusal was logged.
            return match self.stopped {
                true => {
                    self.retry_later(now);
                    Vec::new()
                }
                false => self.works().into_iter().collect(),
            };
        }
        match self.retry.is_some_and(|at| at <= now) {
            true => vec![self.try_again(now)],
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(disk: &str) -> DiskFailure {
        DiskFailure { disk: disk.to_owned(), no_space: true, message: "No space left on device".to_owned() }
    }

    fn told(failures: &[DiskFailure]) -> Step {
        Step::Tell(Event::DisksFailed(failures.to_vec()))
    }

    /// One whose disk has just failed.
    fn failed(now: Instant) -> Stall {
        let mut stall = Stall::new(false);
        assert_eq!(stall.failed("disk0".to_owned(), full("data"), now), [told(&[full("data")])]);
        assert_eq!(stall.stopped(now), [], "what is known is not told");
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
            assert_eq!(stall.tick(now), [Step::Say("cont")]);
            assert_eq!(stall.resumed(), [], "it may stop again at once");
            assert_eq!(stall.failed("disk0".to_owned(), full("data"), now), [told(&[full("data")])]);
            assert_eq!(stall.stopped(now), []);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        now = stall.deadline().unwrap();
        assert_eq!(stall.tick(now), [Step::Say("cont")]);
        stall.resumed();
        assert_eq!(stall.deadline(), Some(now + SETTLE));
        assert_eq!(stall.tick(now + SETTLE), [told(&[])]);
        assert_eq!(stall.deadline(), None);
        // The next time begins anew.
        assert_eq!(stall.failed("disk0".to_owned(), full("data"), now).len(), 1);
        assert_eq!(stall.deadline(), Some(now + RETRY_FIRST));
    }

    #[test]
    fn a_pause_of_the_owner_is_the_owners_to_end() {
        let now = Instant::now();
        let mut stall = failed(now);
        assert_eq!(stall.pause(), [Step::Tell(Event::Paused)], "it stands still already");
        assert_eq!(stall.deadline(), None, "nobody lets it go on");
        assert_eq!(stall.tick(now + Duration::from_secs(3600)), []);
        let expected = [Step::Tell(Event::Resumed), Step::Say("cont")];
        assert_eq!(stall.resume(now), expected, "it is tried at once");
        // It fails again, and is tried again by itself.
        assert_eq!(stall.resumed(), []);
        stall.failed("disk0".to_owned(), full("data"), now);
        stall.stopped(now);
        assert!(stall.deadline().is_some());

        // It was paused before the request failed.
        let mut stall = Stall::new(false);
        assert_eq!(stall.pause(), [Step::Say("stop")]);
        assert_eq!(stall.stopped(now), [Step::Tell(Event::Paused)]);
        assert_eq!(stall.failed("disk0".to_owned(), full("data"), now), [told(&[full("data")])]);
        assert_eq!(stall.deadline(), None);

        // It is paused while it is tried.
        let mut stall = failed(now);
        stall.tick(now + RETRY_FIRST);
        stall.resumed();
        assert_eq!(stall.pause(), [Step::Say("stop")]);
        assert_eq!(stall.stopped(now), [Step::Tell(Event::Paused)]);
        assert_eq!(stall.deadline(), None);
    }

    #[test]
    fn without_a_failure_a_pause_is_a_pause() {
        let now = Instant::now();
        let mut stall = Stall::new(true);
        assert_eq!(stall.resume(now), [Step::Say("cont")]);
        assert_eq!(stall.resumed(), [Step::Tell(Event::Resumed)]);
        assert_eq!(stall.pause(), [Step::Say("stop")]);
        assert_eq!(stall.stopped(now), [Step::Tell(Event::Paused)]);
        assert_eq!(stall.deadline(), None);
        assert_eq!(stall.reset(), []);
    }

    #[test]
    fn why_a_guest_stopped_that_nobody_paused_is_asked() {
        let now = Instant::now();
        let ask = || {
            let mut stall = Stall::new(false);
            assert_eq!(stall.stopped(now), [Step::Say("query-status")]);
            stall
        };
        assert_eq!(ask().is("paused", now), [Step::Tell(Event::Paused)]);
        assert_eq!(ask().is("running", now), []);
        let mut stall = ask();
        assert_eq!(stall.is("io-error", now), [told(&[DiskFailure::default()])]);
        assert!(stall.deadline().is_some());
        // The failure was told after all.
        let mut stall = ask();
        stall.failed("disk0".to_owned(), full("data"), now);
        assert_eq!(stall.is("io-error", now), []);
        assert_eq!(Stall::new(false).is("paused", now), [], "nobody asked");
    }

    #[test]
    fn a_reset_forgets_what_is_held() {
        let now = Instant::now();
        let mut stall = failed(now);
        assert_eq!(stall.reset(), [told(&[]), Step::Say("cont")]);
        assert_eq!(stall.resumed(), [Step::Tell(Event::Resumed)]);
        let mut stall = failed(now);
        stall.pause();
        assert_eq!(stall.reset(), [told(&[])], "it stays paused");
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
        let told_now = stall.failed("disk1".to_owned(), broken.clone(), now);
        assert_eq!(told_now, [told(&[full("data"), broken])]);
    }
}
