//! A reboot by the power button: QEMU waits where the guest has switched itself off, is reset, and goes on.

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
    Asked(Instant),
    /// The guest is off and is being reset.
    Off,
}

/// What an event means for a soft reboot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the reboot and needs no answer.
    Nothing,
    /// QEMU is to reset the guest, and not to wait again.
    Reset,
    /// The guest was reset: it is to run.
    GoOn,
    /// QEMU waits for a reboot that nobody waits for any more: it is to end, for this event's reason.
    End(Event),
}

impl SoftReboot {
    pub(super) fn begin(&mut self, now: Instant) {
        if !matches!(self, Self::Off) {
            *self = Self::Asked(now + SOFT_REBOOT);
        }
    }

    /// The guest is to stay off when it switches itself off; whether that is news.
    pub(super) fn forget(&mut self) -> bool {
        match self {
            Self::Asked(_) => {
                *self = Self::None;
                true
            }
            // It is as good as up again, and hears the next press.
            Self::None | Self::Off => false,
        }
    }

    /// `None`: the event has nothing to do with a soft reboot.
    pub(super) fn hear(&mut self, event: &Event, now: Instant) -> Option<Step> {
        match (&self, event) {
            (Self::Asked(until), Event::Shutdown { reason }) if reason == "guest-shutdown" => {
                if now >= *until {
                    *self = Self::None;
                    return Some(Step::End(event.clone()));
                }
                *self = Self::Off;
                Some(Step::Reset)
            }
            (Self::Off, Event::Reset { .. }) => {
                *self = Self::None;
                Some(Step::GoOn)
            }
            (Self::Off, Event::Stop) => Some(Step::Nothing),
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
        assert_eq!(soft.hear(&off(), now), None, "nobody asked");
        soft.begin(now);
        let reset = Event::Reset { by_guest: false };
        let heard: Vec<_> = [&off(), &Event::Stop, &reset, &Event::Resume, &off()]
            .into_iter()
            .map(|event| soft.hear(event, now))
            .collect();
        assert_eq!(heard, [Some(Step::Reset), Some(Step::Nothing), Some(Step::GoOn), None, None]);
    }

    #[test]
    fn one_that_answers_too_late_or_was_asked_to_stop_since_ends() {
        let now = Instant::now();
        let mut soft = SoftReboot::default();
        soft.begin(now);
        assert_eq!(soft.hear(&off(), now + SOFT_REBOOT + Duration::from_secs(1)), Some(Step::End(off())));
        soft.begin(now);
        assert!(soft.forget() && !soft.forget());
        assert_eq!(soft.hear(&off(), now), None);
        soft.begin(now);
        let killed = Event::Shutdown { reason: "host-qmp-quit".to_owned() };
        assert_eq!(soft.hear(&killed, now), None);
    }
}
