//! The resources of KubeVirt, and those of Kubernetes' storage, which this server provides itself.

use std::sync::Arc;

use serde_json::json;
use vireo_apiserver::resource::{Column, METADATA_LISTS, Resource, Row, Scale, Text, texts};
use vireo_operators::admission::{instancetype, pool, replicaset, vm, vmi};

use super::schema::DEFINITIONS;
use super::{causes, claim, volume};

const READY: &str = ".status.conditions[?(@.type=='Ready')].status";

/// A kind that `kubectl get all` shows.
fn among_all(row: Resource) -> Resource {
    Resource { categories: texts(&["all"]), ..row }
}

fn kubevirt(kind: &'static str) -> Resource {
    among_all(Resource::new("kubevirt.io", "v1", kind, &DEFINITIONS))
}

/// An instance type or a preference.
fn chosen(kind: &'static str) -> Resource {
    Resource::new("instancetype.kubevirt.io", "v1beta1", kind, &DEFINITIONS)
}

/// A set of `what`, which can be scaled.
fn set(of: Resource, what: &str) -> Resource {
    let said = |text: &str| Text::from(text.replace("{}", what));
    let described = |column, text| Column { description: said(text), ..column };
    Resource {
        status: true,
        columns: vec![
            described(Column::number("Desired", ".spec.replicas"), "Number of desired {}."),
            described(
                Column::number("Current", ".status.replicas"),
                "Number of managed {} that are neither final nor being deleted.",
            ),
            described(
                Column::number("Ready", ".status.readyReplicas"),
                "Number of managed {} that are ready to receive traffic.",
            ),
            Column::age(),
        ],
        scale: Some(Scale {
            wanted: "/spec/replicas".into(),
            there: "/status/replicas".into(),
            selector: Some("/status/labelSelector".into()),
        }),
        ..of
    }
}

/// PersistentVolumeClaims.
pub static CLAIMS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["pvc"]),
        status: true,
        columns: vec![
            Column::computed("Status", claim::phase).described("Current phase of the claim."),
            Column::text("Volume", ".spec.volumeName")
                .described("Name of the PersistentVolume that the claim is bound to."),
            Column::text("Capacity", ".status.capacity.storage")
                .described("Actual capacity of the volume that backs the claim."),
            Column::computed("Access Modes", claim::modes)
                .described("Actual access modes of the volume that backs the claim."),
            Column::text("StorageClass", ".spec.storageClassName")
                .described("Name of the StorageClass that the claim requires."),
            Column::computed("VolumeAttributesClass", |_| json!("<unset>"))
                .described("Name of the VolumeAttributesClass; not supported."),
            Column::age(),
            Column::text("VolumeMode", ".spec.volumeMode")
                .wide()
                .described("Type of the volume: Filesystem or Block."),
        ],
        merge: Some(&[METADATA_LISTS[0], METADATA_LISTS[1], ("status.conditions", "type")]),
        admit: claim::admit,
        ..Resource::kubernetes("", "PersistentVolumeClaim")
    })
});

/// PersistentVolumes.
pub static VOLUMES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["pv"]),
        namespaced: false,
        status: true,
        columns: vec![
            Column::text("Capacity", ".spec.capacity.storage").described("Capacity of the volume."),
            Column::computed("Access Modes", |volume| {
                claim::short_modes(volume.pointer("/spec/accessModes"))
            })
            .described("Ways in which the volume can be mounted."),
            Column::text("Reclaim Policy", ".spec.persistentVolumeReclaimPolicy")
                .described("What happens to the volume when it is released from its claim."),
            Column::computed("Status", claim::phase).described("Current phase of the volume."),
            Column::computed("Claim", volume::claimed)
                .described("Namespace and name of the claim that the volume is bound to."),
            Column::text("StorageClass", ".spec.storageClassName")
                .described("Name of the StorageClass that the volume belongs to."),
            Column::computed("VolumeAttributesClass", |_| json!("<unset>"))
                .described("Name of the VolumeAttributesClass; not supported."),
            Column::text("Reason", ".status.reason")
                .described("Brief CamelCase string that describes a failure."),
            Column::age(),
            Column::text("VolumeMode", ".spec.volumeMode")
                .wide()
                .described("Type of the volume: Filesystem or Block."),
        ],
        ..Resource::kubernetes("", "PersistentVolume")
    })
});

