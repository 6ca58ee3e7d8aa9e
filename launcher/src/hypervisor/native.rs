//! The monitor, in this process.
//!
//! One thread builds the VM, waits for its end and, after the guest's reset, builds it again; the monitor adds
//! its own threads to that. Commands of the session reach the current VM. A shared file system is a process of virtiofsd.

mod command_loop;
mod desired;
mod disk_growth;
mod display;
mod hotplug;
mod media;
mod serial_input;
mod stall;
mod stats;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::mm::{MlockAllFlags, mlockall};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::info;
use vireo_privileges::seccomp::Seccomp;
use vireo_proto::launcher::{Fault, Panic};
use vireo_vmconfig::RebootPolicy;
use vireo_vmm::config::{Filesystem, Notice, Notices, VmConfig};
use vireo_vmm::memory::MemoryError;
use vireo_vmm::{BuildError, Controls, Exit, Running, Vm};

use super::guest::PVPANIC;
use super::{End, Event, Guest, Hypervisor, Starting, guest, virtiofs};
use crate::console::{Output, Port};
use crate::fault::{Code, chain, fault, fault_at};
use crate::host::HostResources;
use crate::launch::Launch;
use crate::plan;
use crate::seccomp;
use desired::DesiredState;

/// The monitor.
#[derive(Debug)]
pub struct Native {
    /// The filter of system calls, which holds from the start on.
    pub seccomp: Seccomp,
}

/// The VM that runs at the moment; `None` between two.
type CurrentVm = watch::Sender<Option<Controls>>;

impl Hypervisor for Native {
    fn start(&self, launch: Arc<Launch>, host: HostResources, port: Port) -> Starting {
        Box::pin(start_vm(self.seccomp, launch, host, port))
    }
}

async fn start_vm(
    filter: Seccomp,
    launch: Arc<Launch>,
    mut host: HostResources,
    port: Port,
) -> Result<Guest, Fault> {
    if host.kvm.is_none() {
        // The monitor cannot open it later, when the guest was reset.
        host.kvm = Some(open_kvm()?);
    }
    let (owner, end) = guest();
    let pinning = host.pinning.take();
    let mut servers = virtiofs::start(&virtiofs::PROGRAMS.map(Path::new), &launch)?;
    let filesystems = connect(&launch, &mut servers).await?;
    let config = plan::vm_config(&launch, host, filesystems)?.with_notices(notice_sender(end.events.clone()));
    let config = config.with_numa(pinning.as_ref().and_then(|pinning| pinning.numa().cloned()));
    if launch.is_realtime() {
        lock_memory(&launch)?;
    }
    let display = display::open(&launch)?;
    let config = config.with_graphics(display.as_ref().map(display::VmDisplay::graphics).transpose()?);
    let (slots, released) = hotplug::slots();
    let config = config.with_hotplug(launch.hotplug.then(|| slots.clone()));
    let growths = Arc::new(Mutex::new(config.disk_growths()));
    let media = media::Media::of(&launch, &config);
    let (counters, balloon) = (config.disk_counters(), (launch.memory_bytes, config.balloon()));
    let names = launch.disks.iter().map(|disk| disk.name.clone());
    let (stalls, stalling, failures) = stall::listen(names.zip(config.disk_stalls()));
    let nics = launch.interfaces.iter().map(|nic| nic.name.clone());
    let links = command_loop::Links::of(nics.zip(config.links()));
    let (current, controls) = watch::channel(None);
    let (started_tx, started) = oneshot::channel();
    let desired = Arc::new(DesiredState::new(launch.start_paused));
    if launch.start_paused {
        // The receiver exists until this function returns.
        let _ = end.events.send(Event::Paused);
    }
    let events = end.events.clone();
    let command_loop = command_loop::CommandLoop {
        desired: desired.clone(),
        events: end.events.clone(),
        current: controls.clone(),
        stalls,
        links: links.clone(),
        dumping: None,
        servers,
    };
    let plugged = stats::PluggedCounters::default();
    let followed = hotplug::Followed { stalling, growing: growths.clone(), counters: plugged.clone() };
    let devices = hotplug::Devices::new(&launch, (slots, media), end.events.clone(), followed, links);
    let starter = pinning.clone();
    let pin = move |kind| {
        if let Some(pinning) = &pinning {
            pinning.pin_this(kind);
        }
    };
    let threads =
        seccomp::restrict_monitor(filter, pin).map_err(|error| fault(Code::HostResource, chain(&error)))?;
    let threads = threads.with_starting(move |starting| {
        if let Some(pinning) = &starter {
            pinning.unpin_while_starting(starting);
        }
    });
    let config = config.with_thread_hook(threads);
    let vm_thread =
        VmThread { config, launch, output: port.output, events, current, desired, _display: display };
    thread::Builder::new()
        .name("vm".to_owned())
        .spawn(move || vm_thread.run(started_tx))
        .map_err(thread_error)?;
    started.await.unwrap_or_else(|_| Err(fault(Code::Internal, "the VM's thread died")))?;
    tokio::spawn(disk_growth::watch(growths, controls.clone()));
    tokio::spawn(devices.run(end.hotplugs, released, controls.clone()));
    tokio::spawn(command_loop.run(end.commands, failures, end.dumps));
    tokio::spawn(serial_input::forward(port.input, controls));
    tokio::spawn(stats::serve(end.stats_requests, (counters, plugged), balloon));
    Ok(owner)
}

