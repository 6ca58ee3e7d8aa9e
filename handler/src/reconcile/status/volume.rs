use serde_json::{Value, json};
use vireo_api::spec::{Disk, Vm, VolumeSource};
use vireo_api::v1::{HotplugVolumeStatus, VolumeStatus};
use vireo_proto::launcher::PluggedVolume;

use super::{Facts, Phase};
use crate::node::Attachment;

/// The status of a VMI's volumes; those that are being unplugged come last.
pub(super) fn statuses(before: &[VolumeStatus], vm: &Vm, facts: &Facts<'_>) -> Vec<VolumeStatus> {
    let plugged = facts.state.map(|state| state.volumes.as_slice()).unwrap_or_default();
    let named = |name: &str| plugged.iter().find(|volume| volume.name == name);
    let volumes = vm.disks().iter().filter(|disk| *disk.source() != VolumeSource::NoMedium);
    let wanted = volumes.map(|disk| match disk.source() {
        VolumeSource::PersistentVolumeClaim { name, hotpluggable: true, .. } => {
            let before = before.iter().find(|status| status.name == disk.name());
            let known = before.and_then(|status| status.hotplug_volume.clone());
            hotpluggable_status((disk, name), named(disk.name()), known, facts)
        }
        _ => VolumeStatus { name: disk.name().to_owned(), ..VolumeStatus::default() },
    });
    let unwanted = plugged.iter().filter(|volume| !vm.disks().iter().any(|disk| disk.name() == volume.name));
    let unplugging = unwanted.map(|volume| {
        let before = before.iter().find(|status| status.name == volume.name);
        VolumeStatus {
            name: volume.name.clone(),
            target: volume.target.clone(),
            phase: "Detaching".to_owned(),
            reason: "VolumeDetaching".to_owned(),
            message: sync_error(facts)
                .map_or_else(|| "the guest is asked to release it".to_owned(), |(_, why)| why),
            // Claim and Pod are in use until then.
            persistent_volume_claim_info: before
                .and_then(|status| status.persistent_volume_claim_info.clone()),
            hotplug_volume: before
                .and_then(|status| status.hotplug_volume.clone())
                .or_else(|| Some(HotplugVolumeStatus::default())),
            ..VolumeStatus::default()
        }
    });
    wanted.chain(unplugging).collect()
}

fn hotpluggable_status(
    (disk, claim): (&Disk, &str),
    plugged: Option<&PluggedVolume>,
    known: Option<HotplugVolumeStatus>,
    facts: &Facts<'_>,
) -> VolumeStatus {
    let pod = facts.attachments.and_then(|attachments| attachments.get(claim));
    let waits = facts.attachments.is_some() && pod.is_none();
    let (phase, reason, message) = match (plugged, sync_error(facts)) {
        (Some(_), _) => ("Ready", "VolumeReady", format!("volume {} is plugged into the guest", disk.name())),
        (None, Some((reason, why))) => ("Pending", reason, why),
        (None, None) if waits => {
            ("Pending", "VolumeNotReady", format!("it waits for the attachment Pod of the claim {claim}"))
        }
        (None, None) if facts.phase == Phase::Running => {
            ("AttachedToNode", "VolumeAttachedToNode", "it is hotplugged next".to_owned())
        }
        (None, None) => ("Pending", "VolumeNotReady", "it is hotplugged once the guest runs".to_owned()),
    };
    let info: Value = json!({"claimName": claim});
    let named = |pod: &Attachment| HotplugVolumeStatus {
        attach_pod_name: pod.name.clone(),
        attach_pod_uid: pod.uid.clone(),
        ..HotplugVolumeStatus::default()
    };
    // After a restart the Pods are not known at once. Without a Pod, the field marks the volume as hotplugged.
    let known = known.filter(|_| plugged.is_some());
    VolumeStatus {
        name: disk.name().to_owned(),
        hotplug_volume: Some(pod.map(named).or(known).unwrap_or_default()),
        target: plugged.map(|volume| volume.target.clone()).unwrap_or_default(),
        phase: phase.to_owned(),
        reason: reason.to_owned(),
        message,
        persistent_volume_claim_info: Some(info),
        ..VolumeStatus::default()
    }
}

fn sync_error<'a>(facts: &Facts<'a>) -> Option<(&'a str, String)> {
    let sync_error = facts.sync_error.filter(|sync_error| sync_error.is_about_volumes())?;
    Some((sync_error.reason, sync_error.message.clone()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use vireo_proto::launcher::State;

    use super::super::tests::facts;
    use super::*;
    use crate::node::Attachments;

    fn vm() -> Vm {
        let claim = json!({"claimName": "disk", "hotpluggable": true});
        let vmi: vireo_api::v1::VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"},
                    "devices": {"disks": [{"name": "data", "disk": {"bus": "scsi"}}]}},
                "volumes": [{"name": "data", "persistentVolumeClaim": claim}],
            },
        }))
        .unwrap();
        Vm::try_from(&vmi).unwrap()
    }

    /// Phase and attachment Pod of the only volume.
    fn shown(statuses: &[VolumeStatus]) -> (&str, &str) {
        let [status] = statuses else { panic!("{statuses:?}") };
        assert_eq!(status.persistent_volume_claim_info, Some(json!({"claimName": "disk"})));
        (&status.phase, &status.hotplug_volume.as_ref().unwrap().attach_pod_name)
    }

    #[test]
    fn a_volume_names_the_pod_of_its_claim() {
        let vm = vm();
        let attachment = Attachment { uid: "u".into(), name: "hp-1".into(), disks: BTreeMap::new() };
        let (none, held) = (Attachments::new(), Attachments::from([("disk".to_owned(), attachment)]));
        let volume = PluggedVolume { name: "data".into(), target: "sda".into(), path: "/d".into() };
        let state = State { volumes: vec![volume], ..State::default() };
        let facts = |attachments, state| Facts { attachments, state, ..facts(Phase::Running) };
        let waiting = statuses(&[], &vm, &facts(Some(&none), None));
        assert_eq!(shown(&waiting), ("Pending", ""));
        assert!(waiting[0].message.contains("attachment Pod of the claim disk"), "{}", waiting[0].message);
        let attached = statuses(&waiting, &vm, &facts(Some(&held), None));
        assert_eq!(shown(&attached), ("AttachedToNode", "hp-1"));
        let ready = statuses(&attached, &vm, &facts(Some(&held), Some(&state)));
        assert_eq!(shown(&ready), ("Ready", "hp-1"));
        let restarted = statuses(&ready, &vm, &facts(Some(&none), Some(&state)));
        assert_eq!(shown(&restarted), ("Ready", "hp-1"), "the node agent knows no Pods yet");
        let on_one_host = statuses(&[], &vm, &facts(None, None));
        assert_eq!(shown(&on_one_host), ("AttachedToNode", ""));
    }
}
