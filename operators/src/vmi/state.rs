//! The state of a VM beside its disks, which outlives its instances: a claim, which the launcher Pod has mounted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Pod, Volume,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt as _;
use vireo_api::names::{EFI_VARIABLES, STATE_DIRECTORY, TPM_STATE};
use vireo_api::v1::{TpmDevice, VirtualMachineInstance};
use vireo_client::Kind;

use super::claims::note_files;
use super::template::label_value;
use super::volumes::mount;

/// The label of a claim with the name of the VM whose state it has; KubeVirt's. The names of claims begin with it as well.
const LABEL: &str = "persistent-state-for";
/// As much as KubeVirt requests.
const SIZE: &str = "10Mi";
/// The volume of the Pod.
const VOLUME: &str = "vm-state";

/// Whether an instance has state that is kept.
pub(super) fn is_kept(vmi: &VirtualMachineInstance) -> bool {
    let firmware = vmi.spec.domain.firmware.as_ref();
    let efi = firmware.and_then(|firmware| firmware.bootloader.as_ref()?.efi.as_ref());
    let tpm = vmi.spec.domain.devices.tpm.as_ref();
    efi.is_some_and(|efi| efi.persistent == Some(true)) || tpm.is_some_and(TpmDevice::is_persistent)
}

/// Selects the claims that may have an instance's state.
pub(super) fn selector(vmi: &VirtualMachineInstance) -> String {
    format!("{LABEL}={}", label_value(&vmi.metadata.name))
}

/// The claim with an instance's state, of those that the selector finds: one of its VM, or one without an owner, as one that was
/// restored from a backup. One that is being deleted is of a VM that had the same name.
pub(super) fn find<'a>(
    vmi: &VirtualMachineInstance,
    claims: &'a [PersistentVolumeClaim],
) -> Option<&'a PersistentVolumeClaim> {
    let owner = owner(vmi);
    let is_own = |claim: &&PersistentVolumeClaim| {
        let owners = claim.owner_references();
        let is_owned = owners.is_empty() || owners.iter().any(|one| one.uid == owner.uid);
        is_owned && claim.metadata.deletion_timestamp.is_none()
    };
    claims.iter().filter(is_own).min_by_key(|claim| claim.name_any())
}

