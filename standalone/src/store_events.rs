//! Events that are written to the store directly.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use vireo_api::spec::HYPERVISOR_CONDITION;
use vireo_api::v1::{Condition, ObjectMeta, VirtualMachineInstance, VolumeStatus};
use vireo_apiserver::meta;
use vireo_apiserver::store::{Change, DiskError, Store, WriteError};
use vireo_handler::reconcile::status::{
    NO_BOOT_DEVICE, PAUSED_IO_ERROR, READINESS_FAILED, UNHEALTHY, io_errors,
};

use crate::place;

/// One thing to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    warning: bool,
    reason: String,
    message: String,
}

/// Whom it is about, and who says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    /// Of something that is served.
    pub(crate) kind: &'a str,
    /// Its name, namespace and UID.
    pub(crate) metadata: &'a ObjectMeta,
    /// The program that says so.
    pub(crate) component: &'a str,
    /// And its node.
    pub(crate) host: &'a str,
}

impl Event {
    pub(crate) fn new(warning: bool, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { warning, reason: reason.into(), message: message.into() }
    }
}

fn condition<'a>(vmi: &'a VirtualMachineInstance, kind: &str) -> Option<&'a Condition> {
    vmi.status.conditions.iter().find(|condition| condition.r#type == kind)
}

/// What is new: against the status that the API has, and against what the node said before.
pub(crate) fn events(
    was: &Value,
    before: Option<&VirtualMachineInstance>,
    now: &VirtualMachineInstance,
) -> Vec<Event> {
    let mut events = Vec::new();
    let had = |kind: &str, field: &str| {
        let list = was.get("conditions").and_then(Value::as_array);
        let found =
            list.into_iter().flatten().find(|condition| condition.get("type").is_some_and(|has| has == kind));
        found.and_then(|condition| condition.get(field)?.as_str()).unwrap_or_default().to_owned()
    };
    if let Some(chosen) = condition(now, HYPERVISOR_CONDITION)
        .filter(|chosen| chosen.message != had(HYPERVISOR_CONDITION, "message"))
    {
        events.push(Event::new(false, "HypervisorChosen", format!("{}: {}", chosen.reason, chosen.message)));
    }
    if condition(now, NO_BOOT_DEVICE).is_some() && had(NO_BOOT_DEVICE, "status").is_empty() {
        events.push(Event::new(true, "NoBootableDevice", "The firmware found nothing to start."));
    }
    let unready = condition(now, "Ready").filter(|ready| ready.message.starts_with(READINESS_FAILED));
    if let Some(unready) = unready.filter(|unready| unready.message != had("Ready", "message")) {
        events.push(Event::new(true, "Unhealthy", unready.message.clone()));
    }
    if let Some(ill) = condition(now, UNHEALTHY).filter(|_| had(UNHEALTHY, "status").is_empty()) {
        events.push(Event::new(true, "Unhealthy", ill.message.clone()));
        events.push(Event::new(false, "Killing", "The guest failed its livenessProbe and is shut down."));
    }
    let running = now.status.phase == "Running";
    let had_paused = had("Paused", "reason");
    match condition(now, "Paused") {
        Some(paused) if paused.reason == PAUSED_IO_ERROR => {
            let known: Vec<String> = io_errors(&had("Paused", "message")).collect();
            let fresh = io_errors(&paused.message).filter(|text| !known.contains(text));
            events.extend(fresh.map(|text| Event::new(true, "IOerror", text)));
        }
        Some(paused) if paused.reason != had_paused => {
            events.push(Event::new(false, "Paused", "VirtualMachineInstance paused"));
        }
        None if running && !had("Paused", "status").is_empty() => {
            events.push(Event::new(false, "Unpaused", "VirtualMachineInstance unpaused"));
        }
        Some(_) | None => {}
    }
    let trouble = condition(now, "Synchronized").filter(|trouble| trouble.status == "False");
    if let Some(trouble) = trouble.filter(|trouble| trouble.message != had("Synchronized", "message")) {
        let reason = if trouble.reason == "FailedHotplugSync" { "HotplugFailed" } else { &trouble.reason };
        events.push(Event::new(true, reason, trouble.message.clone()));
    }
    events.extend(plugged(was, now));
    let leaving = |vmi: &VirtualMachineInstance| vmi.metadata.deletion_timestamp.is_some();
    if before.is_some_and(|before| !leaving(before)) && leaving(now) && now.status.phase == "Running" {
        events.push(Event::new(false, "ShuttingDown", "Signaled Graceful Shutdown"));
    }
    if was.get("phase").is_none_or(|phase| *phase != now.status.phase) {
        match now.status.phase.as_str() {
            "Scheduled" => events.push(Event::new(false, "Created", "VirtualMachineInstance defined.")),
            "Running" => events.push(Event::new(false, "Started", "VirtualMachineInstance started.")),
            "Succeeded" => {
                events.push(Event::new(false, "Stopped", "The VirtualMachineInstance was shut down."));
            }
            "Failed" => events.push(Event::new(true, "Stopped", "The VirtualMachineInstance crashed.")),
            _ => {}
        }
    }
    events
}

