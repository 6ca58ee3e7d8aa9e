//! The reasons of a paused guest, in KubeVirt's terms.

use vireo_proto::launcher::{DiskFailure, State};

/// The reason of the condition `Paused` of a guest whose disks fail.
pub const PAUSED_IO_ERROR: &str = "PausedIOError";

const DETECTED: &str = "VMI was paused, low-level IO error detected";

/// The condition `Paused` of a paused guest.
pub(super) fn condition(state: &State) -> (bool, &'static str, String) {
    if state.pause_requested || state.disk_failures.is_empty() {
        return (true, "PausedByUser", "VMI was paused by user".to_owned());
    }
    let failures: Vec<String> = state.disk_failures.iter().map(describe).collect();
    (true, PAUSED_IO_ERROR, format!("{DETECTED}: {}", failures.join("; ")))
}

fn describe(failure: &DiskFailure) -> String {
    let DiskFailure { disk, no_space, message } = failure;
    let what = if *no_space { "not enough space on volume" } else { "IO error at the volume" };
    match message.as_str() {
        "" => format!("{what}: {disk}"),
        message => format!("{what}: {disk} ({message})"),
    }
}

/// The messages of the events for such a condition, one for each volume.
pub fn io_errors(message: &str) -> impl Iterator<Item = String> {
    let failures = message.strip_prefix(DETECTED).and_then(|rest| rest.strip_prefix(": "));
    let failures = failures.into_iter().flat_map(|failures| failures.split("; "));
    failures.map(|failure| {
        let without_details = failure.split_once(" (").map_or(failure, |(what, _)| what);
        format!("VM Paused due to {without_details}")
    })
}

/// The condition `Ready` of a paused guest; in a cluster it comes from the pod's readiness gate.
pub(super) fn not_ready() -> (bool, &'static str, String) {
    let gate = "kubevirt.io/virtual-machine-unpaused";
    let message = format!("the status of pod readiness gate {gate:?} is not \"True\", but False");
    (false, "ReadinessGatesNotReady", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused(requested: bool, disks: &[(&str, bool, &str)]) -> State {
        let failure = |(disk, no_space, message): &(&str, bool, &str)| DiskFailure {
            disk: (*disk).to_owned(),
            no_space: *no_space,
            message: (*message).to_owned(),
        };
        State {
            pause_requested: requested,
            disk_failures: disks.iter().map(failure).collect(),
            ..State::default()
        }
    }

    #[test]
    fn pauses_by_a_user_and_by_a_disk_have_different_reasons() {
        let full = ("data", true, "No space left on device (os error 28)");
        let broken = ("root", false, "Input/output error");
        for (state, reason, events) in [
            // As launchers of older releases report it.
            (paused(false, &[]), "PausedByUser", &[][..]),
            (paused(true, &[]), "PausedByUser", &[]),
            (paused(true, &[full]), "PausedByUser", &[]),
            (paused(false, &[full]), PAUSED_IO_ERROR, &["VM Paused due to not enough space on volume: data"]),
            (
                paused(false, &[full, broken]),
                PAUSED_IO_ERROR,
                &[
                    "VM Paused due to not enough space on volume: data",
                    "VM Paused due to IO error at the volume: root",
                ],
            ),
            (
                paused(false, &[("data", false, "")]),
                PAUSED_IO_ERROR,
                &["VM Paused due to IO error at the volume: data"],
            ),
        ] {
            let (holds, actual, message) = condition(&state);
            assert!(holds);
            assert_eq!(actual, reason, "{state:?}");
            assert_eq!(io_errors(&message).collect::<Vec<_>>(), events, "{message}");
        }
        let (_, _, message) = condition(&paused(false, &[full]));
        assert_eq!(
            message,
            "VMI was paused, low-level IO error detected: not enough space on volume: data (No space left on device (os error 28))"
        );
    }
}
