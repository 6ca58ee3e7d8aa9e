//! Deadlines of the launcher, and the events that cancel a call to it.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::decide::{Awaited, Launcher, Request};
use super::desired::Desired;

/// How long a launcher may take to bring its guest up. KubeVirt's launcher waits as long for QEMU.
const START_TIMEOUT: Duration = Duration::from_secs(240);
/// Time beyond the guest's grace period before the handler kills the launcher.
const KILL_MARGIN: Duration = Duration::from_secs(15);
/// The margin for a grace period of zero, and the minimum for a launcher that an earlier handler asked to shut down.
const FORCED_KILL_MARGIN: Duration = Duration::from_secs(5);
/// Time for a dismissed launcher to exit, and between two kills of the same launcher.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a launcher may take to bring its guest to an end.
pub(crate) fn time_to_end(grace: u64) -> Duration {
    let margin = if grace == 0 { FORCED_KILL_MARGIN } else { KILL_MARGIN };
    // Bounds the grace period so that the sum does not overflow.
    Duration::from_secs(grace.min(u32::MAX.into())) + margin
}

/// The remaining time when the shutdown began at `since`; at most the full time, even if the clock was set back.
fn time_left(grace: u64, since: Option<Timestamp>, now: Timestamp) -> Duration {
    let elapsed = since.map(|since| now.duration_since(since)).filter(|elapsed| elapsed.is_positive());
    let elapsed = elapsed.map(|elapsed| elapsed.unsigned_abs()).unwrap_or_default();
    time_to_end(grace).saturating_sub(elapsed).max(FORCED_KILL_MARGIN)
}

/// The last request that reached a launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// To shut its guest down.
    Shutdown,
    /// To exit.
    Dismissal,
    /// None: it was killed.
    Kill,
}

/// The time by which a launcher has to do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deadline {
    pub(super) awaited: Awaited,
    pub(super) at: Instant,
    pub(super) sent: Option<Sent>,
}

impl Deadline {
    /// Starts a deadline now. `ending` is the guest's grace period and the time at which its shutdown began.
    pub(super) fn new(awaited: Awaited, ending: (u64, Option<Timestamp>)) -> Self {
        let time = match awaited {
            Awaited::Start => START_TIMEOUT,
            Awaited::End => time_left(ending.0, ending.1, Timestamp::now()),
            Awaited::Exit => EXIT_TIMEOUT,
        };
        Self { awaited, at: Instant::now() + time, sent: None }
    }

    /// Applies a new grace period from now on. The deadline may become earlier, never later. The shutdown request is
    /// sent again, because the launcher applies the shorter grace period.
    pub(super) fn shorten(&mut self, grace: u64) {
        if self.awaited == Awaited::End {
            self.at = self.at.min(Instant::now() + time_to_end(grace));
            self.sent = self.sent.filter(|sent| *sent != Sent::Shutdown);
        }
    }

    /// Records a kill and sets the time of the next one. Returns whether the launcher had been killed before.
    pub(super) fn kill(&mut self) -> bool {
        self.at = Instant::now() + EXIT_TIMEOUT;
        self.sent.replace(Sent::Kill) == Some(Sent::Kill)
    }

    /// The state of the request that applies to a launcher in this state.
    pub(super) fn request(&self, launcher: Launcher, now: Instant) -> Request {
        use Launcher::{Alive, Exited, Silent, Starting, Waiting};
        match (self.sent, launcher) {
            _ if now >= self.at => Request::Overdue,
            (Some(Sent::Shutdown), Silent | Starting | Alive)
            | (Some(Sent::Dismissal), Silent | Waiting | Exited)
            | (Some(Sent::Kill), _) => Request::Sent,
            _ => Request::Unsent,
        }
    }
}

/// Cancels a call to a launcher when the desired state of the VMI changes or the launcher's deadline passes, so that
/// the reconciler decides again at once.
#[derive(Debug)]
pub(super) struct Interrupt<'a> {
    pub(super) desired: &'a mut watch::Receiver<Desired>,
    pub(super) at: Option<Instant>,
}

