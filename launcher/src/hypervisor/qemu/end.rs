use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::qmp::Event;
use crate::fault::{Code, fault};
use crate::hypervisor::End;

/// What is known about how QEMU came to its end.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// We told it to die.
    pub killed: bool,
    /// The reason in its SHUTDOWN event.
    pub shutdown: Option<String>,
    /// What the guest's kernel said when it panicked.
    pub panicked: Option<String>,
}

impl Story {
    /// Remembers what matters of an event.
    pub(super) fn hear(&mut self, event: &Event) {
        match event {
            // The first reason counts: a guest that powers off while it is being killed powered off.
            Event::Shutdown { reason } => {
                self.shutdown.get_or_insert_with(|| reason.clone());
            }
            Event::Panicked { info } => self.panicked = Some(info.clone()),
            Event::Reset { .. }
            | Event::Stop
            | Event::Resume
            | Event::DiskError { .. }
            | Event::Port { .. }
            | Event::Deleted { .. }
            | Event::Kept { .. }
            | Event::Other(_) => {}
        }
    }

    /// How the machine ended, from all that was heard, QEMU's exit status and the tail of its stderr.
    pub(super) fn end(&self, status: Option<ExitStatus>, stderr: &str) -> End {
        if let Some(info) = &self.panicked {
            return End::Crashed(format!("the guest's kernel panicked {info}").trim_end().to_owned());
        }
        match self.shutdown.as_deref() {
            Some("guest-shutdown") => End::PoweredOff,
            Some("guest-reset" | "host-qmp-system-reset") => End::Rebooted,
            Some("guest-panic") => End::Crashed("the guest's kernel panicked".to_owned()),
            _ if self.killed => End::Killed,
            Some(reason) => failed(&format!("QEMU shut down by itself ({reason})"), stderr),
            None => failed(&format!("QEMU {}", gone(status)), stderr),
        }
    }
}

fn failed(what: &str, stderr: &str) -> End {
    End::Failed(fault(Code::Hypervisor, with_stderr(what, stderr)))
}

/// `what`, followed by what QEMU said.
pub(super) fn with_stderr(what: &str, stderr: &str) -> String {
    match stderr.trim() {
        "" => what.to_owned(),
        said => format!("{what}: {}", said.replace('\n', "; ")),
    }
}

/// How a process went, for people.
pub(super) fn gone(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((_, Some(signal))) => format!("was killed by signal {signal}"),
        Some((Some(code), None)) => format!("exited with code {code}"),
        Some((None, None)) | None => "is gone".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(killed: bool, shutdown: Option<&str>, panicked: Option<&str>) -> Story {
        Story { killed, shutdown: shutdown.map(str::to_owned), panicked: panicked.map(str::to_owned) }
    }

    #[test]
    fn what_was_heard_decides_and_silence_is_a_failure() {
        let table = [
            (story(false, Some("guest-shutdown"), None), End::PoweredOff),
            (story(true, Some("guest-shutdown"), None), End::PoweredOff),
            (story(false, Some("guest-reset"), None), End::Rebooted),
            (story(false, Some("host-qmp-system-reset"), None), End::Rebooted),
            (story(false, Some("guest-panic"), Some("")), End::Crashed("the guest's kernel panicked".into())),
            (story(true, Some("host-qmp-quit"), None), End::Killed),
            (story(true, None, None), End::Killed),
        ];
        for (story, end) in table {
            assert_eq!(story.end(Some(ExitStatus::from_raw(9)), "noise"), end, "{story:?}");
        }
        let table = [
            (story(false, None, None), "was killed by signal 9"),
            (story(false, Some("host-signal"), None), "host-signal"),
        ];
        for (story, said) in table {
            let End::Failed(fault) = story.end(Some(ExitStatus::from_raw(9)), "one\ntwo\n") else {
                panic!("{story:?} is no failure");
            };
            assert_eq!(fault.code(), Code::Hypervisor);
            assert!(fault.detail.contains(said) && fault.detail.ends_with(": one; two"), "{}", fault.detail);
        }
    }

    #[test]
    fn the_first_reason_counts() {
        let mut story = Story::default();
        for reason in ["guest-shutdown", "host-qmp-quit"] {
            story.hear(&Event::Shutdown { reason: reason.to_owned() });
        }
        assert_eq!(story.end(None, ""), End::PoweredOff);
    }
}
