//! Volumes that are plugged into a guest that runs.

use vireo_api::spec::{Disk, Vm, VolumeSource};
use vireo_proto::launcher::PluggedVolume;

use crate::storage::Claims;

/// Of a sync_error: the volumes that are plugged in are not those that the spec has.
pub(super) const FAILED: &str = "FailedHotplugSync";

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// Plug this disk in.
    In(&'a Disk),
    /// Plug out what has this name.
    Out(String),
}

/// What makes the volumes that are plugged in those of the spec: first what is to go, whose name may be wanted for
/// another claim.
pub(super) fn changes<'a>(vm: &'a Vm, plugged: &[PluggedVolume], claims: &Claims) -> Vec<Change<'a>> {
    let is = |disk: &Disk, volume: &PluggedVolume| match disk.source() {
        VolumeSource::PersistentVolumeClaim { name, .. } => {
            let path = claims.path(vm.identity().namespace(), name);
            disk.name() == volume.name && path.to_string_lossy() == volume.path
        }
        _ => false,
    };
    let out = plugged.iter().filter(|volume| !vm.pluggable_disks().any(|disk| is(disk, volume)));
    let into = vm.pluggable_disks().filter(|disk| !plugged.iter().any(|volume| is(disk, volume)));
    out.map(|volume| Change::Out(volume.name.clone())).chain(into.map(Change::In)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::v1::VirtualMachineInstance;

    use super::*;

    fn vm(pluggable: &[(&str, &str)]) -> Vm {
        let disks: Vec<_> =
            pluggable.iter().map(|(name, _)| json!({"name": name, "disk": {"bus": "scsi"}})).collect();
        let claim = |claim: &str| json!({"claimName": claim, "hotpluggable": true});
        let volumes: Vec<_> = pluggable
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
    fn what_is_plugged_in_becomes_what_the_spec_has() {
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
            let told: Vec<String> = changes(&vm, &has, &claims)
                .iter()
                .map(|change| match change {
                    Change::In(disk) => format!("+{}", disk.name()),
                    Change::Out(name) => format!("-{name}"),
                })
                .collect();
            assert_eq!(told, expected, "{wanted:?}");
        }
    }
}
