use vireo_proto::launcher::{Fault, Outcome, outcome::Kind};

use crate::fault::{Code, fault};
use crate::hypervisor::End;

/// What was done to the guest before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopCause {
    /// Nothing.
    None,
    /// A shutdown was requested.
    ShutdownRequested,
    /// It was killed on request.
    Killed,
    /// It was killed because it did not shut down in time.
    GraceExpired,
}

/// What a VM's end means.
pub(super) fn outcome(end: End, cause: StopCause) -> Outcome {
    let mut panicked = None;
    let (kind, fault) = match (end, cause) {
        (End::PoweredOff, StopCause::None) => (Kind::PoweredOff, None),
        (End::PoweredOff, StopCause::ShutdownRequested | StopCause::Killed | StopCause::GraceExpired) => {
            (Kind::ShutDown, None)
        }
        (End::Rebooted, _) => (Kind::RebootTerminated, None),
        (End::Killed, StopCause::GraceExpired) => (Kind::GraceExpired, None),
        (End::Killed, StopCause::None | StopCause::ShutdownRequested | StopCause::Killed) => {
            (Kind::Killed, None)
        }
        (End::Crashed(how), _) => (Kind::Crashed, Some(fault(Code::Hypervisor, how))),
        (End::Panicked(how, panic), _) => {
            panicked = Some(panic);
            (Kind::Crashed, Some(fault(Code::Hypervisor, how)))
        }
        (End::Failed(fault), _) => (Kind::Failed, Some(fault)),
    };
    Outcome { kind: kind.into(), fault, panic: panicked }
}

pub(super) fn not_started(fault: Fault) -> Outcome {
    Outcome { kind: Kind::NotStarted.into(), fault: Some(fault), panic: None }
}

pub(super) fn killed_while_starting() -> Outcome {
    not_started(fault(Code::Conflict, "killed on request before the VM was up"))
}

#[cfg(test)]
mod tests {
    use vireo_proto::launcher::Panic;

    use super::*;

    #[test]
    fn the_end_and_what_led_to_it_make_the_outcome() {
        let failed = || End::Failed(fault(Code::Hypervisor, "broken"));
        let table = [
            (End::PoweredOff, StopCause::None, Kind::PoweredOff),
            (End::PoweredOff, StopCause::ShutdownRequested, Kind::ShutDown),
            (End::PoweredOff, StopCause::GraceExpired, Kind::ShutDown),
            (End::Rebooted, StopCause::None, Kind::RebootTerminated),
            (End::Killed, StopCause::Killed, Kind::Killed),
            (End::Killed, StopCause::GraceExpired, Kind::GraceExpired),
            (End::Crashed("panic".into()), StopCause::ShutdownRequested, Kind::Crashed),
            (End::Panicked("panic".into(), Panic::default()), StopCause::None, Kind::Crashed),
            (failed(), StopCause::None, Kind::Failed),
            (failed(), StopCause::Killed, Kind::Failed),
        ];
        for (end, cause, kind) in table {
            let case = format!("{end:?} {cause:?}");
            let explained = matches!(end, End::Crashed(_) | End::Panicked(..) | End::Failed(_));
            let panicked = matches!(end, End::Panicked(..));
            let outcome = outcome(end, cause);
            assert_eq!(outcome.kind(), kind, "{case}");
            assert_eq!((outcome.fault.is_some(), outcome.panic.is_some()), (explained, panicked), "{case}");
        }
    }
}
