//! Reboot by the power button: QEMU waits when the guest has powered off, is reset, and resumes.

use tokio::time::Instant;

use super::qmp::Event;
use crate::hypervisor::SOFT_REBOOT;

/// How far a soft reboot has come.
#[derive(Debug, Default)]
pub(super) enum SoftReboot {
    /// There is none.
    #[default]
    None,
    /// The button was pressed; what the guest does until then is taken for its answer.
    Requested(Instant),
    /// The guest is off and is being reset.
    Off,
}

/// What an event means for a soft reboot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// It belongs to the reboot and needs no answer.
    Nothing,
    /// QEMU is to reset the guest, and not to wait again.
    Reset,
    /// The guest was reset: it is to run.
    Resume,
    /// The soft reboot timed out before the guest powered off: QEMU is to end with this event's reason.
    End(Event),
}

impl SoftReboot {
    pub(super) fn begin(&mut self, now: Instant) {
        if !matches!(self, Self::Off) {
            *self = Self::Requested(now + SOFT_REBOOT);
        }
    }

    /// A power-off of the guest ends the VM again. Returns whether a soft reboot was pending.
    pub(super) fn cancel(&mut self) -> bool {
        match self {
            Self::Requested(_) => {
                *self = Self::None;
                true
            }
            // It is being reset, and receives the next press of the button.
            Self::None | Self::Off => false,
        }
    }

    /// `None`: the event has nothing to do with a soft reboot.
    pub(super) fn on_event(&mut self, event: &Event, now: Instant) -> Option<Action> {
        match (&self, event) {
            (Self::Requested(until), Event::Shutdown { reason }) if reason == "guest-shutdown" => {
                if now >= *until {
                    *self = Self::None;
                    return Some(Action::End(event.clone()));
                }
                *self = Self::Off;
                Some(Action::Reset)
            }
            (Self::Off, Event::Reset { .. }) => {
                *self = Self::None;
                Some(Action::Resume)
            }
            (Self::Off, Event::Stop) => Some(Action::Nothing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn off() -> Event {
        Event::Shutdown { reason: "guest-shutdown".to_owned() }
    }

    #[test]
    fn a_guest_that_switches_itself_off_is_reset_and_goes_on() {
        let now = Instant::now();
        let mut soft = SoftReboot::default();
        assert_eq!(soft.on_event(&off(), now), None, "not requested");
        soft.begin(now);
        let reset = Event::Reset { by_guest: false };
        let heard: Vec<_> = [&off(), &Event::Stop, &reset, &Event::Resume, &off()]
            .into_iter()
            .map(|event| soft.on_event(event, now))
            .collect();
        assert_eq!(heard, [Some(Action::Reset), Some(Action::Nothing), Some(Action::Resume), None, None]);
    }

    #[test]
    fn one_that_answers_too_late_or_was_asked_to_stop_since_ends() {
        let now = Instant::now();
        let mut soft = SoftReboot::default();
        soft.begin(now);
        assert_eq!(
            soft.on_event(&off(), now + SOFT_REBOOT + Duration::from_secs(1)),
            Some(Action::End(off()))
        );
        soft.begin(now);
        assert!(soft.cancel() && !soft.cancel());
        assert_eq!(soft.on_event(&off(), now), None);
        soft.begin(now);
        let killed = Event::Shutdown { reason: "host-qmp-quit".to_owned() };
        assert_eq!(soft.on_event(&killed, now), None);
    }
}