/// How long a server that closed its connection gets to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects to the servers of the VM's file systems. One that has ended says why.
async fn connect(launch: &Arc<Launch>, servers: &mut [virtiofs::Server]) -> Result<Vec<Filesystem>, Fault> {
    if servers.is_empty() {
        return Ok(Vec::new());
    }
    let connecting = launch.clone();
    let connected = tokio::task::spawn_blocking(move || virtiofs::connect(&connecting)).await;
    let fault = match connected {
        Ok(Ok(filesystems)) => return Ok(filesystems),
        Ok(Err(fault)) => fault,
        Err(error) => fault(Code::Internal, format!("connecting to file systems broke off: {error}")),
    };
    match tokio::time::timeout(END_TIMEOUT, virtiofs::ended(servers)).await {
        Ok(reason) => Err(fault_at(fault.code(), &fault.field, reason)),
        Err(_) => Err(fault),
    }
}

/// Turns notices of the monitor into events.
fn notice_sender(events: mpsc::UnboundedSender<Event>) -> Notices {
    Notices::new(move |notice| match notice {
        Notice::NoBootDevice => {
            // The receiver may be gone.
            let _ = events.send(Event::NoBootDevice);
        }
        other => info!(?other, "notice of the monitor"),
    })
}

/// Keeps the memory of this process from being swapped: what it has, and what it touches later. Threads' stacks alone are
/// larger than that.
fn lock_memory(launch: &Launch) -> Result<(), Fault> {
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let field = &launch.fields.realtime;
    mlockall(flags).map_err(|error| {
        fault_at(Code::HostResource, field, format!("{field}: cannot lock the launcher's memory: {error}"))
    })
}

fn open_kvm() -> Result<OwnedFd, Fault> {
    let device = File::options().read(true).write(true).open("/dev/kvm");
    device.map(OwnedFd::from).map_err(|error| fault(Code::NoKvm, format!("cannot open /dev/kvm: {error}")))
}

fn thread_error(error: io::Error) -> Fault {
    fault(Code::HostResource, format!("no thread for the VM: {error}"))
}

/// A guest from its first start to its end, across its own resets.
struct VmThread {
    config: VmConfig,
    launch: Arc<Launch>,
    output: Output,
    events: mpsc::UnboundedSender<Event>,
    current: CurrentVm,
    desired: Arc<DesiredState>,
    /// Shown until the guest's end, across its resets.
    _display: Option<display::VmDisplay>,
}

