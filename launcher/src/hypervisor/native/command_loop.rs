use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use vireo_vmm::Controls;
use vireo_vmm::config::Link;
use vireo_vmm::state::SaveError;

use super::desired::DesiredState;
use super::stall::{StallChange, Stalls};
use crate::fault::chain;
use crate::hypervisor::{Event, VmCommand, virtiofs};

/// Executes the commands for a VM.
pub(super) struct CommandLoop {
    pub(super) desired: Arc<DesiredState>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// The VM there is; `None` between two.
    pub(super) current: watch::Receiver<Option<Controls>>,
    pub(super) stalls: Stalls,
    pub(super) links: Links,
    /// Writes the VM's memory to a file.
    pub(super) dumping: Option<JoinHandle<Result<(), SaveError>>>,
    /// Of its file systems; they end with it.
    pub(super) servers: Vec<virtiofs::Server>,
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
        mut dumps: mpsc::Receiver<File>,
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
                reason = virtiofs::ended(&mut self.servers), if !killed => {
                    killed = true;
                    self.desired.fail(reason);
                    self.apply(Controls::kill);
                }
                Some(change) = failures.recv(), if !killed => self.disk_failed(change).await,
                Some(file) = dumps.recv(), if self.dumping.is_none() => self.dumping = self.dump(file),
                written = finished(&mut self.dumping) => {
                    self.dumping = None;
                    self.dumped(written);
                }
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
                self.resume();
                self.emit(Event::Resumed);
            }
            VmCommand::SetLink { nic, up } => self.links.set_up(&nic, up),
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
            self.resume();
        }
        self.emit(Event::DisksFailed(failures));
    }

    /// Begins to write the VM's memory to a file. A guest that is killed meanwhile is not waited for.
    fn dump(&self, file: File) -> Option<JoinHandle<Result<(), SaveError>>> {
        let controls = self.current.borrow().clone();
        match controls {
            Some(controls) => Some(tokio::task::spawn_blocking(move || controls.dump(&file))),
            None => {
                self.emit(Event::MemoryDumped(Some("the guest is being reset".to_owned())));
                None
            }
        }
    }

    /// The VM goes on as before the dump.
    fn dumped(&self, written: Result<(), String>) {
        if !self.desired.paused() {
            self.resume();
        }
        self.emit(Event::MemoryDumped(written.err()));
    }

    /// Resumes the VM, unless its memory is being written: the end of that resumes it. vCPUs only where no disk holds them.
    fn resume(&self) {
        if self.dumping.is_some() {
            return;
        }
        match self.stalls.any() {
            true => {
                self.apply(Controls::resume_devices);
                self.stalls.retry();
            }
            false => self.apply(Controls::resume),
        }
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

/// The links of the NICs by their names: the same for all VMs of a guest.
#[derive(Clone, Debug, Default)]
pub(super) struct Links(Arc<Mutex<Vec<NamedLink>>>);

/// The link of the NIC of a name.
type NamedLink = (String, Arc<Link>);

impl Links {
    pub(super) fn of(links: impl IntoIterator<Item = NamedLink>) -> Self {
        Self(Arc::new(Mutex::new(links.into_iter().collect())))
    }

    fn all(&self) -> MutexGuard<'_, Vec<NamedLink>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, nic: String, link: Arc<Link>) {
        self.all().push((nic, link));
    }

    pub(super) fn remove(&self, nic: &str) {
        self.all().retain(|(name, _)| name != nic);
    }

    fn set_up(&self, nic: &str, up: bool) {
        if let Some((_, link)) = self.all().iter().find(|(name, _)| name == nic) {
            link.set_up(up);
        }
    }
}

/// Waits for the end of a dump, and says why it is not complete.
async fn finished(dumping: &mut Option<JoinHandle<Result<(), SaveError>>>) -> Result<(), String> {
    let Some(dumping) = dumping else { return std::future::pending().await };
    match dumping.await {
        Ok(written) => written.map_err(|error| chain(&error)),
        Err(error) => Err(format!("writing it broke off: {error}")),
    }
}