/// StorageClasses.
pub static STORAGE_CLASSES: Row = Row::new(|| {
    Arc::new(Resource {
        plural: "storageclasses".into(),
        short_names: texts(&["sc"]),
        namespaced: false,
        columns: vec![
            Column::computed("Name", volume::class_name)
                .described("Name of the class; the default class is marked."),
            Column::text("Provisioner", ".provisioner").described("Type of the provisioner."),
            Column::text("ReclaimPolicy", ".reclaimPolicy")
                .described("Reclaim policy of the volumes of the class."),
            Column::text("VolumeBindingMode", ".volumeBindingMode")
                .described("How claims of the class are provisioned and bound."),
            Column::text("AllowVolumeExpansion", ".allowVolumeExpansion")
                .described("Whether claims of the class can be expanded."),
            Column::age(),
        ],
        admit: volume::class,
        ..Resource::kubernetes("storage.k8s.io", "StorageClass")
    })
});

/// VirtualMachineInstances.
pub static VMIS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmi", "vmis"]),
        status: true,
        columns: vec![
            Column::age(),
            Column::text("Phase", ".status.phase").described("Current phase of the VMI."),
            Column::text("IP", ".status.interfaces[0].ipAddress")
                .described("First IP address of the first interface."),
            Column::text("NodeName", ".status.nodeName").described("Name of the node where the VMI runs."),
            Column::text("Ready", READY).described("Status of the Ready condition."),
            Column::text("Live-Migratable", ".status.conditions[?(@.type=='LiveMigratable')].status")
                .wide()
                .described("Status of the LiveMigratable condition."),
            Column::text("Paused", ".status.conditions[?(@.type=='Paused')].status")
                .wide()
                .described("Status of the Paused condition."),
        ],
        admit: |new, old| causes(vmi::admit(new, old)),
        ..kubevirt("VirtualMachineInstance")
    })
});

/// VirtualMachines.
pub static VMS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vm", "vms"]),
        status: true,
        columns: vec![
            Column::age(),
            Column::text("Status", ".status.printableStatus").described("Human-readable status of the VM."),
            Column::text("Ready", READY).described("Status of the Ready condition."),
        ],
        admit: |new, old| causes(vm::admit(new, old)),
        ..kubevirt("VirtualMachine")
    })
});

/// VirtualMachineInstanceReplicaSets.
pub static REPLICA_SETS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmirs", "vmirss"]),
        admit: |new, old| causes(replicaset::admit(new, old)),
        ..set(kubevirt("VirtualMachineInstanceReplicaSet"), "VirtualMachineInstances")
    })
});

/// VirtualMachinePools.
pub static POOLS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmpool", "vmpools"]),
        admit: |new, old| causes(pool::admit(new, old)),
        ..set(
            among_all(Resource::new("pool.kubevirt.io", "v1beta1", "VirtualMachinePool", &DEFINITIONS)),
            "VirtualMachines",
        )
    })
});

/// VirtualMachineInstancetypes.
pub static INSTANCETYPES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vminstancetype", "vminstancetypes", "vmf", "vmfs"]),
        admit: |new, _| causes(instancetype::instancetype(new)),
        ..among_all(chosen("VirtualMachineInstancetype"))
    })
});

/// VirtualMachineClusterInstancetypes.
pub static CLUSTER_INSTANCETYPES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"]),
        namespaced: false,
        admit: |new, _| causes(instancetype::cluster_instancetype(new)),
        ..chosen("VirtualMachineClusterInstancetype")
    })
});

/// VirtualMachinePreferences.
pub static PREFERENCES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmpref", "vmprefs", "vmp", "vmps"]),
        admit: |new, _| causes(instancetype::preference(new)),
        ..among_all(chosen("VirtualMachinePreference"))
    })
});

/// VirtualMachineClusterPreferences.
pub static CLUSTER_PREFERENCES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmcp", "vmcps"]),
        namespaced: false,
        admit: |new, _| causes(instancetype::cluster_preference(new)),
        ..chosen("VirtualMachineClusterPreference")
    })
});

/// All of them.
pub fn rows() -> Vec<Arc<Resource>> {
    let rows = [
        &CLAIMS,
        &VOLUMES,
        &STORAGE_CLASSES,
        &VMIS,
        &VMS,
        &REPLICA_SETS,
        &POOLS,
        &INSTANCETYPES,
        &CLUSTER_INSTANCETYPES,
        &PREFERENCES,
        &CLUSTER_PREFERENCES,
    ];
    rows.into_iter().map(|row| Arc::clone(row)).collect()
}