/// Volumes that are plugged in or out by now.
fn plugged(was: &Value, now: &VirtualMachineInstance) -> Vec<Event> {
    let had: Vec<VolumeStatus> = was
        .get("volumeStatus")
        .and_then(|list| serde_json::from_value(list.clone()).ok())
        .unwrap_or_default();
    let is_in = |volume: &&VolumeStatus| volume.hotplug_volume.is_some() && !volume.target.is_empty();
    let has = |list: &[VolumeStatus], name: &str| list.iter().filter(is_in).any(|one| one.name == name);
    let has_now = &now.status.volume_status;
    let fresh = has_now.iter().filter(is_in).filter(|volume| !has(&had, &volume.name));
    // What goes with its machine is not taken out of it.
    let runs = now.status.phase == "Running";
    let gone = had.iter().filter(is_in).filter(|volume| runs && !has(has_now, &volume.name));
    let ready = |volume: &VolumeStatus| {
        let text = format!("volume {} is plugged into the guest as {}", volume.name, volume.target);
        Event::new(false, "VolumeReady", text)
    };
    let unplugged = |volume: &VolumeStatus| {
        Event::new(false, "VolumeUnplugged", format!("volume {} is out of the guest", volume.name))
    };
    fresh.map(ready).chain(gone.map(unplugged)).collect()
}

/// Writes an event, or counts it where it was told before. Blocks.
pub(crate) fn write(store: &Store, about: &About<'_>, event: &Event) -> Result<(), DiskError> {
    let metadata = about.metadata;
    let mut hash = Sha256::new();
    for part in [&metadata.uid, &event.reason, &event.message] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let tail: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{}.{tail}", metadata.name.chars().take(230).collect::<String>());
    let now = meta::now();
    let written: Result<_, WriteError<std::convert::Infallible>> =
        store.write(&place::events().key(&metadata.namespace, &name), |before, store| {
            // A namespace that goes takes no news.
            if place::namespace(store, &metadata.namespace)
                .is_none_or(|namespace| meta::is_leaving(&namespace.value))
            {
                return Ok(Change::Nothing);
            }
            let mut value = match before {
                Some(before) => before.value.clone(),
                None => fresh(about, event, &name, &now),
            };
            let count = value.get("count").and_then(Value::as_i64).unwrap_or_default();
            value["count"] = json!(count + 1);
            value["lastTimestamp"] = json!(now);
            Ok(Change::Put(value))
        });
    match written {
        Ok(_) => Ok(()),
        Err(WriteError::Refused(never)) => match never {},
        Err(WriteError::Disk(error)) => Err(error),
    }
}

