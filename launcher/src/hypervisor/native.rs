//! The monitor, in this process.
//!
//! One thread builds the machine, waits for its end and, after the guest's reset, builds it again; the monitor adds
//! its own threads to that. What its owner wants reaches whichever machine there is at the moment.

mod drive;
mod keys;
mod readings;
mod screen;
mod stall;
mod wishes;

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::sync::{mpsc, oneshot, watch};
use tracing::info;
use vireo_proto::launcher::Fault;
use vireo_vmconfig::RebootPolicy;
use vireo_vmm::config::{Machine, Notice, Notices};
use vireo_vmm::{BuildError, Controls, Exit, Running, Vm};

use super::{End, Event, Guest, Hypervisor, Starting, guest};
use crate::console::{Output, Port};
use crate::fault::{Code, chain, fault, fault_at};
use crate::host::Host;
use crate::launch::Launch;
use crate::plan;
use wishes::Wishes;

/// The monitor.
#[derive(Debug)]
pub struct Native;

/// The machine that runs at the moment; `None` between two.
type Current = watch::Sender<Option<Controls>>;

impl Hypervisor for Native {
    fn start(&self, launch: Arc<Launch>, host: Host, port: Port) -> Starting {
        Box::pin(bring_up(launch, host, port))
    }
}

async fn bring_up(launch: Arc<Launch>, host: Host, port: Port) -> Result<Guest, Fault> {
    let (owner, end) = guest();
    let machine = plan::machine(&launch, host)?.with_notices(notices(end.events.clone()));
    let screen = screen::open(&launch)?;
    let machine = machine.with_graphics(screen.as_ref().map(screen::Screen::graphics).transpose()?);
    let counters = machine.disk_counters();
    let names = launch.disks.iter().map(|disk| disk.name.clone()).collect();
    let (stalls, failures) = stall::listen(machine.disk_stalls(), names);
    let (current, controls) = watch::channel(None);
    let (up, started) = oneshot::channel();
    let wishes = Arc::new(Wishes::new(launch.start_paused));
    if launch.start_paused {
        // Nobody can have let go of it yet.
        let _ = end.events.send(Event::Paused);
    }
    let events = end.events.clone();
    let driven = drive::Driven {
        wishes: wishes.clone(),
        events: end.events.clone(),
        current: controls.clone(),
        stalls,
    };
    let life = Life { machine, launch, output: port.output, events, current, wishes, _screen: screen };
    thread::Builder::new().name("machine".to_owned()).spawn(move || life.run(up)).map_err(no_thread)?;
    started.await.unwrap_or_else(|_| Err(fault(Code::Internal, "the machine's thread died")))?;
    tokio::spawn(driven.run(end.orders, failures));
    tokio::spawn(keys::forward(port.input, controls));
    tokio::spawn(readings::answer(end.readings, counters));
    Ok(owner)
}

/// What the machine tells becomes an event.
fn notices(events: mpsc::UnboundedSender<Event>) -> Notices {
    Notices::new(move |notice| match notice {
        Notice::NoBootDevice => {
            // The owner may have let go.
            let _ = events.send(Event::NoBootDevice);
        }
        other => info!(?other, "the machine has news"),
    })
}

fn no_thread(error: io::Error) -> Fault {
    fault(Code::HostResource, format!("no thread for the machine: {error}"))
}

/// A guest from its first start to its end, across its own resets.
struct Life {
    machine: Machine,
    launch: Arc<Launch>,
    output: Output,
    events: mpsc::UnboundedSender<Event>,
    current: Current,
    wishes: Arc<Wishes>,
    /// Shown until the guest's end, across its resets.
    _screen: Option<screen::Screen>,
}

impl Life {
    fn run(self, up: oneshot::Sender<Result<(), Fault>>) {
        let mut vm = match self.start() {
            Ok(vm) => vm,
            Err(fault) => {
                // Whoever asked may have gone; there is nothing to tell then.
                let _ = up.send(Err(fault));
                return;
            }
        };
        if up.send(Ok(())).is_err() {
            // Nobody waits for it any more: it goes as `vm` does.
            return;
        }
        let end = loop {
            let exit = self.wishes.applied(vm.wait());
            self.current.send_replace(None);
            if let Some(end) = ended(exit, self.launch.reboot) {
                break end;
            }
            info!("the guest was reset");
            vm = match self.start() {
                Ok(vm) => vm,
                Err(fault) => break End::Failed(fault),
            };
            self.tell(Event::Rebooted);
        };
        self.tell(Event::Ended(end));
    }

    fn start(&self) -> Result<Vm<Running>, Fault> {
        let output = self.output.clone();
        let output = Box::new(move |bytes: &[u8]| output.write(bytes));
        let vm = Vm::build(&self.machine, output).map_err(|error| self.not_built(&error))?;
        let started = if self.wishes.paused() { vm.start_paused() } else { vm.start() };
        let vm = started.map_err(|error| fault(Code::Hypervisor, chain(&error)))?;
        self.current.send_replace(Some(vm.controls()));
        Ok(vm)
    }

    fn not_built(&self, error: &BuildError) -> Fault {
        let detail = chain(error);
        match error {
            BuildError::Kvm(_) => fault(Code::NoKvm, detail),
            BuildError::Firmware(_) => fault_at(Code::BootSource, "spec.domain.firmware.bootloader", detail),
            BuildError::Load(_) => fault_at(Code::BootSource, "spec.domain.firmware.kernelBoot", detail),
            BuildError::Disk { number, .. } => {
                let disk = number.checked_sub(1).and_then(|index| self.launch.disks.get(index));
                let field = disk.map(|disk| disk.field.as_str()).unwrap_or_default();
                fault_at(Code::HostResource, field, detail)
            }
            _ => fault(Code::Hypervisor, detail),
        }
    }

    fn tell(&self, event: Event) {
        // The owner may have let go.
        let _ = self.events.send(event);
    }
}

/// What the end of one machine means for the guest; `None`: it starts again.
fn ended(exit: Exit, reboot: RebootPolicy) -> Option<End> {
    match (exit, reboot) {
        (Exit::PowerOff, _) => Some(End::PoweredOff),
        (Exit::Reset, RebootPolicy::Reboot) => None,
        (Exit::Reset, RebootPolicy::Terminate) => Some(End::Rebooted),
        (Exit::TripleFault, _) => Some(End::Crashed("a processor of the guest triple-faulted".to_owned())),
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
            (Exit::Killed, RebootPolicy::Reboot, Some(End::Killed)),
        ];
        for (exit, reboot, end) in table {
            let case = format!("{exit:?} {reboot:?}");
            assert_eq!(ended(exit, reboot), end, "{case}");
        }
        assert!(matches!(ended(Exit::TripleFault, RebootPolicy::Reboot), Some(End::Crashed(_))));
    }
}
