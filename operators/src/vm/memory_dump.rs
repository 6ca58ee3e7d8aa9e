//! Memory dumps of a VM: what users ask for with `virtctl memory-dump`, and how far it is.
//!
//! The claim is a volume `memoryDump` of the template and of the VMI, with the claim's name. The node agent writes the dump as
//! soon as the VMI has the volume, and reports that in the volume's status. The VMI then loses the volume; the template keeps it
//! until the association is removed, and VMIs that are started later do not get it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vireo_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec, VirtualMachineStatus, Volume,
};

use super::life::Life;
use super::requests::Rejection;
use super::volume_patch::SpecOwner;

/// How far a memory dump is. The names are KubeVirt's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The VM and its VMI get the volume.
    #[default]
    Associating,
    /// The memory is written.
    InProgress,
    /// It is written; the VMI loses the volume.
    Unmounting,
    /// All is done.
    Completed,
    /// The VM loses the volume.
    Dissociating,
    /// It is not written.
    Failed,
}

/// KubeVirt's `VirtualMachineMemoryDumpRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Request {
    claim_name: String,
    phase: Phase,
    #[serde(skip_serializing_if = "Option::is_none")]
    remove: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// A volume that is to be in specs, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpVolume {
    /// Its name, and that of its claim.
    pub claim: String,
    /// Whether the template is to have it; absent: as it is.
    pub in_template: Option<bool>,
    /// Whether the VMI is to have it; absent: as it is.
    pub in_vmi: Option<bool>,
}

fn read(status: &VirtualMachineStatus) -> Option<Request> {
    Request::deserialize(status.memory_dump_request.as_ref()?).ok()
}

/// The claim that a VM's memory was dumped to last.
pub fn claim(vm: &VirtualMachine) -> Option<String> {
    read(&vm.status).map(|request| request.claim_name)
}

/// `memorydump`: records the request in the status of the VM.
///
/// # Errors
/// When another request is under way, or the VM's memory is dumped to another claim.
pub fn request(vm: &mut VirtualMachine, claim: &str) -> Result<(), Rejection> {
    let name = &vm.metadata.name;
    let volumes = vm.spec.template.iter().flat_map(|template| &template.spec.volumes);
    match read(&vm.status) {
        Some(Request { phase: Phase::Dissociating, claim_name, .. }) => {
            return conflict(format!(
                "can't dump memory for pvc [{claim_name}] a remove memory dump request is in progress"
            ));
        }
        Some(Request { phase: Phase::Completed | Phase::Failed, claim_name, .. }) if claim_name != claim => {
            return conflict(format!(
                "unable to change the memory dump claim: the VM {name} has [{claim_name}]; remove that first"
            ));
        }
        None | Some(Request { phase: Phase::Completed | Phase::Failed, .. }) => {}
        Some(_) => return conflict(format!("memory dump request for vm [{name}] already in progress")),
    }
    if volumes.clone().any(|volume| volume.name == claim && !is_dump(volume, claim)) {
        return conflict(format!("the VM {name} has another volume called [{claim}]"));
    }
    let request = Request { claim_name: claim.to_owned(), ..Request::default() };
    vm.status.memory_dump_request = Some(json!(request));
    Ok(())
}

/// `removememorydump`: records in the status that the association is to be removed.
///
/// # Errors
/// When there is no association, or it is being removed.
pub fn remove(vm: &mut VirtualMachine) -> Result<(), Rejection> {
    let name = &vm.metadata.name;
    let Some(request) = read(&vm.status) else {
        return conflict(format!("can't remove memory dump association for vm {name}, no association found"));
    };
    if request.phase == Phase::Dissociating {
        return conflict(format!("memory dump remove request for vm [{name}] already in progress"));
    }
    let removed = Request { phase: Phase::Dissociating, remove: Some(true), ..request };
    vm.status.memory_dump_request = Some(json!(removed));
    Ok(())
}

/// Records a failure, after which the VMI loses the volume.
pub(super) fn fail(status: &mut VirtualMachineStatus, why: &str, now: Timestamp) {
    if let Some(request) = read(status) {
        status.memory_dump_request = Some(json!(failed(request, why, now)));
    }
}

fn failed(request: Request, why: &str, now: Timestamp) -> Request {
    Request {
        phase: Phase::Failed,
        end_timestamp: Some(now.to_string()),
        message: Some(why.to_owned()),
        ..request
    }
}

