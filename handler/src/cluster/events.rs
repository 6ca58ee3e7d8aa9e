//! Events for the changes of a VMI's status.

use vireo_api::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus as Status, VolumeStatus};
use vireo_client::events::Reason;

use crate::reconcile::status::{
    ConditionType, GRACE_EXPIRED, KILLED, NO_POD_INTERFACE, PAUSED_IO_ERROR, Phase, failure, io_errors,
    readiness_failure,
};

/// An event that is to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl Event {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// The changes in `now`, compared with the API's status and with the node's last report.
pub(super) fn events(
    was: &Status,
    before: Option<&VirtualMachineInstance>,
    now: &VirtualMachineInstance,
) -> Vec<Event> {
    let is = &now.status;
    let mut events = conditions(was, is);
    events.extend(pause(was, is));
    // A NIC that comes waits for the interface of its Pod, as long as that takes.
    if let Some(fails) = failure(is).filter(|fails| fails.reason != NO_POD_INTERFACE)
        && failure(was).is_none_or(|known| known.message != fails.message)
    {
        events.push(Event::new(Reason::of_failure(&fails.reason), fails.message.clone()));
    }
    events.extend(hotplug_events(&was.volume_status, is));
    let deleting = |vmi: &VirtualMachineInstance| vmi.metadata.deletion_timestamp.is_some();
    if before.is_some_and(|before| !deleting(before)) && deleting(now) && is.phase == Phase::Running.as_str()
    {
        events.push(Event::new(Reason::ShuttingDown, "Signaled Graceful Shutdown"));
    }
    let (left, phase) = (Phase::parse(&was.phase), Phase::parse(&is.phase));
    if left != phase {
        // Not every phase of a start is written.
        let is_before = |phase| matches!(phase, Phase::Pending | Phase::Scheduling);
        if phase == Phase::Running && is_before(left) {
            events.extend(entered(Phase::Scheduled));
        }
        events.extend(entered(phase));
        events.extend(removal(left, is));
    }
    events
}

/// What becomes of the hypervisor of a guest that has ended, if there was one.
fn removal(left: Phase, is: &Status) -> Option<Event> {
    let had_one = matches!(left, Phase::Scheduled | Phase::Running) && Phase::parse(&is.phase).is_final();
    let text = match is.reason.as_str() {
        KILLED | GRACE_EXPIRED => "VirtualMachineInstance stopping",
        _ => "Signaled Deletion",
    };
    had_one.then(|| Event::new(Reason::Deleted, text))
}

fn entered(phase: Phase) -> Option<Event> {
    let (reason, message) = match phase {
        Phase::Scheduled => (Reason::Created, "VirtualMachineInstance defined."),
        Phase::Running => (Reason::Started, "VirtualMachineInstance started."),
        Phase::Succeeded => (Reason::Stopped, "The VirtualMachineInstance was shut down."),
        Phase::Failed => (Reason::Crashed, "The VirtualMachineInstance crashed."),
        Phase::Pending | Phase::Scheduling => return None,
    };
    Some(Event::new(reason, message))
}

fn conditions(was: &Status, is: &Status) -> Vec<Event> {
    let mut events = Vec::new();
    let known = ConditionType::Hypervisor.find(was).map(|known| known.message.as_str());
    if let Some(chosen) = ConditionType::Hypervisor.find(is)
        && Some(chosen.message.as_str()) != known
    {
        let text = format!("{}: {}", chosen.reason, chosen.message);
        events.push(Event::new(Reason::HypervisorChosen, text));
    }
    if ConditionType::NoBootableDevice.find(is).is_some()
        && ConditionType::NoBootableDevice.find(was).is_none()
    {
        events.push(Event::new(Reason::NoBootableDevice, "The firmware found nothing to start."));
    }
    if let Some(cause) = readiness_failure(is)
        && readiness_failure(was) != Some(cause)
    {
        events.push(Event::new(Reason::Unhealthy, cause));
    }
    if let Some(failed) =
        ConditionType::Unhealthy.find(is).filter(|_| ConditionType::Unhealthy.find(was).is_none())
    {
        events.push(Event::new(Reason::Unhealthy, failed.message.clone()));
        let text = "The guest failed its livenessProbe and is shut down.";
        events.push(Event::new(Reason::Killing, text));
    }
    events.extend(credentials(was, is));
    events
}

/// What became of keys and passwords, where that changes.
fn credentials(was: &Status, is: &Status) -> Option<Event> {
    let (now, known) = (
        ConditionType::AccessCredentialsSynchronized.find(is)?,
        ConditionType::AccessCredentialsSynchronized.find(was),
    );
    let same = known.is_some_and(|known| (&known.status, &known.message) == (&now.status, &now.message));
    if same {
        return None;
    }
    Some(match now.status == "True" {
        true => Event::new(Reason::AccessCredentialsSyncSuccess, "Access credentials sync successful."),
        false => {
            let text = format!("Access credentials sync failed: {}", now.message);
            Event::new(Reason::AccessCredentialsSyncFailed, text)
        }
    })
}

fn pause(was: &Status, is: &Status) -> Vec<Event> {
    let known = ConditionType::Paused.find(was);
    let running = is.phase == Phase::Running.as_str();
    match (ConditionType::Paused.find(is), known) {
        (Some(paused), _) if paused.reason == PAUSED_IO_ERROR => {
            let known: Vec<String> = known.iter().flat_map(|known| io_errors(&known.message)).collect();
            let fresh = io_errors(&paused.message).filter(|text| !known.contains(text));
            fresh.map(|text| Event::new(Reason::IoError, text)).collect()
        }
        (Some(paused), known) if known.is_none_or(|known| known.reason != paused.reason) => {
            vec![Event::new(Reason::Paused, "VirtualMachineInstance paused")]
        }
        (None, Some(_)) if running => vec![Event::new(Reason::Unpaused, "VirtualMachineInstance unpaused")],
        (Some(_), _) | (None, _) => Vec::new(),
    }
}

/// Events for volumes that were hotplugged or unplugged.
fn hotplug_events(had: &[VolumeStatus], is: &Status) -> Vec<Event> {
    let is_in = |volume: &&VolumeStatus| volume.hotplug_volume.is_some() && !volume.target.is_empty();
    let has = |list: &[VolumeStatus], name: &str| list.iter().filter(is_in).any(|one| one.name == name);
    let fresh = is.volume_status.iter().filter(is_in).filter(|volume| !has(had, &volume.name));
    // A volume that ends with its VMI is not unplugged.
    let runs = is.phase == Phase::Running.as_str();
    let gone = had.iter().filter(is_in).filter(|volume| runs && !has(&is.volume_status, &volume.name));
    let ready = |volume: &VolumeStatus| {
        let text = format!("volume {} is plugged into the guest as {}", volume.name, volume.target);
        Event::new(Reason::VolumeReady, text)
    };
    let unplugged = |volume: &VolumeStatus| {
        Event::new(Reason::VolumeUnplugged, format!("volume {} is out of the guest", volume.name))
    };
    fresh.map(ready).chain(gone.map(unplugged)).collect()
}

#[cfg(test)]
mod tests;
