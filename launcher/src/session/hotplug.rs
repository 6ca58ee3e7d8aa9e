use tokio::sync::oneshot;
use vireo_proto::launcher::{Fault, State};

use super::stage::RunningVm;
use super::{VolumeRequest, answer};
use crate::files::PassedFiles;
use crate::host;
use crate::hypervisor::{HotplugAction, HotplugRequest};

impl RunningVm {
    /// Attaches or detaches a volume, unless that is done already. The hypervisor sends the reply.
    pub(super) fn hotplug(
        &self,
        wanted: VolumeRequest,
        (state, files): (&State, &PassedFiles),
        reply: oneshot::Sender<Option<Fault>>,
    ) {
        let attached = |name: &str| state.volumes.iter().any(|volume| volume.name == name);
        let action = match wanted {
            // Its file is locked by the volume that is there, so that it must not be opened again.
            VolumeRequest::Attach(disk) if attached(&disk.name) => return answer(reply, None),
            VolumeRequest::Detach(name) if !attached(&name) => return answer(reply, None),
            VolumeRequest::Detach(name) => HotplugAction::Detach(name),
            VolumeRequest::Attach(disk) => match host::open_disk_files(&disk, files) {
                Ok(files) => HotplugAction::Attach(disk, files),
                Err(fault) => return answer(reply, Some(fault)),
            },
        };
        self.guest.hotplug(HotplugRequest { action, reply });
    }
}
