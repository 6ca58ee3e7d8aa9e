//! QEMU, started directly and driven over QMP.
//!
//! QEMU opens no disk itself: it inherits the descriptors the launcher opened and locked. Its serial port and its
//! QMP monitor are socket pairs it inherits too; the sockets with a name are its VNC server's and those of slots for USB
//! devices of clients, for us only. It dies with the launcher. A TPM is a process of swtpm beside it, a shared file system one of
//! virtiofsd.

mod args;
mod blockdev;
mod command_line;
mod device;
mod event_loop;
mod exit;
mod extra;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod hotplug;
mod io_thread;
mod nics;
mod numa;
mod pci;
mod platform;
mod process;
mod qmp;
mod soft_reboot;
mod stall;
mod stats;
mod tpm;
mod virtiofs;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vireo_privileges::seccomp::Seccomp;
use vireo_proto::launcher::Fault;

pub use process::find_binary;

use self::event_loop::Beside;
use super::growth::GrowingImages;
use super::{Guest, Hypervisor, Starting, virtiofs as servers};
use crate::console::Port;
use crate::fault::{Code, chain, fault, fault_at};
use crate::host::{HostFirmware, HostResources};
use crate::launch::Launch;
use crate::seccomp;

/// QEMU on this node.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// Its binary.
    pub binary: PathBuf,
    /// Whether KVM runs its guests; otherwise it emulates the vCPU.
    pub kvm: bool,
    /// The filter of the launcher's system calls, which holds from QEMU's start on.
    pub seccomp: Seccomp,
}

impl Hypervisor for Qemu {
    fn start(&self, launch: Arc<Launch>, host: HostResources, port: Port) -> Starting {
        let qemu = self.clone();
        Box::pin(async move { qemu.start_vm(&launch, host, port).await })
    }
}

impl Qemu {
    async fn start_vm(&self, launch: &Launch, mut host: HostResources, port: Port) -> Result<Guest, Fault> {
        let firmware = match &host.firmware {
            Some(HostFirmware::Paths(firmware)) => Some(firmware),
            Some(HostFirmware::Files(..)) | None => None,
        };
        let (tpm, socket) = tpm::start(Path::new(tpm::PROGRAM), launch, host.tpm_state.take())?.unzip();
        let filesystems = servers::start(&servers::PROGRAMS.map(Path::new), launch)?;
        let inherited_fds = process::InheritedFds::new(launch, &host, socket)?;
        let resources = command_line::Resources {
            kvm: self.kvm,
            now: jiff::Timestamp::now(),
            kvm_device: inherited_fds.kvm_fd(),
            firmware,
            variables: inherited_fds.variables_fd(),
            files: inherited_fds.files(),
            nics: inherited_fds.nic_fds(),
            vhost: inherited_fds.vhost_fds(),
            kernel: inherited_fds.kernel_fds(),
            acpi_tables: inherited_fds.acpi_table_fds(),
            serial: inherited_fds.serial_fd(),
            firmware_log: inherited_fds.firmware_fd(),
            qmp: inherited_fds.qmp_fd(),
            agent: inherited_fds.agent_fd(),
            metrics: inherited_fds.metrics_fd(),
            tpm: inherited_fds.tpm_fd(),
            numa: host.pinning.as_ref().and_then(|pinning| pinning.numa()),
            vsock: inherited_fds.vsock_fd().zip(host.vsock.as_ref().map(|vsock| vsock.cid)),
        };
        let arguments = command_line::arguments(launch, &resources);
        let process = process::spawn(&self.binary, &arguments, inherited_fds, port)?;
        let pinned = host.pinning.clone().zip(process.child.id());
        let agent = host.agent.as_ref().map(|port| port.open.clone());
        let growing = growing(launch, &host);
        // The inherited descriptors keep the locks; ours may go.
        drop(host);
        // Before anything of the guest is read: QEMU has its own filter, and nothing else is started.
        seccomp::restrict_driver(self.seccomp).map_err(|error| fault(Code::HostResource, chain(&error)))?;
        let guest = event_loop::start(process, Beside { tpm, filesystems }, agent, (launch, growing)).await?;
        if let Some((pinning, pid)) = pinned {
            // Without its owner, the guest ends.
            for (field, done) in [
                (&launch.fields.dedicated_cpus, pinning.pin_qemu(pid)),
                (&launch.fields.realtime, pinning.schedule_qemu(pid)),
            ] {
                done.map_err(|error| fault_at(Code::HostResource, field, format!("{field}: {error}")))?;
            }
        }
        Ok(guest)
    }
}

/// The images that may grow, by their block nodes.
fn growing(launch: &Launch, host: &HostResources) -> GrowingImages {
    let growing = GrowingImages::default();
    for (index, (disk, files)) in launch.disks.iter().zip(&host.disks).enumerate() {
        let added = files.as_ref().map(|files| growing.add(blockdev::node(index), disk, &files.image));
        if let Some(Err(error)) = added {
            tracing::warn!(volume = disk.name, %error, "the guest does not learn of a disk that grows");
        }
    }
    growing
}

/// How `path` is spelled inside a comma-separated argument.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}
