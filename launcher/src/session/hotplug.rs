//! Volumes and NICs that are attached to a VM while it runs, and detached.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tracing::info;
use vireo_proto::launcher::{Fault, State};

use super::stage::{RunningVm, links};
use super::{HotplugCommand, Session, answer};
use crate::dhcp;
use crate::fault::{Code, chain, fault, fault_at};
use crate::files::PassedFiles;
use crate::host;
use crate::hypervisor::{HotplugAction, HotplugRequest, NicChange, VolumeAction};
use crate::launch::{Interface, Launch};

/// The NICs that are attached to a VM while it runs.
#[derive(Debug, Default)]
pub(super) struct PluggedNics {
    /// On their way in, with the DHCP servers that they are to have.
    pending: Vec<(Interface, Option<dhcp::Server>)>,
    attached: Vec<(Interface, Option<AbortHandle>)>,
}

impl PluggedNics {
    /// Those that the guest has.
    pub(super) fn attached(&self) -> impl Iterator<Item = &Interface> {
        self.attached.iter().map(|(nic, _)| nic)
    }

    fn has(&self, name: &str) -> bool {
        self.attached().any(|nic| nic.name == name)
    }

    fn is_pending(&self, name: &str) -> bool {
        self.pending.iter().any(|(nic, _)| nic.name == name)
    }

    /// Removes one. Its DHCP server ends.
    fn remove(&mut self, name: &str) {
        self.pending.retain(|(nic, _)| nic.name != name);
        for (_, server) in self.attached.extract_if(.., |(nic, _)| nic.name == name) {
            if let Some(server) = server {
                server.abort();
            }
        }
    }
}

impl RunningVm {
    /// Attaches or detaches a device, unless that is done already. The hypervisor sends the reply.
    pub(super) fn hotplug(
        &mut self,
        wanted: HotplugCommand,
        (state, files): (&State, &PassedFiles),
        reply: oneshot::Sender<Option<Fault>>,
    ) {
        match self.hotplug_action(wanted, state, files) {
            Ok(Some(action)) => {
                if let Err(HotplugAction::AttachNic(nic, _)) =
                    self.guest.hotplug(HotplugRequest { action, reply })
                {
                    self.nics.remove(&nic.name);
                }
            }
            Ok(None) => answer(reply, None),
            Err(fault) => answer(reply, Some(fault)),
        }
    }

    /// What the hypervisor has to do.
    fn hotplug_action(
        &mut self,
        wanted: HotplugCommand,
        state: &State,
        files: &PassedFiles,
    ) -> Result<Option<HotplugAction>, Fault> {
        let attached = |name: &str| state.volumes.iter().any(|volume| volume.name == name);
        Ok(Some(match wanted {
            // Its file is locked by the volume that is there, so that it must not be opened again.
            HotplugCommand::AttachVolume(disk) if attached(&disk.name) => return Ok(None),
            HotplugCommand::DetachVolume(name) if !attached(&name) => return Ok(None),
            HotplugCommand::DetachVolume(name) => HotplugAction::Volume(VolumeAction::Detach(name)),
            HotplugCommand::AttachVolume(disk) => {
                let files = host::open_disk_files(&disk, files)?;
                HotplugAction::Volume(VolumeAction::Attach(disk, files))
            }
            HotplugCommand::AttachNic(nic) if self.has_nic(&nic.name) => return Ok(None),
            HotplugCommand::AttachNic(nic) => {
                if self.nics.is_pending(&nic.name) {
                    return Err(fault(Code::Conflict, format!("NIC {} is being attached", nic.name)));
                }
                let opened = host::open_nic_files(&nic, files)?;
                let server = dhcp::Server::bind(&nic, files)
                    .map_err(|error| fault_at(Code::HostResource, &nic.field, chain(&error)))?;
                self.nics.pending.push(((*nic).clone(), server));
                HotplugAction::AttachNic(nic, opened)
            }
            HotplugCommand::DetachNic(name) if !self.has_nic(&name) => return Ok(None),
            HotplugCommand::DetachNic(name) if !self.nics.has(&name) => {
                let detail =
                    format!("NIC {name} is of those that the VM was started with: it goes at the next start");
                return Err(fault(Code::Unsupported, detail));
            }
            HotplugCommand::DetachNic(name) => HotplugAction::DetachNic(name),
        }))
    }

    fn has_nic(&self, name: &str) -> bool {
        self.launch.interfaces.iter().any(|nic| nic.name == name) || self.nics.has(name)
    }
}

impl Session {
    /// Follows what has become of a NIC.
    pub(super) fn nic_changed(&mut self, vm: &mut RunningVm, change: NicChange) {
        let mut down = self.state().links.unwrap_or_default().down;
        match change {
            NicChange::Attached(name) => {
                let Some(at) = vm.nics.pending.iter().position(|(nic, _)| nic.name == name) else { return };
                let (nic, server) = vm.nics.pending.remove(at);
                info!(nic = name, "attached");
                let server = server.map(|server| self.servers.spawn(server.run()));
                down.extend((!nic.link_up).then(|| name.clone()));
                vm.nics.attached.push((nic, server));
            }
            NicChange::Gone(name) => {
                info!(nic = name, "not attached, or no longer");
                vm.nics.remove(&name);
            }
        }
        let links = links(vm.interfaces(), |nic| !down.contains(&nic.name));
        self.publish(|state| state.links = Some(links));
        // Their taps are counted.
        let launch = Launch { interfaces: vm.interfaces().cloned().collect(), ..(*vm.launch).clone() };
        self.stats_source.send_replace(Some((vm.guest.meter(), Arc::new(launch))));
    }
}
