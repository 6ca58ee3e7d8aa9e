use vireo_api::v1::Condition;

use super::*;

fn vmi(phase: &str) -> VirtualMachineInstance {
    let mut vmi = VirtualMachineInstance::default();
    vmi.status.phase = phase.to_owned();
    vmi
}

fn reasons(
    was: &Status,
    before: Option<&VirtualMachineInstance>,
    now: &VirtualMachineInstance,
) -> Vec<&'static str> {
    events(was, before, now).into_iter().map(|event| event.reason.as_str()).collect()
}

#[test]
fn known_events_are_not_repeated() {
    let mut running = vmi("Running");
    let chosen = Condition {
        r#type: ConditionType::Hypervisor.as_str().to_owned(),
        message: "why".to_owned(),
        ..Condition::default()
    };
    let sync_error = Condition {
        r#type: "Synchronized".to_owned(),
        status: "False".to_owned(),
        reason: "FailedNetwork".to_owned(),
        message: "no".to_owned(),
        ..Condition::default()
    };
    running.status.conditions = vec![chosen, sync_error];
    let scheduled = vmi("Scheduled").status.clone();
    assert_eq!(reasons(&scheduled, None, &running), ["HypervisorChosen", "FailedNetwork", "Started"]);
    let started = reasons(&vmi("Scheduling").status, None, &vmi("Running"));
    assert_eq!(started, ["Created", "Started"], "a phase that was passed is not written");
    let known = running.status.clone();
    assert!(reasons(&known, None, &running).is_empty(), "after a restart");
    let mut waiting = running.clone();
    for (reason, expected) in [("PodInterfaceNotFound", &[][..]), ("FailedNICSync", &["NicHotplug"])] {
        reason.clone_into(&mut waiting.status.conditions[1].reason);
        "not yet".clone_into(&mut waiting.status.conditions[1].message);
        assert_eq!(reasons(&known, Some(&running), &waiting), expected, "{reason}");
    }
    let mut paused = running.clone();
    paused.status.conditions.push(Condition {
        r#type: "Paused".to_owned(),
        status: "True".to_owned(),
        reason: "PausedByUser".to_owned(),
        ..Condition::default()
    });
    assert_eq!(reasons(&known, Some(&running), &paused), ["Paused"]);
    let still = paused.status.clone();
    assert!(reasons(&still, Some(&paused), &paused).is_empty());
    assert_eq!(reasons(&still, Some(&paused), &running), ["Unpaused"]);
    let mut deleting = running.clone();
    deleting.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    assert_eq!(reasons(&known, Some(&running), &deleting), ["ShuttingDown"]);
    assert!(reasons(&known, Some(&deleting), &deleting).is_empty());
    assert_eq!(reasons(&known, Some(&deleting), &vmi("Failed")), ["Stopped", "Deleted"]);
}

#[test]
fn the_hypervisor_of_an_ended_guest_is_removed() {
    let event = |left: &str, phase: &str, reason: &str| {
        let mut now = vmi(phase);
        reason.clone_into(&mut now.status.reason);
        let all = events(&vmi(left).status, None, &now);
        all.into_iter().find(|event| event.reason == Reason::Deleted).map(|event| event.message)
    };
    for (left, phase, reason, expected) in [
        ("Running", "Succeeded", "GuestPoweredOff", Some("Signaled Deletion")),
        ("Scheduled", "Failed", "LaunchFailed", Some("Signaled Deletion")),
        ("Running", "Failed", "GracePeriodExpired", Some("VirtualMachineInstance stopping")),
        ("Running", "Succeeded", "Killed", Some("VirtualMachineInstance stopping")),
        ("Pending", "Failed", "FailedSpec", None),
        ("Scheduled", "Running", "", None),
        ("Failed", "Failed", "Killed", None),
    ] {
        assert_eq!(event(left, phase, reason).as_deref(), expected, "{left} to {phase}: {reason}");
    }
}

