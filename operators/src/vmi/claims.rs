//! The claims of an instance in its launcher Pod: the kubelet mounts them into the container `compute`, where the node agent
//! opens their disks for the launcher.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume, VolumeDevice,
};
use serde_json::json;
use vireo_api::names::{CLAIM_DISKS_ANNOTATION, claim_device, claim_directory, claim_disk};
use vireo_api::spec::Bytes;
use vireo_api::v1::{VirtualMachineInstance, VolumeClaim};

use super::template::USER;
use super::volumes::mount;

/// What a launcher Pod has to know of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Whether it is a block device, and not a file system with a disk in it.
    block: bool,
    /// In bytes; what is requested while it is not bound.
    capacity: u64,
}

/// Claims by their names.
pub type Claims = BTreeMap<String, Claim>;

impl From<&PersistentVolumeClaim> for Claim {
    fn from(claim: &PersistentVolumeClaim) -> Self {
        let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
        let bound = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
        let requested = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
        let capacity = bound.or(requested).and_then(|size| size.0.parse::<Bytes>().ok());
        Self {
            block: spec.is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block")),
            capacity: capacity.map_or(0, Bytes::get),
        }
    }
}

/// The claims that an instance starts with, by its volumes. Others are attached once it runs.
pub(super) fn of(vmi: &VirtualMachineInstance) -> impl Iterator<Item = (&str, VolumeClaim<'_>)> {
    let claims = vmi.spec.volumes.iter().filter_map(|volume| Some((&*volume.name, volume.used_claim()?)));
    claims.filter(|(_, claim)| !claim.hotpluggable)
}

/// Adds an instance's claims to its launcher Pod, whose first container is the launcher.
pub(super) fn add(pod: &mut Pod, vmi: &VirtualMachineInstance, claims: &Claims) {
    let Some(spec) = pod.spec.as_mut() else { return };
    let Some(container) = spec.containers.first_mut() else { return };
    let mut disks = BTreeMap::new();
    for (number, (volume, source)) in of(vmi).enumerate() {
        let Some(claim) = claims.get(source.name) else { continue };
        let read_only = source.read_only.then_some(true);
        // The name of the instance's volume may be one of the Pod's other volumes.
        let name = format!("claim-{number}");
        spec.volumes.get_or_insert_default().push(Volume {
            name: name.clone(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: source.name.to_owned(),
                read_only,
            }),
            ..Volume::default()
        });
        let paths = DiskPaths { disk: claim_disk(volume), device: claim_device(volume) };
        let mounted_read_only = read_only.or_else(|| source.is_backing.then_some(true));
        let (path, bytes) = attach(container, (name, paths), claim, mounted_read_only);
        // The guest shares the directory: there is no disk in it.
        if !is_filesystem(vmi, volume) {
            disks.insert(path, bytes);
        }
    }
    if of(vmi).any(|(volume, _)| is_filesystem(vmi, volume)) {
        let context = spec.security_context.get_or_insert_default();
        // A file system that was just made belongs to root; what is in one that was shared before stays as it is.
        context.fs_group = Some(USER);
        context.fs_group_change_policy = Some("OnRootMismatch".to_owned());
    }
    if !disks.is_empty() {
        note_files(pod, disks);
    }
}

/// Whether the guest of an instance shares the file system of a volume.
fn is_filesystem(vmi: &VirtualMachineInstance, volume: &str) -> bool {
    vmi.spec.domain.devices.filesystems.iter().any(|filesystem| filesystem.name == volume)
}

/// The directories, in the launcher Pod of an instance, of the claims whose file systems its guest shares and writes to.
pub(super) fn writable_filesystems(vmi: &VirtualMachineInstance) -> impl Iterator<Item = String> {
    let shared = of(vmi).filter(|(volume, claim)| !claim.read_only && is_filesystem(vmi, volume));
    shared.map(|(volume, _)| claim_directory(volume))
}

/// Notes files of claims in a launcher Pod beside those that are noted already: the node agent opens them.
pub(super) fn note_files(pod: &mut Pod, files: impl IntoIterator<Item = (String, Option<u64>)>) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    let noted = annotations.get(CLAIM_DISKS_ANNOTATION).and_then(|noted| serde_json::from_str(noted).ok());
    let mut noted: BTreeMap<String, Option<u64>> = noted.unwrap_or_default();
    noted.extend(files);
    annotations.insert(CLAIM_DISKS_ANNOTATION.to_owned(), json!(noted).to_string());
}

/// Where a container has the disk of a claim.
pub(crate) struct DiskPaths {
    /// The file in its file system.
    pub(crate) disk: String,
    /// Or the block device that it is.
    pub(crate) device: String,
}

