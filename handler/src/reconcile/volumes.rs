//! Hotplugged volumes of a running guest.

use vireo_api::names::{hotplug_device, hotplug_disk};
use vireo_api::spec::{Disk, Vm, VolumeSource};
use vireo_proto::launcher::PluggedVolume;

use crate::node::Attachments;
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

/// Where the claims of hotplugged volumes are.
#[derive(Debug)]
pub(super) enum Places {
    /// In the node's storage.
    Node(Claims),
    /// In attachment Pods, as soon as those run.
    Pods(Attachments),
}

impl Places {
    /// Whether a plugged volume is of a claim.
    fn is(&self, vm: &Vm, claim: &str, volume: &PluggedVolume) -> bool {
        match self {
            Self::Node(claims) => {
                claims.path(vm.identity().namespace(), claim).to_string_lossy() == volume.path
            }
            Self::Pods(_) => [hotplug_disk(claim), hotplug_device(claim)].contains(&volume.path),
        }
    }

    /// Whether a claim is there.
    pub(super) fn has(&self, claim: &str) -> bool {
        match self {
            Self::Node(_) => true,
            Self::Pods(attachments) => attachments.contains_key(claim),
        }
    }
}

fn claim(disk: &Disk) -> Option<&str> {
    match disk.source() {
        VolumeSource::PersistentVolumeClaim { name, .. } => Some(name),
        _ => None,
    }
}

/// The changes that make the hotplugged volumes match the spec. Unplugs come first, since the spec may reuse a name for
/// another claim.
pub(super) fn changes<'a>(vm: &'a Vm, plugged: &[PluggedVolume], places: &Places) -> Vec<Change<'a>> {
    let is = |disk: &Disk, volume: &PluggedVolume| {
        disk.name() == volume.name && claim(disk).is_some_and(|claim| places.is(vm, claim, volume))
    };
    let out =
        plugged.iter().filter(|volume| !vm.disks_with_hotpluggable_volumes().any(|disk| is(disk, volume)));
    let into = vm.disks_with_hotpluggable_volumes().filter(|disk| {
        claim(disk).is_some_and(|claim| places.has(claim)) && !plugged.iter().any(|volume| is(disk, volume))
    });
    out.map(|volume| Change::Detach(volume.name.clone())).chain(into.map(Change::Attach)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use vireo_api::v1::VirtualMachineInstance;

    use super::*;
    use crate::node::Attachment;

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
        let places = Places::Node(Claims::below("/claims".into(), crate::storage::ImageReader::InProcess));
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
            assert_eq!(texts(&changes(&vm(&wanted), &has, &places)), expected, "{wanted:?}");
        }
    }

    fn texts(changes: &[Change<'_>]) -> Vec<String> {
        let text = |change: &Change<'_>| match change {
            Change::Attach(disk) => format!("+{}", disk.name()),
            Change::Detach(name) => format!("-{name}"),
        };
        changes.iter().map(text).collect()
    }

    #[test]
    fn claims_in_pods_are_plugged_when_their_pods_run() {
        let attachment = Attachment { uid: "u".into(), name: "hp".into(), disks: BTreeMap::new() };
        let held = |claims: &[&str]| {
            Places::Pods(claims.iter().map(|claim| ((*claim).to_owned(), attachment.clone())).collect())
        };
        let plugged =
            |name: &str, path: String| PluggedVolume { name: name.into(), target: "sda".into(), path };
        let file = plugged("a", hotplug_disk("one"));
        for (wanted, has, places, expected) in [
            (vec![("a", "one")], vec![], held(&[]), vec![]),
            (vec![("a", "one")], vec![], held(&["one"]), vec!["+a"]),
            (vec![("a", "one")], vec![file.clone()], held(&["one"]), vec![]),
            (vec![("a", "one")], vec![plugged("a", hotplug_device("one"))], held(&["one"]), vec![]),
            // Somebody deleted the Pod: the guest keeps its disk.
            (vec![("a", "one")], vec![file.clone()], held(&[]), vec![]),
            (vec![], vec![file.clone()], held(&["one"]), vec!["-a"]),
            (vec![("a", "two")], vec![file.clone()], held(&["one"]), vec!["-a"]),
            (vec![("a", "one"), ("b", "two")], vec![file], held(&["one"]), vec![]),
        ] {
            let vm = vm(&wanted);
            assert_eq!(texts(&changes(&vm, &has, &places)), expected, "{wanted:?} {places:?}");
        }
    }
}