#[test]
fn a_failing_disk_is_reported_once_by_name() {
    let with = |reason: &str, message: &str| {
        let mut vmi = vmi("Running");
        let (reason, message) = (reason.to_owned(), message.to_owned());
        vmi.status.conditions = vec![Condition {
            r#type: "Paused".to_owned(),
            status: "True".to_owned(),
            reason,
            message,
            ..Condition::default()
        }];
        vmi
    };
    let failed =
        |disks: &str| with(PAUSED_IO_ERROR, &format!("VMI was paused, low-level IO error detected: {disks}"));
    let (one, two) = (
        "not enough space on volume: a (no)",
        "not enough space on volume: a (no); IO error at the volume: b",
    );
    let warning = |text: &str| Event::new(Reason::IoError, format!("VM Paused due to {text}"));
    let (a, b) = (warning("not enough space on volume: a"), warning("IO error at the volume: b"));
    let (paused, unpaused) = (
        Event::new(Reason::Paused, "VirtualMachineInstance paused"),
        Event::new(Reason::Unpaused, "VirtualMachineInstance unpaused"),
    );
    let by_user = || with("PausedByUser", "VMI was paused by user");
    for (was, now, expected) in [
        (vmi("Running"), failed(one), vec![a.clone()]),
        (failed(one), failed(one), vec![]),
        (failed(one), failed(two), vec![b]),
        (failed(one), vmi("Running"), vec![unpaused]),
        (failed(one), by_user(), vec![paused]),
        (by_user(), failed(one), vec![a]),
    ] {
        let was = was.status.clone();
        assert_eq!(events(&was, None, &now), expected, "{was:?}");
    }
}

#[test]
fn a_volume_that_ends_with_its_vmi_is_not_unplugged() {
    let mut plugged = vmi("Running");
    plugged.status.volume_status = vec![VolumeStatus {
        name: "data".to_owned(),
        target: "sda".to_owned(),
        hotplug_volume: Some(Default::default()),
        ..VolumeStatus::default()
    }];
    let without = vmi("Running").status.clone();
    let with = plugged.status.clone();
    assert_eq!(reasons(&without, None, &plugged), ["VolumeReady"]);
    assert_eq!(reasons(&with, None, &vmi("Running")), ["VolumeUnplugged"]);
    assert_eq!(reasons(&with, None, &vmi("Succeeded")), ["Stopped", "Deleted"]);
}

#[test]
fn a_failing_probe_is_reported_at_first_and_when_its_cause_changes() {
    let with = |kind: &str, status: &str, message: String| {
        let mut vmi = vmi("Running");
        let status = status.to_owned();
        vmi.status.conditions =
            vec![Condition { r#type: kind.to_owned(), status, message, ..Condition::default() }];
        vmi
    };
    let unready = |cause: &str| with("Ready", "False", format!("Readiness probe failed: {cause}"));
    let (ready, new) = (with("Ready", "True", String::new()), with("Ready", "False", "not yet".to_owned()));
    let unhealthy = with(ConditionType::Unhealthy.as_str(), "True", "Liveness probe failed: a".to_owned());
    for (was, now, actual) in [
        (&new, &new, &[][..]),
        (&new, &unready("a"), &["Unhealthy"]),
        (&unready("a"), &unready("a"), &[]),
        (&unready("a"), &unready("b"), &["Unhealthy"]),
        (&unready("a"), &ready, &[]),
        (&ready, &unready("a"), &["Unhealthy"]),
        (&ready, &unhealthy, &["Unhealthy", "Killing"]),
        (&unhealthy, &unhealthy, &[]),
    ] {
        let was = was.status.clone();
        assert_eq!(reasons(&was, None, now), actual, "{was:?}");
    }
}

#[test]
fn what_becomes_of_credentials_is_reported_once() {
    let with = |status: &str, message: &str| {
        let mut vmi = vmi("Running");
        vmi.status.conditions = vec![Condition {
            r#type: ConditionType::AccessCredentialsSynchronized.as_str().to_owned(),
            status: status.to_owned(),
            message: message.to_owned(),
            ..Condition::default()
        }];
        vmi
    };
    let (failed, done) = (with("False", "Guest agent is offline"), with("True", ""));
    let event = |was: &VirtualMachineInstance, now| {
        let events = events(&was.status, None, now);
        events.into_iter().map(|event| (event.reason.as_str(), event.message)).collect::<Vec<_>>()
    };
    let text = "Access credentials sync failed: Guest agent is offline".to_owned();
    assert_eq!(event(&vmi("Running"), &failed), [("AccessCredentialsSyncFailed", text)]);
    let text = "Access credentials sync successful.".to_owned();
    assert_eq!(event(&failed, &done), [("AccessCredentialsSyncSuccess", text)]);
    assert_eq!(event(&done, &done), []);
}
