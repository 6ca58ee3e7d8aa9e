use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};
use vireo_api::spec::{Disk, Vm, VolumeSource};
use vireo_api::v1::{HotplugVolumeStatus, VolumeStatus};
use vireo_proto::launcher::{MemoryDump, PluggedVolume};

use super::super::memory_dump::DUMP_FAILED;
use super::{Facts, Phase};
use crate::storage::Pull;

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
    let is_wanted = |name: &str| {
        vm.disks().iter().any(|disk| disk.name() == name && *disk.source() != VolumeSource::NoMedium)
    };
    let unwanted = plugged.iter().filter(|volume| !is_wanted(&volume.name));
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
    wanted.chain(unplugging).chain(memory_dump(before, vm, facts)).collect()
}

/// Says of the volumes whose images are being downloaded how far that is. Returns whether anything has changed. What it says is
/// gone with the next status.
pub(in super::super) fn note_pulls(statuses: &mut Vec<VolumeStatus>, vm: &Vm, pulls: &[Pull]) -> bool {
    let mut has_changed = false;
    for (disk, image) in vm.disks_of_registries() {
        let Some(pull) = pulls.iter().find(|pull| pull.image == image) else { continue };
        let message = match pull.total {
            0 => format!("{image} is being pulled"),
            total => format!("{image} is being pulled: {} of {} MiB are here", pull.done >> 20, total >> 20),
        };
        let (phase, reason) = ("Pending".to_owned(), "Pulling".to_owned());
        let name = disk.name().to_owned();
        let now = VolumeStatus { name, phase, reason, message, ..VolumeStatus::default() };
        match statuses.iter_mut().find(|status| status.name == disk.name()) {
            Some(before) if *before == now => continue,
            Some(before) => *before = now,
            None => statuses.push(now),
        }
        has_changed = true;
    }
    has_changed
}

/// The status of the volume that the memory is dumped to. It is there for as long as the launcher has the dump: the claim is in
/// use until then.
fn memory_dump(before: &[VolumeStatus], vm: &Vm, facts: &Facts<'_>) -> Option<VolumeStatus> {
    let written = facts.state.and_then(|state| state.memory_dump.as_ref());
    let Some(wanted) = vm.memory_dump() else {
        let name = &written?.volume;
        let before = before.iter().find(|status| status.name == *name).cloned().unwrap_or_default();
        let (phase, reason) = ("Detaching".to_owned(), "VolumeDetaching".to_owned());
        return Some(VolumeStatus { name: name.clone(), phase, reason, message: String::new(), ..before });
    };
    let written = written.filter(|written| written.volume == wanted.volume());
    if written.is_none()
        && facts.phase.is_final()
        && let Some(known) =
            before.iter().find(|one| one.name == wanted.volume() && one.memory_dump_volume.is_some())
    {
        // The launcher is gone, and what it has written is not.
        return Some(match known.phase.as_str() {
            "MemoryDumpInProgress" => VolumeStatus {
                phase: "MemoryDumpFailed".to_owned(),
                reason: DUMP_FAILED.to_owned(),
                message: "the VMI ended before its memory was dumped".to_owned(),
                ..known.clone()
            },
            _ => known.clone(),
        });
    }
    let failed = facts.sync_error.filter(|error| error.reason == DUMP_FAILED);
    let (phase, reason, message) = match (written, failed) {
        (Some(MemoryDump { ended: 0, .. }), _) => {
            ("MemoryDumpInProgress", "VolumeMemoryDumpInProgress", "the memory is being written".to_owned())
        }
        (Some(MemoryDump { failure: None, .. }), _) => {
            ("MemoryDumpCompleted", "VolumeMemoryDumpCompleted", "the memory is dumped".to_owned())
        }
        (Some(MemoryDump { failure: Some(why), .. }), _) => ("MemoryDumpFailed", DUMP_FAILED, why.clone()),
        (None, Some(error)) => ("MemoryDumpFailed", DUMP_FAILED, error.message.clone()),
        (None, None) if waits_for_pod(wanted.claim(), facts) => {
            ("Pending", "VolumeNotReady", waits_for(wanted.claim()))
        }
        (None, None) => ("Pending", "VolumeNotReady", "the memory is dumped once the guest runs".to_owned()),
    };
    let mut dump = json!({"claimName": wanted.claim()});
    if let Some(written) = written {
        dump["startTimestamp"] = json!(timestamp(written.started));
        if written.ended != 0 {
            dump["endTimestamp"] = json!(timestamp(written.ended));
        }
        let name = Path::new(&written.file).file_name().unwrap_or_default();
        dump["targetFileName"] = json!(name.to_string_lossy());
    }
    Some(VolumeStatus {
        name: wanted.volume().to_owned(),
        hotplug_volume: Some(attached(wanted.claim(), facts).unwrap_or_default()),
        phase: phase.to_owned(),
        reason: reason.to_owned(),
        message,
        memory_dump_volume: Some(dump),
        persistent_volume_claim_info: Some(json!({"claimName": wanted.claim()})),
        ..VolumeStatus::default()
    })
}

