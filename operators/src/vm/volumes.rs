//! What users ask for with `virtctl addvolume` and `removevolume`.

use vireo_api::v1::{
    AddVolumeOptions, DiskTarget, RemoveVolumeOptions, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec, Volume, VolumeRequest,
};

use super::life::Life;
use super::requests::Rejection;

/// The longest serial number of a virtio disk.
const VIRTIO_SERIAL: usize = 20;

/// Completes the options of an `addvolume`: the disk has the volume's name, is on the bus scsi and has the name as its
/// serial number, unless they say otherwise.
///
/// # Errors
/// When a part is missing or there are two sources.
pub fn complete(mut options: AddVolumeOptions) -> Result<AddVolumeOptions, Rejection> {
    let refuse = |message: &str| Err(Rejection::BadRequest(message.to_owned()));
    if options.name.is_empty() {
        return refuse("AddVolumeOptions requires name to be set");
    }
    let Some(disk) = options.disk.as_mut() else {
        return refuse("AddVolumeOptions requires disk to not be nil");
    };
    let Some(source) = options.volume_source.as_mut() else {
        return refuse("AddVolumeOptions requires VolumeSource to not be nil");
    };
    match (&mut source.persistent_volume_claim, &mut source.data_volume) {
        (Some(claim), None) => claim.hotpluggable = Some(true),
        (None, Some(source)) => source.hotpluggable = Some(true),
        (None, None) | (Some(_), Some(_)) => {
            return refuse("volumeSource: name one source: persistentVolumeClaim or dataVolume");
        }
    }
    options.name.clone_into(&mut disk.name);
    let shown = [disk.disk.is_some(), disk.lun.is_some(), disk.cdrom.is_some()];
    if !shown.contains(&true) {
        disk.disk = Some(DiskTarget::default());
    }
    if let Some(target) = disk.disk.as_mut().filter(|target| target.bus.is_empty()) {
        "scsi".clone_into(&mut target.bus);
    }
    if disk.serial.is_empty() {
        let virtio = disk.disk.as_ref().is_some_and(|target| target.bus == "virtio");
        let longest = if virtio { VIRTIO_SERIAL } else { usize::MAX };
        disk.serial = options.name.chars().take(longest).collect();
    }
    Ok(options)
}

/// The same of a `removevolume`.
///
/// # Errors
/// When no volume is named.
pub fn checked(options: RemoveVolumeOptions) -> Result<RemoveVolumeOptions, Rejection> {
    match options.name.as_str() {
        "" => Err(Rejection::BadRequest("RemoveVolumeOptions requires name to be set".to_owned())),
        _ => Ok(options),
    }
}

/// Whether a request can be carried out on an instance now.
///
/// # Errors
/// Why not.
pub fn plugs(instance: &VirtualMachineInstance, request: &VolumeRequest) -> Result<(), Rejection> {
    if instance.status.phase != "Running" || instance.metadata.deletion_timestamp.is_some() {
        return conflict("VMI is not running");
    }
    // Its ports are there already.
    if has_drive(&instance.spec, name(request)) {
        return Ok(());
    }
    if instance.spec.domain.devices.disable_hotplug == Some(true) {
        return conflict("spec.domain.devices.disableHotplug: nothing can be plugged into this VMI");
    }
    Ok(())
}

