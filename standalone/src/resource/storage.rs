//! The resources of Kubernetes' storage, which this server provides itself.

use std::sync::Arc;

use serde_json::json;
use vireo_apiserver::resource::{Column, METADATA_LISTS, Resource, Row, texts};

use super::{claim, volume};

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
