use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tracing::info;
use vireo_vmm::Exit;

use crate::hypervisor::SOFT_REBOOT;

/// What is wanted of a guest, whichever VM it has at the moment.
#[derive(Debug)]
pub(super) struct DesiredState {
    paused: AtomicBool,
    /// Until when a power-off is a reboot.
    soft_reboot: Mutex<Option<Instant>>,
    /// Why it cannot go on.
    failure: OnceLock<String>,
}

impl DesiredState {
    pub(super) fn new(paused: bool) -> Self {
        Self { paused: AtomicBool::new(paused), soft_reboot: Mutex::default(), failure: OnceLock::new() }
    }

    /// Whether vCPUs are paused.
    pub(super) fn paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
    }

    /// Something is lost that it cannot do without. The first such reason counts.
    pub(super) fn fail(&self, reason: String) {
        // There is one already.
        let _ = self.failure.set(reason);
    }

    /// Why it was killed, if that was not wanted.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    fn soft_reboot(&self) -> MutexGuard<'_, Option<Instant>> {
        self.soft_reboot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the next power-off is a reboot, if it comes soon.
    pub(super) fn reboot_softly(&self, wanted: bool) {
        *self.soft_reboot() = wanted.then(|| Instant::now() + SOFT_REBOOT);
    }

    /// What the end of a VM is, by what was wanted.
    pub(super) fn applied(&self, exit: Exit) -> Exit {
        let until = self.soft_reboot().take();
        match exit {
            Exit::PowerOff if until.is_some_and(|until| Instant::now() < until) => {
                info!("the guest switched itself off for a reboot");
                Exit::Reset
            }
            exit => exit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_reboot_is_the_next_power_off_and_no_other() {
        let desired = DesiredState::new(false);
        assert!(matches!(desired.applied(Exit::PowerOff), Exit::PowerOff));
        desired.reboot_softly(true);
        assert!(matches!(desired.applied(Exit::PowerOff), Exit::Reset));
        assert!(matches!(desired.applied(Exit::PowerOff), Exit::PowerOff));
        // The guest reset itself in place of switching itself off.
        desired.reboot_softly(true);
        assert!(matches!(desired.applied(Exit::Reset), Exit::Reset));
        assert!(matches!(desired.applied(Exit::PowerOff), Exit::PowerOff));
        // Asked to stop since.
        desired.reboot_softly(true);
        desired.reboot_softly(false);
        assert!(matches!(desired.applied(Exit::PowerOff), Exit::PowerOff));
    }
}
