use tokio::sync::oneshot;
use vireo_proto::launcher::{Fault, State};

use super::stage::Machine;
use super::{PlugRequest, answer};
use crate::host;
use crate::hypervisor::{Plug, Plugging};

impl Machine {
    /// Plugs a volume in or out, unless that is so already. The hypervisor answers.
    pub(super) fn plug(&self, wanted: PlugRequest, state: &State, reply: oneshot::Sender<Option<Fault>>) {
        let known = |name: &str| state.volumes.iter().any(|volume| volume.name == name);
        let plug = match wanted {
            // Its file is locked by the volume that is there, so that it must not be opened again.
            PlugRequest::In(disk) if known(&disk.name) => return answer(reply, None),
            PlugRequest::Out(name) if !known(&name) => return answer(reply, None),
            PlugRequest::Out(name) => Plug::Out(name),
            PlugRequest::In(disk) => match host::open_one(&disk) {
                Ok(files) => Plug::In(disk, files),
                Err(fault) => return answer(reply, Some(fault)),
            },
        };
        self.guest.plug(Plugging { plug, reply });
    }
}
