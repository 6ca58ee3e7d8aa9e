//! The resources of KubeVirt, and those of Kubernetes' storage, which this server provides itself.

use std::sync::Arc;

use serde_json::json;
use vireo_apiserver::resource::{Column, METADATA_LISTS, Resource, Row, Scale, Text, texts};

use super::schema::DEFINITIONS;
use super::{claim, instancetype, machine, pool, replicaset, vmi, volume};

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
            described(Column::number("Desired", ".spec.replicas"), "Number of desired {}"),
            described(
                Column::number("Current", ".status.replicas"),
                "Number of managed and not final or deleted {}",
            ),
            described(
                Column::number("Ready", ".status.readyReplicas"),
                "Number of managed {} which are ready to receive traffic",
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
            Column::computed("Status", claim::phase),
            Column::text("Volume", ".spec.volumeName"),
            Column::text("Capacity", ".status.capacity.storage"),
            Column::computed("Access Modes", claim::modes),
            Column::text("StorageClass", ".spec.storageClassName"),
            Column::computed("VolumeAttributesClass", |_| json!("<unset>")),
            Column::age(),
            Column::text("VolumeMode", ".spec.volumeMode").wide(),
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
            Column::text("Capacity", ".spec.capacity.storage"),
            Column::computed("Access Modes", |volume| {
                claim::short_modes(volume.pointer("/spec/accessModes"))
            }),
            Column::text("Reclaim Policy", ".spec.persistentVolumeReclaimPolicy"),
            Column::computed("Status", claim::phase),
            Column::computed("Claim", volume::claimed),
            Column::text("StorageClass", ".spec.storageClassName"),
            Column::computed("VolumeAttributesClass", |_| json!("<unset>")),
            Column::text("Reason", ".status.reason"),
            Column::age(),
            Column::text("VolumeMode", ".spec.volumeMode").wide(),
        ],
        admit: volume::volume,
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
            Column::computed("Name", volume::class_name),
            Column::text("Provisioner", ".provisioner"),
            Column::text("ReclaimPolicy", ".reclaimPolicy"),
            Column::text("VolumeBindingMode", ".volumeBindingMode"),
            Column::text("AllowVolumeExpansion", ".allowVolumeExpansion"),
            Column::age(),
        ],
        admit: volume::class,
        ..Resource::kubernetes("storage.k8s.io", "StorageClass")
    })
});

/// VirtualMachineInstances. As KubeVirt's: what users write to its status is put back.
pub static VMIS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmi", "vmis"]),
        columns: vec![
            Column::age(),
            Column::text("Phase", ".status.phase"),
            Column::text("IP", ".status.interfaces[0].ipAddress"),
            Column::text("NodeName", ".status.nodeName"),
            Column::text("Ready", READY),
            Column::text("Live-Migratable", ".status.conditions[?(@.type=='LiveMigratable')].status").wide(),
            Column::text("Paused", ".status.conditions[?(@.type=='Paused')].status").wide(),
        ],
        admit: vmi::admit,
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
            Column::text("Status", ".status.printableStatus").described("Human Readable Status"),
            Column::text("Ready", READY),
        ],
        admit: machine::admit,
        ..kubevirt("VirtualMachine")
    })
});

/// VirtualMachineInstanceReplicaSets.
pub static REPLICA_SETS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmirs", "vmirss"]),
        admit: replicaset::admit,
        ..set(kubevirt("VirtualMachineInstanceReplicaSet"), "VirtualMachineInstances")
    })
});

/// VirtualMachinePools.
pub static POOLS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmpool", "vmpools"]),
        admit: pool::admit,
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
        admit: instancetype::instancetype,
        ..among_all(chosen("VirtualMachineInstancetype"))
    })
});

/// VirtualMachineClusterInstancetypes.
pub static CLUSTER_INSTANCETYPES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"]),
        namespaced: false,
        admit: instancetype::cluster_instancetype,
        ..chosen("VirtualMachineClusterInstancetype")
    })
});

/// VirtualMachinePreferences.
pub static PREFERENCES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmpref", "vmprefs", "vmp", "vmps"]),
        admit: instancetype::preference,
        ..among_all(chosen("VirtualMachinePreference"))
    })
});

/// VirtualMachineClusterPreferences.
pub static CLUSTER_PREFERENCES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmcp", "vmcps"]),
        namespaced: false,
        admit: instancetype::cluster_preference,
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
