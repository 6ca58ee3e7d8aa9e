use vireo_proto::launcher::{Fault, Outcome, outcome::Kind};

use crate::fault::{Code, fault};
use crate::hypervisor::End;

/// What was done to the guest before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// Nothing.
    None,
    /// It was asked to shut down.
    Asked,
    /// It was killed on request.
    Killed,
    /// It was killed because it did not shut down in time.
    OutOfTime,
}

/// What a machine's end means.
pub(super) fn outcome(end: End, intent: Intent) -> Outcome {
    let (kind, fault) = match (end, intent) {
        (End::PoweredOff, Intent::None) => (Kind::PoweredOff, None),
        (End::PoweredOff, Intent::Asked | Intent::Killed | Intent::OutOfTime) => (Kind::ShutDown, None),
        (End::Rebooted, _) => (Kind::RebootTerminated, None),
        (End::Killed, Intent::OutOfTime) => (Kind::GraceExpired, None),
        (End::Killed, Intent::None | Intent::Asked | Intent::Killed) => (Kind::Killed, None),
        (End::Crashed(how), _) => (Kind::Crashed, Some(fault(Code::Hypervisor, how))),
        (End::Failed(fault), _) => (Kind::Failed, Some(fault)),
    };
    Outcome { kind: kind.into(), fault }
}

pub(super) fn not_started(fault: Fault) -> Outcome {
    Outcome { kind: Kind::NotStarted.into(), fault: Some(fault) }
}

pub(super) fn killed_while_starting() -> Outcome {
    not_started(fault(Code::Conflict, "killed on request before the machine was up"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_and_what_led_to_it_make_the_outcome() {
        let failed = || End::Failed(fault(Code::Hypervisor, "broken"));
        let table = [
            (End::PoweredOff, Intent::None, Kind::PoweredOff),
            (End::PoweredOff, Intent::Asked, Kind::ShutDown),
            (End::PoweredOff, Intent::OutOfTime, Kind::ShutDown),
            (End::Rebooted, Intent::None, Kind::RebootTerminated),
            (End::Killed, Intent::Killed, Kind::Killed),
            (End::Killed, Intent::OutOfTime, Kind::GraceExpired),
            (End::Crashed("panic".into()), Intent::Asked, Kind::Crashed),
            (failed(), Intent::None, Kind::Failed),
            (failed(), Intent::Killed, Kind::Failed),
        ];
        for (end, intent, kind) in table {
            let case = format!("{end:?} {intent:?}");
            let explained = matches!(end, End::Crashed(_) | End::Failed(_));
            let outcome = outcome(end, intent);
            assert_eq!(outcome.kind(), kind, "{case}");
            assert_eq!(outcome.fault.is_some(), explained, "{case}");
        }
    }
}
