use tokio::sync::oneshot;
use vireo_proto::launcher::{DiskFailure, Fault, state::Phase};

use super::answer;
use super::stage::Machine;
use crate::fault::{Code, fault};
use crate::hypervisor::{Event, Order};

/// Why a guest stands still, if it does.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// Somebody asked for it.
    pub(super) requested: bool,
    /// Disks whose requests the host cannot carry out.
    pub(super) failures: Vec<DiskFailure>,
}

impl Pause {
    pub(super) fn hear(&mut self, event: &Event) {
        match event {
            Event::Paused => self.requested = true,
            Event::Resumed => self.requested = false,
            Event::DisksFailed(failures) => self.failures.clone_from(failures),
            Event::Rebooted | Event::NoBootDevice | Event::Plugged(_) | Event::Ended(_) => {}
        }
    }

    pub(super) fn phase(&self) -> Phase {
        if self.requested || !self.failures.is_empty() { Phase::Paused } else { Phase::Running }
    }

    /// Why it cannot go on.
    fn obstacle(&self) -> String {
        let one = |failure: &DiskFailure| {
            let what = if failure.no_space { "not enough space" } else { "an I/O error" };
            format!("{what} on volume {} ({})", failure.disk, failure.message)
        };
        let all: Vec<String> = self.failures.iter().map(one).collect();
        format!("VMI stays paused: {}", all.join("; "))
    }
}

/// Somebody who waits until a guest stands still ([`Phase::Paused`]) or goes on ([`Phase::Running`]).
pub(super) struct Awaited {
    phase: Phase,
    reply: oneshot::Sender<Option<Fault>>,
}

impl Machine {
    /// Tells a guest that runs or stands still something, and answers once it is done.
    pub(super) fn steer(&mut self, order: Order, reply: oneshot::Sender<Option<Fault>>) {
        if let Some(why) = objection(order, &self.pause, self.awaited.is_some()) {
            answer(reply, Some(fault(Code::Conflict, why)));
            return;
        }
        self.guest.order(order);
        match order {
            Order::Pause => self.awaited = Some(Awaited { phase: Phase::Paused, reply }),
            Order::Resume => self.awaited = Some(Awaited { phase: Phase::Running, reply }),
            Order::PowerButton | Order::SoftReboot | Order::Reset | Order::Kill => answer(reply, None),
        }
    }

    /// Whether somebody waits for this.
    pub(super) fn awaits(&self, phase: Phase) -> bool {
        self.awaited.as_ref().is_some_and(|awaited| awaited.phase == phase)
    }

    /// Answers who waited for this: for the pause, for the guest to go on, or to hear that its disks fail again.
    pub(super) fn settle(&mut self, event: &Event) {
        let fails = matches!(event, Event::DisksFailed(failures) if !failures.is_empty());
        let (phase, fault) = match self.pause.phase() {
            Phase::Running => (Phase::Running, None),
            _ if *event == Event::Paused => (Phase::Paused, None),
            _ if fails && !self.pause.requested => {
                (Phase::Running, Some(fault(Code::Conflict, self.pause.obstacle())))
            }
            _ => return,
        };
        if let Some(awaited) = self.awaited.take_if(|awaited| awaited.phase == phase) {
            answer(awaited.reply, fault);
        }
    }
}

/// Why an order makes no sense now, in KubeVirt's words. A guest that stands still because its disks fail may be paused
/// besides, so that it does not go on by itself, and be let go on, which is tried at once.
fn objection(order: Order, now: &Pause, changing: bool) -> Option<&'static str> {
    match (order, now.phase()) {
        (Order::Pause | Order::Resume, _) if changing => Some("a pause or unpause of the VMI is under way"),
        (Order::Pause, _) if now.requested => Some("VMI is already paused"),
        (Order::Resume, Phase::Running) => Some("VMI is not paused"),
        (Order::SoftReboot, Phase::Paused) => Some("VMI is paused"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> DiskFailure {
        DiskFailure { disk: "data".to_owned(), no_space: true, message: "No space left on device".to_owned() }
    }

    #[test]
    fn what_makes_no_sense_now_is_turned_down() {
        let running = || Pause::default();
        let paused = || Pause { requested: true, failures: Vec::new() };
        let failed = || Pause { requested: false, failures: vec![full()] };
        let both = || Pause { requested: true, failures: vec![full()] };
        for (order, now, changing, expected) in [
            (Order::Pause, running(), false, None),
            (Order::Pause, paused(), false, Some("VMI is already paused")),
            (Order::Pause, failed(), false, None),
            (Order::Pause, both(), false, Some("VMI is already paused")),
            (Order::Resume, paused(), false, None),
            (Order::Resume, failed(), false, None),
            (Order::Resume, both(), false, None),
            (Order::Resume, running(), false, Some("VMI is not paused")),
            (Order::Resume, running(), true, Some("a pause or unpause of the VMI is under way")),
            (Order::SoftReboot, running(), false, None),
            (Order::SoftReboot, paused(), false, Some("VMI is paused")),
            (Order::SoftReboot, failed(), false, Some("VMI is paused")),
            (Order::Reset, paused(), true, None),
            (Order::Reset, failed(), false, None),
        ] {
            assert_eq!(objection(order, &now, changing), expected, "{order:?} {now:?}");
        }
    }

    #[test]
    fn a_guest_goes_on_when_nothing_speaks_against_it() {
        let mut pause = Pause::default();
        for (event, phase, requested) in [
            (Event::DisksFailed(vec![full()]), Phase::Paused, false),
            (Event::Paused, Phase::Paused, true),
            (Event::DisksFailed(Vec::new()), Phase::Paused, true),
            (Event::Resumed, Phase::Running, false),
            (Event::Paused, Phase::Paused, true),
            (Event::DisksFailed(vec![full()]), Phase::Paused, true),
            (Event::Resumed, Phase::Paused, false),
            (Event::Rebooted, Phase::Paused, false),
            (Event::DisksFailed(Vec::new()), Phase::Running, false),
        ] {
            pause.hear(&event);
            assert_eq!((pause.phase(), pause.requested), (phase, requested), "{event:?}");
        }
    }
}