impl Interrupt<'_> {
    /// Whether a call would be cancelled.
    pub(super) fn is_due(&self) -> bool {
        self.at.is_some_and(|at| Instant::now() >= at) || self.desired.has_changed().unwrap_or(false)
    }

    /// Awaits the call. Returns `None` when it is cancelled.
    pub(super) async fn or<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
        let at = self.at;
        let clock = async {
            match at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = call => Some(done),
            () = clock => None,
            Ok(()) = self.desired.changed() => {
                // The reconcile loop has to see this change, too.
                self.desired.mark_changed();
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn ago(seconds: i64) -> Option<Timestamp> {
        Timestamp::from_second(NOW.as_second() - seconds).ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_and_a_deadline_interrupt_what_comes_next_too() {
        let (desired, mut seen) = watch::channel(Desired::Nothing);
        let at = Instant::now() + EXIT_TIMEOUT;
        let mut interrupt = Interrupt { desired: &mut seen, at: Some(at) };
        assert!(!interrupt.is_due());
        desired.send(Desired::Gone(1)).unwrap();
        assert!(interrupt.is_due() && interrupt.or(std::future::pending::<()>()).await.is_none());
        assert!(interrupt.is_due(), "the reconcile loop has not seen it yet");
        interrupt.desired.mark_unchanged();
        assert!(!interrupt.is_due());
        sleep_until(at).await;
        assert!(interrupt.is_due());
    }

    #[test]
    fn a_restart_of_the_handler_does_not_begin_the_time_anew() {
        for (grace, since, left) in [
            (30, ago(0), 45),
            (30, ago(40), 5),
            (30, ago(10), 35),
            (30, ago(1_000_000), 5),
            (0, ago(0), 5),
            (0, ago(3), 5),
            // A clock that was set back, and a record without a time.
            (30, ago(-1_000_000), 45),
            (30, None, 45),
            (u64::MAX, ago(0), u64::from(u32::MAX) + 15),
        ] {
            assert_eq!(time_left(grace, since, NOW).as_secs(), left, "{grace} s since {since:?}");
        }
    }

    #[test]
    fn a_shorter_grace_period_shortens_the_deadline_and_a_longer_one_does_not_lengthen_it() {
        let mut deadline = Deadline::new(Awaited::End, (30, None));
        deadline.sent = Some(Sent::Shutdown);
        let first = deadline.at;
        deadline.shorten(3600);
        assert_eq!(deadline.at, first);
        deadline.sent = Some(Sent::Shutdown);
        deadline.shorten(0);
        assert!(deadline.at <= Instant::now() + FORCED_KILL_MARGIN);
        assert_eq!(deadline.sent, None, "it is asked again");
        let start = Deadline::new(Awaited::Start, (30, None));
        let mut same = start;
        same.shorten(0);
        assert_eq!(same, start, "a grace period says nothing about a start");
    }

    #[test]
    fn a_request_is_sent_once_to_a_launcher_in_the_state_that_it_is_for() {
        use Launcher::{Alive, Exited, Silent, Starting, Waiting};
        let deadline = |sent| Deadline { sent, ..Deadline::new(Awaited::End, (30, None)) };
        for (sent, launcher, expected) in [
            (None, Alive, Request::Unsent),
            (None, Silent, Request::Unsent),
            (Some(Sent::Shutdown), Alive, Request::Sent),
            (Some(Sent::Shutdown), Starting, Request::Sent),
            (Some(Sent::Shutdown), Silent, Request::Sent),
            (Some(Sent::Shutdown), Exited, Request::Unsent),
            (Some(Sent::Dismissal), Exited, Request::Sent),
            (Some(Sent::Dismissal), Waiting, Request::Sent),
            (Some(Sent::Dismissal), Alive, Request::Unsent),
            (Some(Sent::Kill), Alive, Request::Sent),
            (Some(Sent::Kill), Waiting, Request::Sent),
        ] {
            let deadline = deadline(sent);
            assert_eq!(deadline.request(launcher, Instant::now()), expected, "{sent:?} {launcher:?}");
            assert_eq!(deadline.request(launcher, deadline.at), Request::Overdue, "{sent:?} {launcher:?}");
        }
        let mut killed = deadline(None);
        assert!(!killed.kill() && killed.kill(), "the second kill is one too many");
    }

    #[tokio::test]
    async fn a_call_that_is_never_answered_is_cut_short() {
        let (sender, mut desired) = watch::channel(Desired::Nothing);
        let never = std::future::pending::<()>;
        let mut interrupt = Interrupt { desired: &mut desired, at: Some(Instant::now()) };
        assert_eq!(interrupt.or(never()).await, None, "its time is up");
        let mut interrupt = Interrupt { desired: &mut desired, at: None };
        assert_eq!(interrupt.or(async { 1 }).await, Some(1));
        sender.send(Desired::Gone(0)).unwrap();
        assert_eq!(interrupt.or(never()).await, None, "something else is wanted");
        assert!(desired.has_changed().unwrap(), "and is still to be seen");
    }
}