fn timestamp(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// The attachment Pod of a claim, if it has one.
fn attached(claim: &str, facts: &Facts<'_>) -> Option<HotplugVolumeStatus> {
    let pod = facts.attachments?.get(claim)?;
    Some(HotplugVolumeStatus {
        attach_pod_name: pod.name.clone(),
        attach_pod_uid: pod.uid.clone(),
        ..HotplugVolumeStatus::default()
    })
}

/// Whether a claim is in use once it has an attachment Pod, and has none yet.
fn waits_for_pod(claim: &str, facts: &Facts<'_>) -> bool {
    facts.attachments.is_some_and(|attachments| !attachments.contains_key(claim))
}

fn waits_for(claim: &str) -> String {
    format!("it waits for the attachment Pod of the claim {claim}")
}

fn hotpluggable_status(
    (disk, claim): (&Disk, &str),
    plugged: Option<&PluggedVolume>,
    known: Option<HotplugVolumeStatus>,
    facts: &Facts<'_>,
) -> VolumeStatus {
    let (phase, reason, message) = match (plugged, sync_error(facts)) {
        (Some(_), _) => ("Ready", "VolumeReady", format!("volume {} is plugged into the guest", disk.name())),
        (None, Some((reason, why))) => ("Pending", reason, why),
        (None, None) if waits_for_pod(claim, facts) => ("Pending", "VolumeNotReady", waits_for(claim)),
        (None, None) if facts.phase == Phase::Running => {
            ("AttachedToNode", "VolumeAttachedToNode", "it is hotplugged next".to_owned())
        }
        (None, None) => ("Pending", "VolumeNotReady", "it is hotplugged once the guest runs".to_owned()),
    };
    let info: Value = json!({"claimName": claim});
    // After a restart the Pods are not known at once. Without a Pod, the field marks the volume as hotplugged.
    let known = known.filter(|_| plugged.is_some());
    VolumeStatus {
        name: disk.name().to_owned(),
        hotplug_volume: Some(attached(claim, facts).or(known).unwrap_or_default()),
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

    use super::super::SyncError;
    use super::super::tests::facts;
    use super::*;
    use crate::node::{Attachment, Attachments};

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

    #[test]
    fn a_memory_dump_is_reported_with_its_file() {
        let volumes = json!([{"name": "dump", "memoryDump": {"claimName": "dumps", "hotpluggable": true}}]);
        let vmi = |volumes: Value| -> Vm {
            let vmi: vireo_api::v1::VirtualMachineInstance = serde_json::from_value(json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
                "spec": {"domain": {"memory": {"guest": "64Mi"}}, "volumes": volumes},
            }))
            .unwrap();
            Vm::try_from(&vmi).unwrap()
        };
        let (with, without) = (vmi(volumes), vmi(json!([])));
        let dump = |ended, failure: Option<&str>| {
            let file = "/claims/n/dumps/x.memory.dump".to_owned();
            let failure = failure.map(str::to_owned);
            let memory_dump = MemoryDump { volume: "dump".into(), file, started: 60, ended, failure };
            State { memory_dump: Some(memory_dump), ..State::default() }
        };
        let error = SyncError { reason: DUMP_FAILED, message: "no claim".to_owned() };
        let status = |vm: &Vm, state: Option<&State>, sync_error| {
            let facts = Facts { state, sync_error, ..facts(Phase::Running) };
            statuses(&[], vm, &facts).pop()
        };
        for (state, sync_error, phase, message) in [
            (None, None, "Pending", "once the guest runs"),
            (None, Some(&error), "MemoryDumpFailed", "no claim"),
            (Some(dump(0, None)), None, "MemoryDumpInProgress", "being written"),
            (Some(dump(120, Some("no space"))), None, "MemoryDumpFailed", "no space"),
        ] {
            let shown = status(&with, state.as_ref(), sync_error).unwrap();
            assert_eq!((shown.name.as_str(), shown.phase.as_str()), ("dump", phase));
            assert!(shown.message.contains(message), "{}", shown.message);
        }
        let done = status(&with, Some(&dump(120, None)), None).unwrap();
        assert_eq!(done.phase, "MemoryDumpCompleted");
        let expected = json!({"claimName": "dumps", "startTimestamp": "1970-01-01T00:01:00Z",
            "endTimestamp": "1970-01-01T00:02:00Z", "targetFileName": "x.memory.dump"});
        assert_eq!(done.memory_dump_volume, Some(expected));
        // In a cluster, an attachment Pod has the claim.
        let mut attachments = Attachments::new();
        let shown = |attachments: &Attachments| {
            let facts = Facts { attachments: Some(attachments), ..facts(Phase::Running) };
            statuses(&[], &with, &facts).pop().unwrap()
        };
        assert_eq!(shown(&attachments).message, "it waits for the attachment Pod of the claim dumps");
        let pod = Attachment { uid: "u".into(), name: "hp-1".into(), disks: BTreeMap::new() };
        attachments.insert("dumps".to_owned(), pod);
        assert_eq!(shown(&attachments).hotplug_volume.unwrap().attach_pod_name, "hp-1");
        // Without the volume, until the launcher has forgotten the dump.
        let state = dump(0, None);
        let leaving = statuses(&[done], &without, &Facts { state: Some(&state), ..facts(Phase::Running) });
        assert_eq!(leaving[0].phase, "Detaching");
        assert_eq!(leaving[0].persistent_volume_claim_info, Some(json!({"claimName": "dumps"})));
        assert_eq!(status(&without, Some(&State::default()), None), None);
    }
}
