use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde_json::Value;
use vireo_proto::launcher::Panic;

use super::qmp::Event;
use crate::fault::{Code, fault};
use crate::hypervisor::End;
use crate::hypervisor::child::{describe_status, with_stderr};
use crate::hypervisor::guest::PVPANIC;

/// What is known about how QEMU came to its end.
#[derive(Debug, Default)]
pub(super) struct ExitReason {
    /// We killed it.
    pub killed: bool,
    /// The reason in its SHUTDOWN event.
    pub shutdown: Option<String>,
    /// The panic information of the guest's kernel.
    pub panicked: Option<String>,
    /// The guest's watchdog expired, at which QEMU ends.
    pub watchdog: bool,
    /// How a process beside it ended, which it cannot do without.
    pub beside: Option<String>,
}

impl ExitReason {
    /// Remembers what matters of an event.
    pub(super) fn record(&mut self, event: &Event) {
        match event {
            // The first reason counts: a guest that powers off while it is being killed powered off.
            Event::Shutdown { reason } => {
                self.shutdown.get_or_insert_with(|| reason.clone());
            }
            Event::Panicked { info } => self.panicked = Some(info.clone()),
            Event::Watchdog { action } => self.watchdog = action == "poweroff",
            Event::Reset { .. }
            | Event::Stop
            | Event::Resume
            | Event::DiskError { .. }
            | Event::Port { .. }
            | Event::DeviceDeleted { .. }
            | Event::DeviceUnplugError { .. }
            | Event::DumpCompleted { .. }
            | Event::Other(_) => {}
        }
    }

    /// How the VM ended, from the recorded events, QEMU's exit status and the tail of its stderr.
    pub(super) fn to_end(&self, status: Option<ExitStatus>, stderr: &str) -> End {
        if let Some(info) = &self.panicked {
            return End::Panicked(
                format!("the guest's kernel panicked {info}").trim_end().to_owned(),
                panic(info),
            );
        }
        if self.watchdog {
            return End::Crashed("the guest's watchdog expired".to_owned());
        }
        match self.shutdown.as_deref() {
            Some("guest-shutdown") => End::PoweredOff,
            Some("guest-reset" | "host-qmp-system-reset") => End::Rebooted,
            Some("guest-panic") => End::Panicked("the guest's kernel panicked".to_owned(), panic("")),
            _ if self.killed => End::Killed,
            reason => match (&self.beside, reason) {
                // Those that are connected to QEMU end when it dies.
                (Some(beside), _) if status.and_then(|status| status.signal()).is_some() => {
                    failed(&format!("QEMU {}, and {beside}", describe_status(status)), stderr)
                }
                (Some(beside), _) => End::Failed(fault(Code::Hypervisor, beside.clone())),
                (None, Some(reason)) => failed(&format!("QEMU shut down by itself ({reason})"), stderr),
                (None, None) => failed(&format!("QEMU {}", describe_status(status)), stderr),
            },
        }
    }
}

/// What QEMU's information of a panic says; it has none where pvpanic reports it.
fn panic(info: &str) -> Panic {
    let info: Value = serde_json::from_str(info).unwrap_or_default();
    let r#type = info.get("type").and_then(Value::as_str).unwrap_or(PVPANIC).to_owned();
    // Of Hyper-V's five parameters, the first.
    let bugcheck_code = info.get("arg1").and_then(Value::as_u64).unwrap_or_default();
    Panic { r#type, bugcheck_code }
}

fn failed(what: &str, stderr: &str) -> End {
    End::Failed(fault(Code::Hypervisor, with_stderr(what, stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(killed: bool, shutdown: Option<&str>, panicked: Option<&str>) -> ExitReason {
        let (shutdown, panicked) = (shutdown.map(str::to_owned), panicked.map(str::to_owned));
        ExitReason { killed, shutdown, panicked, ..ExitReason::default() }
    }

    #[test]
    fn what_was_heard_decides_and_silence_is_a_failure() {
        let of_pvpanic = Panic { r#type: PVPANIC.to_owned(), bugcheck_code: 0 };
        let table = [
            (exit(false, Some("guest-shutdown"), None), End::PoweredOff),
            (exit(true, Some("guest-shutdown"), None), End::PoweredOff),
            (exit(false, Some("guest-reset"), None), End::Rebooted),
            (exit(false, Some("host-qmp-system-reset"), None), End::Rebooted),
            (
                exit(false, Some("guest-panic"), Some("")),
                End::Panicked("the guest's kernel panicked".into(), of_pvpanic.clone()),
            ),
            (
                exit(false, Some("guest-panic"), None),
                End::Panicked("the guest's kernel panicked".into(), of_pvpanic),
            ),
            (
                exit(false, None, Some(r#"{"type":"hyper-v","arg1":126,"arg2":1}"#)),
                End::Panicked(
                    r#"the guest's kernel panicked {"type":"hyper-v","arg1":126,"arg2":1}"#.into(),
                    Panic { r#type: "hyper-v".to_owned(), bugcheck_code: 126 },
                ),
            ),
            (exit(true, Some("host-qmp-quit"), None), End::Killed),
            (exit(true, None, None), End::Killed),
        ];
        for (exit, end) in table {
            assert_eq!(exit.to_end(Some(ExitStatus::from_raw(9)), "noise"), end, "{exit:?}");
        }
        for (action, crashed) in [("poweroff", true), ("shutdown", false)] {
            let mut exit = exit(false, None, None);
            exit.record(&Event::Watchdog { action: action.into() });
            let end = exit.to_end(Some(ExitStatus::from_raw(0)), "");
            assert_eq!(matches!(end, End::Crashed(_)), crashed, "{action}: {end:?}");
        }
        let table = [
            (exit(false, None, None), "was killed by signal 9"),
            (exit(false, Some("host-signal"), None), "host-signal"),
        ];
        for (exit, text) in table {
            let End::Failed(fault) = exit.to_end(Some(ExitStatus::from_raw(9)), "one\ntwo\n") else {
                panic!("{exit:?} is not a failure");
            };
            assert_eq!(fault.code(), Code::Hypervisor);
            assert!(fault.detail.contains(text) && fault.detail.ends_with(": one; two"), "{}", fault.detail);
        }
    }

    #[test]
    fn a_process_that_ends_first_is_the_reason() {
        let ended = |shutdown, killed| {
            let beside = Some("the TPM was killed by signal 9".to_owned());
            ExitReason { beside, ..exit(killed, shutdown, None) }.to_end(None, "")
        };
        for shutdown in [None, Some("host-qmp-quit")] {
            let End::Failed(fault) = ended(shutdown, false) else { panic!("{shutdown:?} is not a failure") };
            assert_eq!(fault.detail, "the TPM was killed by signal 9");
        }
        let beside = Some("the TPM exited with code 0".to_owned());
        let died = ExitReason { beside, ..exit(false, None, None) }.to_end(Some(ExitStatus::from_raw(9)), "");
        let End::Failed(fault) = died else { panic!("it is not a failure") };
        assert_eq!(fault.detail, "QEMU was killed by signal 9, and the TPM exited with code 0");
        // QEMU ends its TPM when it ends.
        assert_eq!(ended(Some("guest-shutdown"), false), End::PoweredOff);
        assert_eq!(ended(Some("host-qmp-quit"), true), End::Killed);
    }

    #[test]
    fn the_first_reason_counts() {
        let mut exit = ExitReason::default();
        for reason in ["guest-shutdown", "host-qmp-quit"] {
            exit.record(&Event::Shutdown { reason: reason.to_owned() });
        }
        assert_eq!(exit.to_end(None, ""), End::PoweredOff);
    }
}
