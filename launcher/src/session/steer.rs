use tokio::sync::oneshot;
use vireo_proto::launcher::{Fault, state::Phase};

use super::answer;
use super::stage::Machine;
use crate::fault::{Code, fault};
use crate::hypervisor::Order;

/// Somebody who waits until a guest stands still ([`Phase::Paused`]) or goes on ([`Phase::Running`]).
pub(super) struct Awaited {
    phase: Phase,
    reply: oneshot::Sender<Option<Fault>>,
}

impl Machine {
    /// Tells a guest that runs or stands still something, and answers once it is done.
    pub(super) fn steer(&mut self, order: Order, now: Phase, reply: oneshot::Sender<Option<Fault>>) {
        if let Some(why) = objection(order, now, self.awaited.is_some()) {
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

    /// Answers who waited for this.
    pub(super) fn settled(&mut self, phase: Phase) {
        if let Some(awaited) = self.awaited.take_if(|awaited| awaited.phase == phase) {
            answer(awaited.reply, None);
        }
    }
}

/// Why an order makes no sense now, in KubeVirt's words.
fn objection(order: Order, now: Phase, changing: bool) -> Option<&'static str> {
    match (order, now) {
        (Order::Pause | Order::Resume, _) if changing => Some("a pause or unpause of the VMI is under way"),
        (Order::Pause, Phase::Paused) => Some("VMI is already paused"),
        (Order::Resume, Phase::Running) => Some("VMI is not paused"),
        (Order::SoftReboot, Phase::Paused) => Some("VMI is paused"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_now_is_turned_down() {
        use Phase::{Paused, Running};
        for (order, now, changing, expected) in [
            (Order::Pause, Running, false, None),
            (Order::Pause, Paused, false, Some("VMI is already paused")),
            (Order::Resume, Paused, false, None),
            (Order::Resume, Running, false, Some("VMI is not paused")),
            (Order::Resume, Running, true, Some("a pause or unpause of the VMI is under way")),
            (Order::SoftReboot, Running, false, None),
            (Order::SoftReboot, Paused, false, Some("VMI is paused")),
            (Order::Reset, Paused, true, None),
        ] {
            assert_eq!(objection(order, now, changing), expected, "{order:?} {now:?}");
        }
    }
}
