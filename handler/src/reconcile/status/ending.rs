//! The reason and message that are reported for the end of a guest: pure functions.

use std::path::Path;

use vireo_proto::launcher::{Outcome, fault, outcome};

use super::{ConditionType, LIVENESS_FAILED, Phase, Status};
use crate::launcher::process::Ending;
use crate::reconcile::decide::Awaited;

/// A guest's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::reconcile) struct End {
    /// Succeeded or Failed.
    pub(in crate::reconcile) phase: Phase,
    /// The reason in CamelCase, for programs.
    pub(in crate::reconcile) reason: &'static str,
    /// For people; empty when the reason suffices.
    pub(in crate::reconcile) message: String,
}

impl End {
    /// An end that was requested and needs no message.
    fn wanted(reason: &'static str) -> Self {
        Self { phase: Phase::Succeeded, reason, message: String::new() }
    }

    fn failed(reason: &'static str, message: impl Into<String>) -> Self {
        Self { phase: Phase::Failed, reason, message: message.into() }
    }
}

/// The end for an outcome. `grace` is the VMI's termination grace period in seconds: with zero, a kill is the ordinary
/// end. `deleting`: the VMI is being deleted, so a guest that was not started is not a failure.
pub(in crate::reconcile) fn end(outcome: &Outcome, grace: u64, deleting: bool) -> End {
    use outcome::Kind;
    let (phase, reason) = match outcome.kind() {
        Kind::PoweredOff => (Phase::Succeeded, "GuestPoweredOff"),
        Kind::ShutDown => (Phase::Succeeded, "GuestShutDown"),
        Kind::RebootTerminated => (Phase::Succeeded, "GuestRebooted"),
        Kind::Killed | Kind::GraceExpired if grace == 0 => (Phase::Succeeded, KILLED),
        Kind::NotStarted if deleting => return End::wanted(NOT_STARTED),
        Kind::Killed => (Phase::Failed, KILLED),
        Kind::GraceExpired => (Phase::Failed, GRACE_EXPIRED),
        Kind::Crashed => (Phase::Failed, "GuestCrashed"),
        Kind::Failed => (Phase::Failed, "HypervisorFailed"),
        Kind::NotStarted => (Phase::Failed, not_started(outcome)),
        Kind::Unspecified => (Phase::Failed, "UnknownOutcome"),
    };
    let message = outcome.fault.as_ref().map(|fault| match fault.field.as_str() {
        "" => fault.detail.clone(),
        field if fault.detail.contains(field) => fault.detail.clone(),
        field => format!("{field}: {}", fault.detail),
    });
    End { phase, reason, message: message.unwrap_or_default() }
}

/// The reason of an end: the VMI was deleted before its guest ran.
const NOT_STARTED: &str = "StoppedBeforeStart";
/// The reason of an end: the guest did not end in time, and was killed.
pub(crate) const GRACE_EXPIRED: &str = "GracePeriodExpired";
/// The reason of an end: the guest was killed without being asked.
pub(crate) const KILLED: &str = "Killed";

fn not_started(outcome: &Outcome) -> &'static str {
    use fault::Code;
    match outcome.fault.as_ref().map(|fault| fault.code()) {
        Some(Code::Unsupported) => "Unsupported",
        Some(Code::NoKvm) => "NoUsableKvm",
        Some(Code::NoQemu) => "NoQemu",
        Some(Code::HostResource) => "HostResourceUnavailable",
        Some(Code::BootSource) => "BootSourceInvalid",
        Some(Code::Hypervisor) => "HypervisorFailed",
        Some(Code::Invalid | Code::Conflict | Code::Internal | Code::Unspecified) | None => "LaunchFailed",
    }
}

/// The end of a guest that was shut down because its livenessProbe failed, whatever its outcome.
pub(in crate::reconcile) fn unhealthy_end(why: &str) -> End {
    End::failed(LIVENESS_FAILED, why)
}

/// The end of a guest that was not started because its launcher Pod was deleted.
pub(in crate::reconcile) fn end_before_start() -> End {
    End::failed("PodTerminated", "its launcher Pod was deleted before its guest was started")
}

/// The end of a guest whose launcher reached its limit of memory, in MiB. The reason is Kubernetes'.
pub(in crate::reconcile) fn out_of_memory(limit: u64) -> End {
    End::failed(
        "OOMKilled",
        format!(
            "the memory limit of its launcher, {limit} MiB, was reached, and the kernel ended it: what the guest and its \
             hypervisor take beside its memory counts, too; raise spec.domain.resources.limits.memory, which also \
             replaces the limit of VMIs without one"
        ),
    )
}

/// Records an end in the Synchronized condition.
pub(in crate::reconcile) fn record_end(status: &mut Status, end: &End, now: &str) {
    let failed = end.phase == Phase::Failed;
    ConditionType::Synchronized.put(
        &mut status.conditions,
        failed.then(|| (false, end.reason, end.message.clone())),
        now,
    );
}

