//! Hotplugged volumes of a running guest.

use vireo_api::spec::{Disk, Vm, VolumeSource};
use vireo_proto::launcher::PluggedVolume;

use crate::storage::Claims;

/// The reason of a sync error: the hotplugged volumes differ from the spec.
pub(super) const HOTPLUG_FAILED: &str = "FailedHotplugSync";

/// One change of the hotplugged volumes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// Hotplug this disk.
    Attach(&'a Disk),
    /// Unplug the volume of this name.
    Detach(String),
}

/// The changes that make the hotplugged volumes match the spec. Unplugs come first, since the spec may reuse a name for
/// another claim.
pub(super) fn changes<'a>(vm: &'a Vm, plugged: &[PluggedVolume], claims: &Claims) -> Vec<Change<'a>> {
    let is = |disk: &Disk, volume: &PluggedVolume| match disk.source() {
        VolumeSource::PersistentVolumeClaim { name, .. } => {
            let path = claims.path(vm.identity().namespace(), name);
            disk.name() == volume.name && path.to_string_lossy() == volume.path
        }
        _ => false,
    };
    let out = plugged.iter().filter(|volume| !vm.hotpluggable_disks().any(|disk| is(disk, volume)));
    let into = vm.hotpluggable_disks().filter(|disk| !plugged.iter().any(|volume| is(disk, volume)));
    out.map(|volume| Change::Detach(volume.name.clone())).chain(into.map(Change::Attach)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::v1::VirtualMachineInstance;

    use super::*;

    fn vm(hotpluggable: &[(&str, &str)]) -> Vm {
        let disks: Vec<_> =
            hotpluggable.iter().map(|(name, _)| json!({"name": name, "disk": {"bus": "scsi"}})).collect();
        let claim = |claim: &str| json!({"claimName": claim, "hotpluggable": true});
        let volumes: Vec<_> = hotpluggable
            .iter()
            .map(|(name, of)| json!({"name": name, "persistentVolumeClaim": claim(of)}))
            .chain([json!({"name": "fixed", "emptyDisk": {"capacity": "1Mi"}})])
            .collect();
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": disks}}, "volumes": volumes},
        }))
        .unwrap();
        Vm::try_from(&vmi).unwrap()
    }

    #[test]
    fn hotplugged_volumes_become_those_of_the_spec() {
        let claims = Claims::below("/claims".into());
        let plugged = |name: &str, claim: &str| PluggedVolume {
            name: name.into(),
            target: "sda".into(),
            path: format!("/claims/n/{claim}/disk.img"),
        };
        for (wanted, has, expected) in [
            (vec![], vec![], vec![]),
            (vec![("a", "one")], vec![], vec!["+a"]),
            (vec![("a", "one")], vec![plugged("a", "one")], vec![]),
            (vec![], vec![plugged("a", "one")], vec!["-a"]),
            (vec![("a", "two")], vec![plugged("a", "one")], vec!["-a", "+a"]),
            (vec![("b", "one"), ("c", "two")], vec![plugged("a", "one")], vec!["-a", "+b", "+c"]),
        ] {
            let vm = vm(&wanted);
            let actual: Vec<String> = changes(&vm, &has, &claims)
                .iter()
                .map(|change| match change {
                    Change::Attach(disk) => format!("+{}", disk.name()),
                    Change::Detach(name) => format!("-{name}"),
                })
                .collect();
            assert_eq!(actual, expected, "{wanted:?}");
        }
    }
}