fn fresh(about: &About<'_>, event: &Event, name: &str, now: &str) -> Value {
    let metadata = about.metadata;
    let of_kind = crate::resource::kubevirt::rows().into_iter().find(|row| row.kind == about.kind);
    let mut value = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {},
        "involvedObject": {
            "apiVersion": of_kind.map(|row| row.api_version()), "kind": about.kind,
            "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid,
        },
        "reason": event.reason, "message": event.message,
        "type": if event.warning { "Warning" } else { "Normal" },
        "source": {"component": about.component, "host": about.host},
        "reportingComponent": about.component, "reportingInstance": about.host,
        "firstTimestamp": now,
    });
    meta::create(&mut value, &metadata.namespace, name);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmi(phase: &str) -> VirtualMachineInstance {
        let mut vmi = VirtualMachineInstance::default();
        vmi.metadata.uid = "u".to_owned();
        vmi.metadata.name = "x".to_owned();
        vmi.metadata.namespace = "default".to_owned();
        vmi.status.phase = phase.to_owned();
        vmi
    }

    fn reasons(
        was: &Value,
        before: Option<&VirtualMachineInstance>,
        now: &VirtualMachineInstance,
    ) -> Vec<String> {
        events(was, before, now).into_iter().map(|event| event.reason).collect()
    }

    #[test]
    fn what_is_known_is_not_told_again() {
        let mut running = vmi("Running");
        let chosen = Condition {
            r#type: HYPERVISOR_CONDITION.to_owned(),
            message: "why".to_owned(),
            ..Condition::default()
        };
        let trouble = Condition {
            r#type: "Synchronized".to_owned(),
            status: "False".to_owned(),
            reason: "FailedNetwork".to_owned(),
            message: "no".to_owned(),
            ..Condition::default()
        };
        running.status.conditions = vec![chosen, trouble];
        let scheduled = serde_json::to_value(&vmi("Scheduled").status).unwrap();
        assert_eq!(reasons(&scheduled, None, &running), ["HypervisorChosen", "FailedNetwork", "Started"]);
        let known = serde_json::to_value(&running.status).unwrap();
        assert!(reasons(&known, None, &running).is_empty(), "after a restart");
        let mut paused = running.clone();
        paused.status.conditions.push(Condition {
            r#type: "Paused".to_owned(),
            status: "True".to_owned(),
            reason: "PausedByUser".to_owned(),
            ..Condition::default()
        });
        assert_eq!(reasons(&known, Some(&running), &paused), ["Paused"]);
        let still = serde_json::to_value(&paused.status).unwrap();
        assert!(reasons(&still, Some(&paused), &paused).is_empty());
        assert_eq!(reasons(&still, Some(&paused), &running), ["Unpaused"]);
        let mut leaving = running.clone();
        leaving.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        assert_eq!(reasons(&known, Some(&running), &leaving), ["ShuttingDown"]);
        assert!(reasons(&known, Some(&leaving), &leaving).is_empty());
        assert_eq!(reasons(&known, Some(&leaving), &vmi("Failed")), ["Stopped"]);
    }

    #[test]
    fn a_disk_that_fails_is_told_once_and_by_its_name() {
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
        let failed = |disks: &str| {
            with(PAUSED_IO_ERROR, &format!("VMI was paused, low-level IO error detected: {disks}"))
        };
        let (one, two) = (
            "not enough space on volume: a (no)",
            "not enough space on volume: a (no); IO error at the volume: b",
        );
        let warning = |text: &str| Event::new(true, "IOerror", format!("VM Paused due to {text}"));
        let (a, b) = (warning("not enough space on volume: a"), warning("IO error at the volume: b"));
        let (paused, unpaused) = (
            Event::new(false, "Paused", "VirtualMachineInstance paused"),
            Event::new(false, "Unpaused", "VirtualMachineInstance unpaused"),
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
            let was = serde_json::to_value(&was.status).unwrap();
            assert_eq!(events(&was, None, &now), expected, "{was}");
        }
    }

    #[test]
    fn a_volume_that_goes_with_its_machine_is_not_plugged_out() {
        let mut plugged = vmi("Running");
        plugged.status.volume_status = vec![VolumeStatus {
            name: "data".to_owned(),
            target: "sda".to_owned(),
            hotplug_volume: Some(Default::default()),
            ..VolumeStatus::default()
        }];
        let without = serde_json::to_value(&vmi("Running").status).unwrap();
        let with = serde_json::to_value(&plugged.status).unwrap();
        assert_eq!(reasons(&without, None, &plugged), ["VolumeReady"]);
        assert_eq!(reasons(&with, None, &vmi("Running")), ["VolumeUnplugged"]);
        assert_eq!(reasons(&with, None, &vmi("Succeeded")), ["Stopped"]);
    }

    #[test]
    fn a_probe_that_fails_is_told_when_it_begins_to_and_when_its_cause_changes() {
        let with = |kind: &str, status: &str, message: String| {
            let mut vmi = vmi("Running");
            let status = status.to_owned();
            vmi.status.conditions =
                vec![Condition { r#type: kind.to_owned(), status, message, ..Condition::default() }];
            vmi
        };
        let unready = |cause: &str| with("Ready", "False", format!("{READINESS_FAILED}{cause}"));
        let (ready, new) =
            (with("Ready", "True", String::new()), with("Ready", "False", "not yet".to_owned()));
        let condemned = with(UNHEALTHY, "True", "Liveness probe failed: a".to_owned());
        for (was, now, told) in [
            (&new, &new, &[][..]),
            (&new, &unready("a"), &["Unhealthy"]),
            (&unready("a"), &unready("a"), &[]),
            (&unready("a"), &unready("b"), &["Unhealthy"]),
            (&unready("a"), &ready, &[]),
            (&ready, &unready("a"), &["Unhealthy"]),
            (&ready, &condemned, &["Unhealthy", "Killing"]),
            (&condemned, &condemned, &[]),
        ] {
            let was = serde_json::to_value(&was.status).unwrap();
            assert_eq!(reasons(&was, None, now), told, "{was}");
        }
    }

    #[test]
    fn the_same_news_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        place::prepare(&store, "node1").unwrap();
        let vmi = vmi("Running");
        let about = About {
            kind: "VirtualMachineInstance",
            metadata: &vmi.metadata,
            component: "virt-handler",
            host: "",
        };
        for message in ["a", "a", "b"] {
            write(&store, &about, &Event::new(true, "Reason", message)).unwrap();
        }
        let counts: Vec<(String, i64)> = store
            .list("events", None)
            .objects
            .iter()
            .map(|object| {
                (
                    object.value["message"].as_str().unwrap().to_owned(),
                    object.value["count"].as_i64().unwrap(),
                )
            })
            .collect();
        assert_eq!(counts.len(), 2);
        assert!(counts.contains(&("a".to_owned(), 2)) && counts.contains(&("b".to_owned(), 1)), "{counts:?}");
    }
}