/// The facts about a launcher that ended without reporting its guest's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::reconcile) struct Lost {
    /// Its guest has run.
    pub(in crate::reconcile) started: bool,
    /// The VMI is being deleted.
    pub(in crate::reconcile) deleting: bool,
    /// What it did not do in time, if this handler killed it.
    pub(in crate::reconcile) killed: Option<Awaited>,
    /// How its process ended, if that is known.
    pub(in crate::reconcile) ending: Option<Ending>,
    /// The VMI's termination grace period in seconds.
    pub(in crate::reconcile) grace: u64,
    /// It was asked to stop because the node shuts down.
    pub(in crate::reconcile) with_node: bool,
    /// Its limit of memory in MiB, if it was killed for that.
    pub(in crate::reconcile) exceeded_memory: Option<u64>,
}

impl Lost {
    /// The end that is reported. A requested exit is not a failure, at any stage of the start.
    pub(in crate::reconcile) fn end(&self, log: &Path) -> End {
        match *self {
            Self { with_node: true, .. } => {
                End::failed("NodeShutdown", "its guest was shut down because the node shut down")
            }
            Self { deleting: true, started: false, .. } => End::wanted(NOT_STARTED),
            Self { deleting: true, ending: Some(Ending::Code(0)), killed: None, .. } => {
                End::wanted("GuestShutDown")
            }
            Self { deleting: true, grace: 0, .. } => End::wanted(KILLED),
            Self { deleting: true, killed: Some(_), grace, .. } => End::failed(
                GRACE_EXPIRED,
                format!(
                    "its launcher did not end the guest within the grace period of {grace} s, and was killed"
                ),
            ),
            Self { killed: None, exceeded_memory: Some(limit), .. } => out_of_memory(limit),
            Self { killed: Some(Awaited::Start), .. } => {
                let message = format!(
                    "its launcher did not start the guest in time, and was killed; see {}",
                    log.display()
                );
                End::failed("LaunchTimedOut", message)
            }
            Self { ending: Some(Ending::Signal(libc::SIGSYS)), .. } => {
                let message = format!(
                    "the launcher was ended by signal {} for a system call that its filter does not allow; its log names it: {}",
                    libc::SIGSYS,
                    log.display()
                );
                End::failed("LauncherLost", message)
            }
            Self { ending, .. } => {
                let how = ending.map_or_else(|| "is gone".to_owned(), |ending| ending.to_string());
                let message = format!(
                    "the launcher {how} without reporting how its guest ended; see {}",
                    log.display()
                );
                End::failed("LauncherLost", message)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vireo_proto::launcher::Fault;

    use super::*;

    const LOST: Lost = Lost {
        started: true,
        deleting: false,
        killed: None,
        ending: None,
        grace: 30,
        with_node: false,
        exceeded_memory: None,
    };

    fn all() -> impl Iterator<Item = Lost> {
        let killed = [None, Some(Awaited::Start), Some(Awaited::End), Some(Awaited::Exit)];
        let endings = [
            None,
            Some(Ending::Code(0)),
            Some(Ending::Code(1)),
            Some(Ending::Signal(9)),
            Some(Ending::Unknown),
        ];
        let flags = [false, true];
        killed.into_iter().flat_map(move |killed| {
            endings.into_iter().flat_map(move |ending| {
                flags.into_iter().flat_map(move |started| {
                    flags.into_iter().flat_map(move |deleting| {
                        [0, 30].map(|grace| Lost {
                            started,
                            deleting,
                            killed,
                            ending,
                            grace,
                            with_node: false,
                            exceeded_memory: None,
                        })
                    })
                })
            })
        })
    }

    #[test]
    fn every_row_of_the_table() {
        use Ending::{Code, Signal, Unknown};
        let deleting = Lost { deleting: true, ..LOST };
        let early = Lost { started: false, ..deleting };
        let rows = [
            // It was asked to stop before its guest ran: every exit of the launcher is a success.
            (Lost { ending: Some(Code(0)), ..early }, Phase::Succeeded, NOT_STARTED),
            (Lost { ending: Some(Code(1)), ..early }, Phase::Succeeded, NOT_STARTED),
            (
                Lost { ending: Some(Signal(9)), killed: Some(Awaited::End), ..early },
                Phase::Succeeded,
                NOT_STARTED,
            ),
            (Lost { ending: Some(Unknown), ..early }, Phase::Succeeded, NOT_STARTED),
            (early, Phase::Succeeded, NOT_STARTED),
            // After it ran: a launcher that exits with code 0 has shut its guest down.
            (Lost { ending: Some(Code(0)), ..deleting }, Phase::Succeeded, "GuestShutDown"),
            (Lost { ending: Some(Signal(9)), ..deleting }, Phase::Failed, "LauncherLost"),
            (Lost { ending: Some(Unknown), ..deleting }, Phase::Failed, "LauncherLost"),
            // It was killed after the deadline; without a grace period that is the ordinary end.
            (Lost { killed: Some(Awaited::End), ..deleting }, Phase::Failed, GRACE_EXPIRED),
            (Lost { killed: Some(Awaited::End), grace: 0, ..deleting }, Phase::Succeeded, "Killed"),
            // By an earlier handler.
            (Lost { ending: Some(Unknown), grace: 0, ..deleting }, Phase::Succeeded, "Killed"),
            // The exit was not requested.
            (LOST, Phase::Failed, "LauncherLost"),
            (Lost { ending: Some(Code(0)), ..LOST }, Phase::Failed, "LauncherLost"),
            (Lost { ending: Some(Code(0)), started: false, ..LOST }, Phase::Failed, "LauncherLost"),
            (Lost { ending: Some(Signal(11)), grace: 0, ..LOST }, Phase::Failed, "LauncherLost"),
            (Lost { killed: Some(Awaited::Start), started: false, ..LOST }, Phase::Failed, "LaunchTimedOut"),
            (Lost { with_node: true, ..deleting }, Phase::Failed, "NodeShutdown"),
            (
                Lost { exceeded_memory: Some(300), ending: Some(Signal(9)), ..LOST },
                Phase::Failed,
                "OOMKilled",
            ),
        ];
        for (lost, phase, reason) in rows {
            let end = lost.end(Path::new("/log"));
            assert_eq!((end.phase, end.reason), (phase, reason), "{lost:?}");
            assert_eq!(end.message.is_empty(), phase == Phase::Succeeded, "{lost:?}: {}", end.message);
        }
    }

    #[test]
    fn a_launcher_that_its_filter_ended_is_reported_as_such() {
        let end = Lost { ending: Some(Ending::Signal(31)), ..LOST }.end(Path::new("/log"));
        assert!(
            end.message.contains("signal 31 for a system call that its filter does not allow"),
            "{}",
            end.message
        );
        assert!(end.message.ends_with("its log names it: /log"), "{}", end.message);
    }

    #[test]
    fn a_wanted_exit_is_no_warning_at_any_stage_of_a_start() {
        for lost in all().filter(|lost| lost.deleting && !lost.started) {
            assert_eq!(lost.end(Path::new("/log")).phase, Phase::Succeeded, "{lost:?}");
        }
        for lost in all().filter(|lost| !lost.deleting) {
            assert_eq!(lost.end(Path::new("/log")).phase, Phase::Failed, "not requested: {lost:?}");
        }
        let killed = Outcome { kind: outcome::Kind::NotStarted.into(), ..Outcome::default() };
        assert_eq!(end(&killed, 30, true), End::wanted(NOT_STARTED));
        assert_eq!(end(&killed, 30, false).reason, "LaunchFailed");
    }

    #[test]
    fn every_end_has_its_phase() {
        use outcome::Kind;
        let rows = [
            (Kind::PoweredOff, 30, Phase::Succeeded),
            (Kind::ShutDown, 30, Phase::Succeeded),
            (Kind::RebootTerminated, 30, Phase::Succeeded),
            (Kind::Killed, 0, Phase::Succeeded),
            (Kind::GraceExpired, 0, Phase::Succeeded),
            (Kind::Killed, 30, Phase::Failed),
            (Kind::GraceExpired, 30, Phase::Failed),
            (Kind::Crashed, 0, Phase::Failed),
            (Kind::Failed, 30, Phase::Failed),
            (Kind::NotStarted, 30, Phase::Failed),
            (Kind::Unspecified, 30, Phase::Failed),
        ];
        for (kind, grace, phase) in rows {
            let end = end(&Outcome { kind: kind.into(), ..Outcome::default() }, grace, false);
            assert_eq!(end.phase, phase, "{kind:?} with a grace of {grace}");
            assert!(!end.reason.is_empty());
        }
    }

    #[test]
    fn a_message_names_its_field_once() {
        let outcome = |detail: &str| Outcome {
            kind: outcome::Kind::NotStarted.into(),
            fault: Some(Fault {
                code: fault::Code::Unsupported.into(),
                detail: detail.to_owned(),
                field: "spec.domain.devices.disks[0].disk.bus".to_owned(),
            }),
            panic: None,
        };
        let reported = end(&outcome("native has no sata"), 30, false);
        assert_eq!(reported.reason, "Unsupported");
        assert_eq!(reported.message, "spec.domain.devices.disks[0].disk.bus: native has no sata");
        let reported = end(&outcome("spec.domain.devices.disks[0].disk.bus asks for sata"), 30, false);
        assert_eq!(reported.message, "spec.domain.devices.disks[0].disk.bus asks for sata");
    }
}
