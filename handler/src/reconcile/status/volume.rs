use serde_json::{Value, json};
use vireo_api::spec::{Disk, Vm, VolumeSource};
use vireo_api::v1::{HotplugVolumeStatus, VolumeStatus};
use vireo_proto::launcher::PluggedVolume;

use super::{Facts, Phase};

/// The status of a VMI's volumes; those that are being unplugged come last.
pub(super) fn statuses(before: &[VolumeStatus], vm: &Vm, facts: &Facts<'_>) -> Vec<VolumeStatus> {
    let plugged = facts.state.map(|state| state.volumes.as_slice()).unwrap_or_default();
    let named = |name: &str| plugged.iter().find(|volume| volume.name == name);
    let volumes = vm.disks().iter().filter(|disk| *disk.source() != VolumeSource::NoMedium);
    let wanted = volumes.map(|disk| match disk.source() {
        VolumeSource::PersistentVolumeClaim { name, hotpluggable: true, .. } => {
            hotpluggable_status(disk, name, named(disk.name()), facts)
        }
        _ => VolumeStatus { name: disk.name().to_owned(), ..VolumeStatus::default() },
    });
    let unwanted = plugged.iter().filter(|volume| !vm.disks().iter().any(|disk| disk.name() == volume.name));
    let unplugging = unwanted.map(|volume| VolumeStatus {
        target: volume.target.clone(),
        phase: "Detaching".to_owned(),
        reason: "VolumeDetaching".to_owned(),
        message: sync_error(facts)
            .map_or_else(|| "the guest is asked to release it".to_owned(), |(_, why)| why),
        // The claim is in use until then.
        persistent_volume_claim_info: before
            .iter()
            .find(|status| status.name == volume.name)
            .and_then(|status| status.persistent_volume_claim_info.clone()),
        ..hotplug_status(&volume.name)
    });
    wanted.chain(unplugging).collect()
}

fn hotplug_status(name: &str) -> VolumeStatus {
    // No pod holds the volume; the field marks it as hotplugged.
    let hotplug_volume = Some(HotplugVolumeStatus::default());
    VolumeStatus { name: name.to_owned(), hotplug_volume, ..VolumeStatus::default() }
}

fn hotpluggable_status(
    disk: &Disk,
    claim: &str,
    plugged: Option<&PluggedVolume>,
    facts: &Facts<'_>,
) -> VolumeStatus {
    let (phase, reason, message) = match (plugged, sync_error(facts)) {
        (Some(_), _) => ("Ready", "VolumeReady", format!("volume {} is plugged into the guest", disk.name())),
        (None, Some((reason, why))) => ("Pending", reason, why),
        (None, None) if facts.phase == Phase::Running => {
            ("AttachedToNode", "VolumeAttachedToNode", "it is hotplugged next".to_owned())
        }
        (None, None) => ("Pending", "VolumeNotReady", "it is hotplugged once the guest runs".to_owned()),
    };
    let info: Value = json!({"claimName": claim});
    VolumeStatus {
        target: plugged.map(|volume| volume.target.clone()).unwrap_or_default(),
        phase: phase.to_owned(),
        reason: reason.to_owned(),
        message,
        persistent_volume_claim_info: Some(info),
        ..hotplug_status(disk.name())
    }
}

fn sync_error<'a>(facts: &Facts<'a>) -> Option<(&'a str, String)> {
    let sync_error = facts.sync_error.filter(|sync_error| sync_error.is_about_volumes())?;
    Some((sync_error.reason, sync_error.message.clone()))
}
