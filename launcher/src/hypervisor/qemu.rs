//! QEMU, started directly and driven over QMP.
//!
//! QEMU opens no disk itself: it inherits the descriptors the launcher opened and locked. Its serial port and its
//! QMP monitor are socket pairs it inherits too; the one socket with a name is that of its screen, for us only. It dies
//! with the launcher.

mod args;
mod blockdev;
mod device;
mod end;
mod extra;
mod inquiry;
mod pci;
mod plug;
mod process;
mod qmp;
mod run;
mod soft;
mod stall;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vireo_proto::launcher::Fault;

pub use process::find_binary;

use super::{Guest, Hypervisor, Starting};
use crate::console::Port;
use crate::host::{Host, HostFirmware};
use crate::launch::Launch;

/// QEMU on this node.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// Its binary.
    pub binary: PathBuf,
    /// Whether KVM runs its guests; otherwise it emulates the processor.
    pub kvm: bool,
}

impl Hypervisor for Qemu {
    fn start(&self, launch: Arc<Launch>, host: Host, port: Port) -> Starting {
        let qemu = self.clone();
        Box::pin(async move { qemu.bring_up(&launch, host, port).await })
    }
}

impl Qemu {
    async fn bring_up(&self, launch: &Launch, host: Host, port: Port) -> Result<Guest, Fault> {
        let firmware = match &host.firmware {
            Some(HostFirmware::Paths(firmware)) => Some(firmware),
            Some(HostFirmware::Files(..)) | None => None,
        };
        let wiring = process::Wiring::new(launch, &host)?;
        let plan = args::Plan {
            kvm: self.kvm,
            firmware,
            files: wiring.files(),
            serial: wiring.serial_fd(),
            log: wiring.firmware_fd(),
            qmp: wiring.qmp_fd(),
            agent: wiring.agent_fd(),
        };
        let arguments = args::arguments(launch, &plan);
        let process = process::spawn(&self.binary, &arguments, wiring, port)?;
        let agent = host.agent.as_ref().map(|plug| plug.open.clone());
        // The inherited descriptors keep the locks; ours may go.
        drop(host);
        run::drive(process, agent, launch).await
    }
}

/// How `path` is spelled inside a comma-separated argument.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}
