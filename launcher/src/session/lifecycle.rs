use tokio::sync::oneshot;
use vireo_proto::launcher::{DiskFailure, Fault, state::Phase};

use super::answer;
use super::stage::RunningVm;
use crate::fault::{Code, fault};
use crate::hypervisor::{Event, VmCommand};

/// Why a guest is paused, if it does.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// A pause was requested.
    pub(super) requested: bool,
    /// Disks whose requests the host cannot carry out.
    pub(super) failures: Vec<DiskFailure>,
}

impl Pause {
    pub(super) fn apply_event(&mut self, event: &Event) {
        match event {
            Event::Paused => self.requested = true,
            Event::Resumed => self.requested = false,
            Event::DisksFailed(failures) => self.failures.clone_from(failures),
            Event::Rebooted
            | Event::NoBootDevice
            | Event::Plugged(_)
            | Event::Nic(_)
            | Event::MemoryDumped(_)
            | Event::Ended(_) => {}
        }
    }

    pub(super) fn phase(&self) -> Phase {
        if self.requested || !self.failures.is_empty() { Phase::Paused } else { Phase::Running }
    }

    /// Why it stays paused.
    fn paused_reason(&self) -> String {
        let one = |failure: &DiskFailure| {
            let what = if failure.no_space { "not enough space" } else { "an I/O error" };
            format!("{what} on volume {} ({})", failure.disk, failure.message)
        };
        let all: Vec<String> = self.failures.iter().map(one).collect();
        format!("VMI stays paused: {}", all.join("; "))
    }
}

/// A caller that waits until the guest is paused ([`Phase::Paused`]) or resumed ([`Phase::Running`]).
pub(super) struct Waiter {
    phase: Phase,
    reply: oneshot::Sender<Option<Fault>>,
}

impl RunningVm {
    /// Executes a command on the running or paused VM, and replies once it is done.
    pub(super) fn lifecycle(&mut self, command: VmCommand, reply: oneshot::Sender<Option<Fault>>) {
        if let Some(why) = conflict(&command, &self.pause, self.waiter.is_some()) {
            answer(reply, Some(fault(Code::Conflict, why)));
            return;
        }
        self.guest.command(command.clone());
        match command {
            VmCommand::Pause => self.waiter = Some(Waiter { phase: Phase::Paused, reply }),
            VmCommand::Resume => self.waiter = Some(Waiter { phase: Phase::Running, reply }),
            VmCommand::PowerButton
            | VmCommand::SoftReboot
            | VmCommand::Reset
            | VmCommand::SetLink { .. }
            | VmCommand::Kill => answer(reply, None),
        }
    }

    /// Whether a caller waits for this phase.
    pub(super) fn has_waiter_for(&self, phase: Phase) -> bool {
        self.waiter.as_ref().is_some_and(|waiter| waiter.phase == phase)
    }

    /// Replies to the waiting caller: after the pause, the resume, or a retry whose disks fail again.
    pub(super) fn answer_waiter(&mut self, event: &Event) {
        let fails = matches!(event, Event::DisksFailed(failures) if !failures.is_empty());
        let (phase, fault) = match self.pause.phase() {
            Phase::Running => (Phase::Running, None),
            _ if *event == Event::Paused => (Phase::Paused, None),
            _ if fails && !self.pause.requested => {
                (Phase::Running, Some(fault(Code::Conflict, self.pause.paused_reason())))
            }
            _ => return,
        };
        if let Some(waiter) = self.waiter.take_if(|waiter| waiter.phase == phase) {
            answer(waiter.reply, fault);
        }
    }
}

/// Why a command conflicts with the state, in KubeVirt's words. A guest that is paused because its disks fail may be
/// paused by request as well, which keeps it paused, and be resumed, which retries at once.
fn conflict(command: &VmCommand, now: &Pause, changing: bool) -> Option<&'static str> {
    match (command, now.phase()) {
        (VmCommand::Pause | VmCommand::Resume, _) if changing => {
            Some("a pause or unpause of the VMI is under way")
        }
        (VmCommand::Pause, _) if now.requested => Some("VMI is already paused"),
        (VmCommand::Resume, Phase::Running) => Some("VMI is not paused"),
        (VmCommand::SoftReboot, Phase::Paused) => Some("VMI is paused"),
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
        for (command, now, changing, expected) in [
            (VmCommand::Pause, running(), false, None),
            (VmCommand::Pause, paused(), false, Some("VMI is already paused")),
            (VmCommand::Pause, failed(), false, None),
            (VmCommand::Pause, both(), false, Some("VMI is already paused")),
            (VmCommand::Resume, paused(), false, None),
            (VmCommand::Resume, failed(), false, None),
            (VmCommand::Resume, both(), false, None),
            (VmCommand::Resume, running(), false, Some("VMI is not paused")),
            (VmCommand::Resume, running(), true, Some("a pause or unpause of the VMI is under way")),
            (VmCommand::SoftReboot, running(), false, None),
            (VmCommand::SoftReboot, paused(), false, Some("VMI is paused")),
            (VmCommand::SoftReboot, failed(), false, Some("VMI is paused")),
            (VmCommand::Reset, paused(), true, None),
            (VmCommand::Reset, failed(), false, None),
        ] {
            assert_eq!(conflict(&command, &now, changing), expected, "{command:?} {now:?}");
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
            pause.apply_event(&event);
            assert_eq!((pause.phase(), pause.requested), (phase, requested), "{event:?}");
        }
    }
}