/// Whether a volume can be plugged into a spec or unplugged from it.
///
/// # Errors
/// When its name is taken, or no volume that can be unplugged has it.
pub fn fits(request: &VolumeRequest, spec: &VirtualMachineInstanceSpec) -> Result<(), Rejection> {
    if let Some(add) = &request.add_volume_options {
        let claim = add.volume_source.as_ref().and_then(|source| source.claim()).map(|claim| claim.name);
        let of = |volume: &Volume| volume.claim().is_some_and(|has| Some(has.name) == claim);
        if spec.volumes.iter().any(|volume| volume.name == add.name) {
            return conflict(format!("Unable to add volume [{}] because it already exists", add.name));
        }
        let is_drive = has_drive(spec, &add.name);
        if add.disk.as_ref().is_some_and(|disk| disk.cdrom.is_some()) && !is_drive {
            return conflict(format!(
                "Unable to add volume [{}]: no CD-ROM drive has that name, and none can be plugged in",
                add.name
            ));
        }
        if !is_drive && spec.domain.devices.disks.iter().any(|disk| disk.name == add.name) {
            return conflict(format!("Unable to add volume [{}]: a disk has that name", add.name));
        }
        if let Some(same) = spec.volumes.iter().find(|volume| of(volume)) {
            let (name, has) = (&add.name, &same.name);
            return conflict(format!(
                "Unable to add volume [{name}]: volume [{has}] is of the same claim already"
            ));
        }
    }
    if let Some(remove) = &request.remove_volume_options {
        match spec.volumes.iter().find(|volume| volume.name == remove.name) {
            None => {
                return conflict(format!(
                    "Unable to remove volume [{}] because it does not exist",
                    remove.name
                ));
            }
            Some(volume) if !is_hotpluggable(volume) => {
                return conflict(format!(
                    "Unable to remove volume [{}] because it is not hotpluggable",
                    remove.name
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Makes of a spec what a request asks for. Doing it again changes nothing.
pub fn apply(request: &VolumeRequest, spec: &mut VirtualMachineInstanceSpec) {
    if is_done(request, spec) {
        return;
    }
    if let Some(add) = &request.add_volume_options {
        if !has_drive(spec, &add.name) {
            spec.domain.devices.disks.extend(add.disk.clone());
        }
        let source = add.volume_source.clone().unwrap_or_default();
        spec.volumes.push(Volume {
            name: add.name.clone(),
            persistent_volume_claim: source.persistent_volume_claim.map(Box::new),
            data_volume: source.data_volume.map(Box::new),
            ..Volume::default()
        });
    }
    if let Some(remove) = &request.remove_volume_options {
        remove_volume(spec, &remove.name);
    }
}

/// Removes a volume with its disk. A CD-ROM drive stays.
pub(super) fn remove_volume(spec: &mut VirtualMachineInstanceSpec, name: &str) {
    spec.volumes.retain(|volume| volume.name != name);
    spec.domain.devices.disks.retain(|disk| disk.name != name || disk.cdrom.is_some());
}

/// Whether it has a CD-ROM drive of this name.
pub(super) fn has_drive(spec: &VirtualMachineInstanceSpec, name: &str) -> bool {
    spec.domain.devices.disks.iter().any(|disk| disk.name == name && disk.cdrom.is_some())
}

/// `addvolume` and `removevolume` of a VM: writes down what its controller is to do, with its template and with its
/// instance.
///
/// # Errors
/// When neither can have it, or another request about the volume is under way.
pub fn request(
    vm: &mut VirtualMachine,
    instance: Option<&VirtualMachineInstance>,
    request: VolumeRequest,
) -> Result<(), Rejection> {
    let requests = &vm.status.volume_requests;
    if requests.iter().any(|other| name(other) == name(&request)) {
        return conflict(format!("a request about volume [{}] is under way already", name(&request)));
    }
    let Some(template) = &vm.spec.template else { return conflict("the VM has no template") };
    let instance = instance.filter(|one| !Life::of(Some(one)).is_over());
    let adds = request.add_volume_options.is_some();
    let (kept, runs) = (fits(&request, &template.spec), instance.map(|one| fits(&request, &one.spec)));
    match (kept, runs) {
        (Ok(()), None | Some(Ok(()))) => {}
        // It may be in one of the two only, and is to go there.
        (Ok(()), Some(Err(_))) | (Err(_), Some(Ok(()))) if !adds => {}
        (Err(rejection), _) | (_, Some(Err(rejection))) => return Err(rejection),
    }
    if let Some(instance) = instance {
        plugs(instance, &request)?;
    }
    vm.status.volume_requests.push(request);
    Ok(())
}

/// Drops requests that are done.
pub(super) fn forget_done(
    requests: &mut Vec<VolumeRequest>,
    vm: &VirtualMachine,
    instance: Option<&VirtualMachineInstance>,
) {
    let kept = vm.spec.template.as_ref().map(|template| &template.spec);
    let runs = instance.filter(|one| !Life::of(Some(one)).is_over()).map(|one| &one.spec);
    requests.retain(|request| [kept, runs].into_iter().flatten().any(|spec| !is_done(request, spec)));
}

/// The spec without what may be plugged in, unplugged or switched while it runs.
pub(super) fn fixed(spec: &VirtualMachineInstanceSpec) -> VirtualMachineInstanceSpec {
    let mut spec = spec.clone();
    let hotpluggable: Vec<String> = spec
        .volumes
        .iter()
        .filter(|volume| is_hotpluggable(volume))
        .map(|volume| volume.name.clone())
        .collect();
    spec.volumes.retain(|volume| !hotpluggable.contains(&volume.name) && volume.memory_dump.is_none());
    spec.domain.devices.disks.retain(|disk| disk.cdrom.is_some() || !hotpluggable.contains(&disk.name));
    // NICs that come and go are compared by their names.
    for interface in spec.domain.devices.interfaces.iter_mut().filter(|one| !one.is_absent()) {
        interface.state.clear();
    }
    spec
}

fn is_done(request: &VolumeRequest, spec: &VirtualMachineInstanceSpec) -> bool {
    let has = |name: &str| spec.volumes.iter().find(|volume| volume.name == name);
    let added = request.add_volume_options.as_ref().is_none_or(|add| has(&add.name).is_some());
    let removed = request
        .remove_volume_options
        .as_ref()
        .is_none_or(|remove| has(&remove.name).is_none_or(|volume| !is_hotpluggable(volume)));
    added && removed
}

pub(super) fn is_hotpluggable(volume: &Volume) -> bool {
    volume.claim().is_some_and(|claim| claim.hotpluggable)
}

pub(super) fn name(request: &VolumeRequest) -> &str {
    let add = request.add_volume_options.as_ref().map(|add| add.name.as_str());
    let remove = request.remove_volume_options.as_ref().map(|remove| remove.name.as_str());
    add.or(remove).unwrap_or_default()
}

fn conflict<T>(message: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection::Conflict(message.into()))
}