impl VmThread {
    fn run(self, started_tx: oneshot::Sender<Result<(), Fault>>) {
        let mut vm = match self.start() {
            Ok(vm) => vm,
            Err(fault) => {
                // The requester may be gone.
                let _ = started_tx.send(Err(fault));
                return;
            }
        };
        if started_tx.send(Ok(())).is_err() {
            // The start was abandoned: dropping `vm` ends it.
            return;
        }
        let end = loop {
            let exit = self.desired.applied(vm.wait());
            self.current.send_replace(None);
            // A guest that had ended by itself before that was noticed has done so.
            if let (Exit::Killed, Some(reason)) = (&exit, self.desired.failure()) {
                break End::Failed(fault(Code::Hypervisor, reason));
            }
            let cause =
                if matches!(exit, Exit::TripleFault) { "a triple fault" } else { "a request of the guest" };
            if let Some(end) = end_of(exit, self.launch.reboot) {
                break end;
            }
            info!(cause, "the guest was reset");
            vm = match self.start() {
                Ok(vm) => vm,
                Err(fault) => break End::Failed(fault),
            };
            self.emit(Event::Rebooted);
        };
        self.emit(Event::Ended(end));
    }

    fn start(&self) -> Result<Vm<Running>, Fault> {
        let output = self.output.clone();
        let output = Box::new(move |bytes: &[u8]| output.write(bytes));
        let vm = Vm::build(&self.config, output).map_err(|error| self.build_fault(&error))?;
        let started = if self.desired.paused() { vm.start_paused() } else { vm.start() };
        let vm = started.map_err(|error| fault(Code::Hypervisor, chain(&error)))?;
        self.current.send_replace(Some(vm.controls()));
        Ok(vm)
    }

    fn build_fault(&self, error: &BuildError) -> Fault {
        let detail = chain(error);
        match error {
            BuildError::Kvm(_) => fault(Code::NoKvm, detail),
            BuildError::Firmware(_) => fault_at(Code::BootSource, &self.launch.fields.bootloader, detail),
            BuildError::Load(_) => fault_at(Code::BootSource, &self.launch.fields.kernel_boot, detail),
            BuildError::Memory(MemoryError::Node { .. }) => {
                fault_at(Code::HostResource, &self.launch.fields.huge_pages, detail)
            }
            BuildError::Disk { number, .. } => {
                let disk = number.checked_sub(1).and_then(|index| self.launch.disks.get(index));
                let field = disk.map(|disk| disk.field.as_str()).unwrap_or_default();
                fault_at(Code::HostResource, field, detail)
            }
            _ => fault(Code::Hypervisor, detail),
        }
    }

    fn emit(&self, event: Event) {
        // The receiver may be gone.
        let _ = self.events.send(event);
    }
}

/// What the end of one VM means for the guest; `None`: it starts again.
fn end_of(exit: Exit, reboot: RebootPolicy) -> Option<End> {
    match (exit, reboot) {
        (Exit::PowerOff, _) => Some(End::PoweredOff),
        // A triple fault resets a PC: some kernels reboot by it.
        (Exit::Reset | Exit::TripleFault, RebootPolicy::Reboot) => None,
        (Exit::Reset | Exit::TripleFault, RebootPolicy::Terminate) => Some(End::Rebooted),
        (Exit::Panicked, _) => {
            let panic = Panic { r#type: PVPANIC.to_owned(), bugcheck_code: 0 };
            Some(End::Panicked("the guest's kernel panicked".to_owned(), panic))
        }
        (Exit::WatchdogExpired, _) => Some(End::Crashed("the guest's watchdog expired".to_owned())),
        (Exit::Killed, _) => Some(End::Killed),
        (Exit::Failed(error), _) => Some(End::Failed(fault(Code::Hypervisor, chain(&error)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reset_may_be_survived() {
        let table = [
            (Exit::PowerOff, RebootPolicy::Reboot, Some(End::PoweredOff)),
            (Exit::Reset, RebootPolicy::Reboot, None),
            (Exit::Reset, RebootPolicy::Terminate, Some(End::Rebooted)),
            (Exit::TripleFault, RebootPolicy::Reboot, None),
            (Exit::TripleFault, RebootPolicy::Terminate, Some(End::Rebooted)),
            (Exit::Killed, RebootPolicy::Reboot, Some(End::Killed)),
        ];
        for (exit, reboot, end) in table {
            let case = format!("{exit:?} {reboot:?}");
            assert_eq!(end_of(exit, reboot), end, "{case}");
        }
        assert!(matches!(end_of(Exit::WatchdogExpired, RebootPolicy::Reboot), Some(End::Crashed(_))));
        assert!(matches!(end_of(Exit::Panicked, RebootPolicy::Reboot), Some(End::Panicked(..))));
    }
}
