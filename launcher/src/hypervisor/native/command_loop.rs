use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use vireo_vmm::Controls;

use super::desired::DesiredState;
use super::stall::{StallChange, Stalls};
use crate::hypervisor::{Event, VmCommand};

/// Executes the commands for a VM.
pub(super) struct CommandLoop {
    pub(super) desired: Arc<DesiredState>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// The VM there is; `None` between two.
    pub(super) current: watch::Receiver<Option<Controls>>,
    pub(super) stalls: Stalls,
}

impl CommandLoop {
    /// Executes commands on the current VM, until the VM thread has ended.
    ///
    /// A kill holds across a reset: the VM that comes after it dies too. So does a pause.
    ///
    /// While a request of a disk is held, the vCPUs are paused: to the guest no time passes in which it could give
    /// up. The disk's worker tries again by itself.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<VmCommand>,
        mut failures: mpsc::UnboundedReceiver<StallChange>,
    ) {
        let mut killed = false;
        loop {
            tokio::select! {
                command = commands.recv(), if !killed => match command {
                    // A closed channel means that the session dropped the VM.
                    Some(VmCommand::Kill) | None => {
                        killed = true;
                        self.apply(Controls::kill);
                    }
                    Some(command) => self.execute(command).await,
                },
                Some(change) = failures.recv(), if !killed => self.disk_failed(change).await,
                changed = self.current.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    if killed {
                        self.apply(Controls::kill);
                    } else if self.desired.paused() {
                        // It may have been started before that was wanted.
                        self.pause(Controls::pause).await;
                    }
                }
            }
        }
    }

    async fn execute(&self, command: VmCommand) {
        match command {
            VmCommand::PowerButton => {
                self.desired.reboot_softly(false);
                self.apply(Controls::power_button);
            }
            VmCommand::SoftReboot => {
                self.desired.reboot_softly(true);
                self.apply(Controls::power_button);
            }
            VmCommand::Reset => self.apply(Controls::reset),
            VmCommand::Pause => {
                self.desired.pause(true);
                self.pause(Controls::pause).await;
                self.emit(Event::Paused);
            }
            VmCommand::Resume => {
                self.desired.pause(false);
                match self.stalls.any() {
                    true => {
                        self.apply(Controls::resume_devices);
                        self.stalls.retry();
                    }
                    false => self.apply(Controls::resume),
                }
                self.emit(Event::Resumed);
            }
            VmCommand::Kill => self.apply(Controls::kill),
        }
    }

    /// A disk's requests are held, are still held, or are no longer held.
    async fn disk_failed(&mut self, change: StallChange) {
        let failures = self.stalls.update(change);
        if self.stalls.any() {
            // The disk's worker is to try again.
            self.pause(Controls::pause_vcpus).await;
        } else if !self.desired.paused() {
            self.apply(Controls::resume);
        }
        self.emit(Event::DisksFailed(failures));
    }

    /// vCPUs stop once they are back from the devices, and devices once the host has answered, which may block.
    async fn pause(&self, act: impl FnOnce(&Controls) + Send + 'static) {
        let Some(controls) = self.current.borrow().clone() else { return };
        if tokio::task::spawn_blocking(move || act(&controls)).await.is_err() {
            tracing::error!("pausing the VM broke off");
        }
    }

    fn apply(&self, act: impl FnOnce(&Controls)) {
        if let Some(controls) = self.current.borrow().as_ref() {
            act(controls);
        }
    }

    fn emit(&self, event: Event) {
        // The receiver may be gone.
        let _ = self.events.send(event);
    }
}