/// Advances the request of a VM by what its VMI shows.
pub(super) fn advance(
    status: &mut VirtualMachineStatus,
    vm: &VirtualMachine,
    instance: Option<&VirtualMachineInstance>,
    now: Timestamp,
) {
    let Some(request) = read(status) else { return };
    let instance = instance.filter(|one| Life::of(Some(one)) == Life::Alive);
    let claim = request.claim_name.as_str();
    let in_template = vm.spec.template.as_ref().is_some_and(|template| has(&template.spec, claim));
    let in_vmi = instance.is_some_and(|instance| has(&instance.spec, claim));
    let volume_status =
        instance.and_then(|instance| instance.status.volume_status.iter().find(|one| one.name == claim));
    let text = |name: &str| {
        let dump = volume_status?.memory_dump_volume.as_ref()?;
        dump.get(name).and_then(Value::as_str).map(str::to_owned)
    };
    let is_gone = !in_vmi && volume_status.is_none();
    let next = match request.phase {
        Phase::Associating | Phase::InProgress if instance.is_none() => {
            failed(request, "the VMI ended before its memory was dumped", now)
        }
        Phase::Associating if in_template && in_vmi => {
            Request { phase: Phase::InProgress, start_timestamp: Some(now.to_string()), ..request }
        }
        Phase::InProgress => match volume_status {
            Some(shown) if shown.phase == "MemoryDumpCompleted" => Request {
                phase: Phase::Unmounting,
                start_timestamp: text("startTimestamp").or_else(|| request.start_timestamp.clone()),
                end_timestamp: text("endTimestamp"),
                file_name: text("targetFileName"),
                ..request
            },
            Some(shown) if shown.phase == "MemoryDumpFailed" => failed(request, &shown.message, now),
            _ => return,
        },
        Phase::Unmounting if is_gone => Request { phase: Phase::Completed, ..request },
        Phase::Dissociating if is_gone && !in_template => {
            status.memory_dump_request = None;
            return;
        }
        _ => return,
    };
    status.memory_dump_request = Some(json!(next));
}

/// The volume that the VM or its VMI has and is not to have, or the reverse.
pub(super) fn change(
    status: &VirtualMachineStatus,
    vm: &VirtualMachine,
    instance: Option<&VirtualMachineInstance>,
) -> Option<DumpVolume> {
    let request = read(status)?;
    let claim = request.claim_name;
    let (in_template, in_vmi) = match request.phase {
        Phase::Associating | Phase::InProgress => (Some(true), true),
        Phase::Unmounting | Phase::Completed | Phase::Failed => (None, false),
        Phase::Dissociating => (Some(false), false),
    };
    let instance = instance.filter(|one| Life::of(Some(one)) == Life::Alive);
    let template = vm.spec.template.as_ref().map(|template| &template.spec);
    let differs = |spec: &VirtualMachineInstanceSpec, wanted: bool| has(spec, &claim) != wanted;
    let in_template = in_template.filter(|wanted| template.is_some_and(|spec| differs(spec, *wanted)));
    let in_vmi = Some(in_vmi).filter(|wanted| instance.is_some_and(|one| differs(&one.spec, *wanted)));
    (in_template.is_some() || in_vmi.is_some()).then_some(DumpVolume { claim, in_template, in_vmi })
}

/// Whether a VMI still has an earlier dump to a claim, from which a new one could not be distinguished: both have the name of
/// the claim.
pub fn is_left(instance: &VirtualMachineInstance, claim: &str) -> bool {
    let is_shown = instance
        .status
        .volume_status
        .iter()
        .any(|shown| shown.name == claim && shown.memory_dump_volume.is_some());
    is_shown || has(&instance.spec, claim)
}

fn has(spec: &VirtualMachineInstanceSpec, claim: &str) -> bool {
    spec.volumes.iter().any(|volume| is_dump(volume, claim))
}

fn is_dump(volume: &Volume, claim: &str) -> bool {
    volume.name == claim && volume.memory_dump.as_ref().is_some_and(|dump| dump.claim_name == claim)
}

/// Adds the volume to the spec in an object, or removes it. The rest stays as it was written.
pub(super) fn set_volume(object: &mut Value, owner: SpecOwner, claim: &str, is_wanted: bool) {
    let Some(spec) = object.pointer_mut(owner.pointer()) else { return };
    if !spec["volumes"].is_array() {
        spec["volumes"] = json!([]);
    }
    let Some(volumes) = spec["volumes"].as_array_mut() else { return };
    let is_it = |volume: &Value| volume["name"] == *claim && volume["memoryDump"]["claimName"] == *claim;
    match is_wanted {
        true if volumes.iter().any(is_it) => {}
        true => {
            let source = json!({"claimName": claim, "hotpluggable": true});
            volumes.push(json!({"name": claim, "memoryDump": source}));
        }
        false => volumes.retain(|volume| !is_it(volume)),
    }
}

fn conflict<T>(message: String) -> Result<T, Rejection> {
    Err(Rejection::Conflict(message))
}