/// Gives a container a volume of its Pod. Returns the path of the disk, and its size in bytes where it has to be made first.
pub(crate) fn attach(
    container: &mut Container,
    (name, paths): (String, DiskPaths),
    claim: &Claim,
    read_only: Option<bool>,
) -> (String, Option<u64>) {
    if claim.block {
        let device = VolumeDevice { name, device_path: paths.device.clone() };
        container.volume_devices.get_or_insert_default().push(device);
        return (paths.device, None);
    }
    let directory = paths.disk.rsplit_once('/').map_or("", |(directory, _)| directory);
    let read_only = read_only == Some(true);
    container.volume_mounts.get_or_insert_default().push(mount(&name, directory, read_only));
    (paths.disk, Some(claim.capacity))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::Value;

    use super::*;

    fn claim(object: Value) -> Claim {
        Claim::from(&serde_json::from_value::<PersistentVolumeClaim>(object).unwrap())
    }

    #[test]
    fn the_size_of_a_claim_is_what_it_has_or_what_it_requests() {
        let spec = json!({"resources": {"requests": {"storage": "1Gi"}}});
        let pending = claim(json!({"spec": spec}));
        assert_eq!(pending, Claim { block: false, capacity: 1 << 30 });
        let bound = claim(json!({"spec": spec, "status": {"capacity": {"storage": "2Gi"}}}));
        assert_eq!(bound.capacity, 2 << 30);
        assert!(claim(json!({"spec": {"volumeMode": "Block"}})).block);
    }

    #[test]
    fn a_file_system_that_is_shared_is_the_launchers_and_has_no_disk() {
        let vmi = json!({"spec": {
            "domain": {"devices": {"filesystems": [{"name": "shared", "virtiofs": {}}]}},
            "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "files"}}],
        }});
        let claims = Claims::from([("files".to_owned(), Claim { block: false, capacity: 4096 })]);
        let containers = vec![Container::default()];
        let mut pod = Pod { spec: Some(PodSpec { containers, ..PodSpec::default() }), ..Pod::default() };
        let mut vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        add(&mut pod, &vmi, &claims);
        assert_eq!(pod.metadata.annotations, None);
        let directory = "/var/run/kubevirt-private/vmi-disks/shared";
        assert_eq!(writable_filesystems(&vmi).collect::<Vec<_>>(), [directory]);
        let mount = json!({"name": "claim-0", "mountPath": directory});
        assert_eq!(json!(pod)["spec"]["containers"][0]["volumeMounts"], json!([mount]));
        let context = json!({"fsGroup": 107, "fsGroupChangePolicy": "OnRootMismatch"});
        assert_eq!(json!(pod)["spec"]["securityContext"], context);
        vmi.spec.volumes[0].persistent_volume_claim.as_mut().unwrap().read_only = Some(true);
        assert_eq!(writable_filesystems(&vmi).count(), 0);
    }

    #[test]
    fn claims_are_mounted_or_are_devices() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({"spec": {"volumes": [
            {"name": "seed", "cloudInitNoCloud": {"userData": "x"}},
            {"name": "sockets", "persistentVolumeClaim": {"claimName": "files"}},
            {"name": "raw", "persistentVolumeClaim": {"claimName": "device", "readOnly": true}},
            {"name": "layer", "ephemeral": {"persistentVolumeClaim": {"claimName": "files"}}},
            {"name": "later", "persistentVolumeClaim": {"claimName": "files", "hotpluggable": true}},
        ]}}))
        .unwrap();
        let claims = Claims::from([
            ("files".to_owned(), Claim { block: false, capacity: 4096 }),
            ("device".to_owned(), Claim { block: true, capacity: 4096 }),
        ]);
        let containers = vec![Container::default()];
        let mut pod = Pod { spec: Some(PodSpec { containers, ..PodSpec::default() }), ..Pod::default() };
        add(&mut pod, &vmi, &claims);
        let pod = json!(pod);
        assert_eq!(pod["spec"].get("securityContext"), None, "the node agent opens disks");
        assert_eq!(
            pod["spec"]["volumes"],
            json!([{"name": "claim-0", "persistentVolumeClaim": {"claimName": "files"}},
                {"name": "claim-1", "persistentVolumeClaim": {"claimName": "device", "readOnly": true}},
                {"name": "claim-2", "persistentVolumeClaim": {"claimName": "files"}}])
        );
        let container = &pod["spec"]["containers"][0];
        let mount = json!({"name": "claim-0", "mountPath": "/var/run/kubevirt-private/vmi-disks/sockets"});
        let mut layer = json!({"name": "claim-2", "mountPath": "/var/run/kubevirt-private/vmi-disks/layer"});
        layer["readOnly"] = json!(true);
        assert_eq!(container["volumeMounts"], json!([mount, layer]));
        assert_eq!(
            container["volumeDevices"],
            json!([{"name": "claim-1", "devicePath": "/dev/vmi-disks/raw"}])
        );
        assert_eq!(
            pod["metadata"]["annotations"][CLAIM_DISKS_ANNOTATION],
            "{\"/dev/vmi-disks/raw\":null,\"/var/run/kubevirt-private/vmi-disks/layer/disk.img\":4096,\
             \"/var/run/kubevirt-private/vmi-disks/sockets/disk.img\":4096}"
        );
    }
}