/// A new claim for an instance's state, of a StorageClass or of the default one. It goes with the VM, or with an instance
/// that has none.
pub(super) fn claim(vmi: &VirtualMachineInstance, storage_class: Option<&str>) -> PersistentVolumeClaim {
    let name = &vmi.metadata.name;
    let requests = BTreeMap::from([("storage".to_owned(), Quantity(SIZE.to_owned()))]);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(format!("{LABEL}-{name}")),
            namespace: Some(vmi.metadata.namespace.clone()),
            labels: Some(BTreeMap::from([(LABEL.to_owned(), label_value(name))])),
            owner_references: Some(vec![owner(vmi)]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(requests),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: storage_class.map(str::to_owned),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// The VM of an instance, or the instance.
fn owner(vmi: &VirtualMachineInstance) -> OwnerReference {
    let of = |kind: Kind, name: &str, uid: &str| OwnerReference {
        api_version: kind.api_version(),
        kind: kind.kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let mut owners = vmi.metadata.owner_references.iter();
    match owners.find(|owner| owner.kind == Kind::VM.kind && owner.controller == Some(true)) {
        Some(vm) => of(Kind::VM, &vm.name, &vm.uid),
        None => of(Kind::VMI, &vmi.metadata.name, &vmi.metadata.uid),
    }
}

/// Adds the claim of this name to a launcher Pod, whose first container is the launcher.
pub(super) fn add(pod: &mut Pod, name: &str) {
    let Some(spec) = pod.spec.as_mut() else { return };
    let Some(container) = spec.containers.first_mut() else { return };
    container.volume_mounts.get_or_insert_default().push(mount(VOLUME, STATE_DIRECTORY, false));
    spec.volumes.get_or_insert_default().push(Volume {
        name: VOLUME.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: name.to_owned(),
            read_only: None,
        }),
        ..Volume::default()
    });
    note_files(pod, [EFI_VARIABLES, TPM_STATE].map(|path| (path.to_owned(), Some(0))));
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, PodSpec};
    use serde_json::{Value, json};
    use vireo_api::names::CLAIM_DISKS_ANNOTATION;

    use super::*;

    fn vmi(owners: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "demo", "namespace": "n", "uid": "i", "ownerReferences": owners},
            "spec": {"domain": {"firmware": {"bootloader": {"efi": {"persistent": true}}}}},
        }))
        .unwrap()
    }

    fn of_vm() -> VirtualMachineInstance {
        vmi(json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "demo", "uid": "v",
            "controller": true}]))
    }

    #[test]
    fn only_persistent_state_is_kept() {
        assert!(is_kept(&of_vm()));
        for (tpm, kept) in [
            (json!({"persistent": true}), true),
            (json!({"enabled": false, "persistent": true}), false),
            (json!({}), false),
        ] {
            let spec = json!({"spec": {"domain": {"devices": {"tpm": tpm}}}});
            assert_eq!(is_kept(&serde_json::from_value(spec).unwrap()), kept, "{tpm}");
        }
        for bootloader in
            [json!({}), json!({"bios": {}}), json!({"efi": {}}), json!({"efi": {"persistent": false}})]
        {
            let spec = json!({"spec": {"domain": {"firmware": {"bootloader": bootloader}}}});
            assert!(!is_kept(&serde_json::from_value(spec).unwrap()), "{bootloader}");
        }
    }

    #[test]
    fn a_claim_goes_with_its_vm() {
        let made = json!(claim(&of_vm(), Some("fast")));
        assert_eq!(
            made,
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "persistent-state-for-demo", "namespace": "n", "labels": {"persistent-state-for": "demo"},
                    "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "demo",
                        "uid": "v", "controller": true, "blockOwnerDeletion": true}],
                },
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}},
                    "storageClassName": "fast", "volumeMode": "Filesystem"},
            })
        );
        let of_set = json!([{"kind": "VirtualMachineInstanceReplicaSet", "name": "set", "uid": "s", "controller": true}]);
        for owners in [json!([]), of_set] {
            let made = json!(claim(&vmi(owners), None));
            assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "i");
            assert_eq!(made["spec"].get("storageClassName"), None);
        }
    }

    #[test]
    fn state_is_that_of_the_same_vm_or_of_none() {
        let claim = |name: &str, owner: Option<&str>, deleted: bool| -> PersistentVolumeClaim {
            let owners =
                owner.map(|uid| json!([{"apiVersion": "v1", "kind": "X", "name": "demo", "uid": uid}]));
            let deleted = deleted.then_some("2026-11-25T10:00:00Z");
            serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": owners,
                "deletionTimestamp": deleted}}))
            .unwrap()
        };
        let claims = [
            claim("a", Some("another"), false),
            claim("b", Some("v"), true),
            claim("d", None, false),
            claim("c", Some("v"), false),
        ];
        assert_eq!(find(&of_vm(), &claims).unwrap().name_any(), "c");
        assert_eq!(find(&of_vm(), &claims[..3]).unwrap().name_any(), "d");
        assert_eq!(find(&of_vm(), &claims[..2]), None);
    }

    #[test]
    fn the_launcher_has_the_claim_beside_its_disks() {
        let containers = vec![Container::default()];
        let mut pod = Pod { spec: Some(PodSpec { containers, ..PodSpec::default() }), ..Pod::default() };
        let noted = (CLAIM_DISKS_ANNOTATION.to_owned(), "{\"/dev/a\":null}".to_owned());
        pod.metadata.annotations = Some([noted].into());
        add(&mut pod, "claim");
        let pod = json!(pod);
        let volume = json!({"name": "vm-state", "persistentVolumeClaim": {"claimName": "claim"}});
        assert_eq!(pod["spec"]["volumes"], json!([volume]));
        let mount = json!({"name": "vm-state", "mountPath": "/var/run/kubevirt-private/vm-state"});
        assert_eq!(pod["spec"]["containers"][0]["volumeMounts"], json!([mount]));
        assert_eq!(
            pod["metadata"]["annotations"][CLAIM_DISKS_ANNOTATION],
            "{\"/dev/a\":null,\"/var/run/kubevirt-private/vm-state/efi-variables.fd\":0,\
             \"/var/run/kubevirt-private/vm-state/tpm-state\":0}"
        );
    }
}
