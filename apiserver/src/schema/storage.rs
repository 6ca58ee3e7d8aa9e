//! The kinds of storage, as tables.

use super::core::Definition;

pub(crate) const DEFINITIONS: &[Definition] = &[
    (
        "PersistentVolumeClaim",
        "A user's request for and claim to a persistent volume.",
        &[
            ("spec", "ClaimSpec", "Desired characteristics of the volume."),
            ("status", "ClaimStatus", "Current information about the claim. Read-only."),
        ],
    ),
    (
        "ClaimSpec",
        "Desired characteristics of the volume of a claim. It is immutable after creation, except for resources.requests.",
        &[
            (
                "accessModes",
                "[]string",
                "Desired access modes of the volume: ReadWriteOnce, ReadOnlyMany, ReadWriteMany. At least one is required. The class local treats them alike.",
            ),
            ("resources", "ClaimResources", "Minimum resources that the volume should have."),
            (
                "storageClassName",
                "string",
                "Name of the StorageClass that the claim requires. Defaults to local.",
            ),
            (
                "volumeMode",
                "string",
                "Type of volume that the claim requires: Filesystem or Block. Defaults to Filesystem.",
            ),
            (
                "volumeName",
                "string",
                "Name of the PersistentVolume that the claim is bound to. Set by the server; it cannot be requested.",
            ),
            (
                "volumeAttributesClassName",
                "string",
                "Name of the VolumeAttributesClass of the claim. Not supported.",
            ),
            (
                "selector",
                "any",
                "Label query over volumes to consider for binding. Not supported: volumes are provisioned for their claims.",
            ),
            ("dataSource", "any", "Object from which the volume is populated. Not supported."),
            (
                "dataSourceRef",
                "any",
                "Object from which the volume is populated, of any kind. Not supported.",
            ),
        ],
    ),
    (
        "ClaimResources",
        "Storage resource requirements of a claim.",
        &[
            (
                "requests",
                "{}any",
                "Minimum amount of resources required: storage. It may increase, which expands the volume.",
            ),
            ("limits", "{}any", "Maximum amount of resources allowed. Not used by the local class."),
        ],
    ),
    (
        "ClaimStatus",
        "Current status of a claim.",
        &[
            ("phase", "string", "Current phase of the claim: Pending, Bound or Lost."),
            ("accessModes", "[]string", "Actual access modes of the volume that backs the claim."),
            ("capacity", "{}any", "Actual resources of the volume that backs the claim."),
            (
                "conditions",
                "[type]any",
                "Current conditions of the claim, such as the progress of its expansion.",
            ),
            (
                "allocatedResources",
                "{}any",
                "Resources allocated to the claim, including capacity that is being added. Not used by this server.",
            ),
            (
                "allocatedResourceStatuses",
                "{}string",
                "Status of resources that are being resized. Not used by this server.",
            ),
            (
                "currentVolumeAttributesClassName",
                "string",
                "Name of the VolumeAttributesClass in use. Not used by this server.",
            ),
            (
                "modifyVolumeStatus",
                "any",
                "Status of a change of the VolumeAttributesClass. Not used by this server.",
            ),
        ],
    ),
    (
        "PersistentVolume",
        "A storage resource, provisioned by the server for a claim. Users cannot create it.",
        &[
            ("spec", "PersistentVolumeSpec", "Specification of the volume."),
            ("status", "PersistentVolumeStatus", "Current information about the volume. Read-only."),
        ],
    ),
    (
        "PersistentVolumeSpec",
        "Specification of a persistent volume.",
        &[
            ("capacity", "{}any", "Resources and capacity of the volume."),
            (
                "accessModes",
                "[]string",
                "Ways in which the volume can be mounted: those that its claim requests.",
            ),
            (
                "claimRef",
                "!ObjectReference",
                "Part of the bidirectional binding between the volume and its PersistentVolumeClaim.",
            ),
            (
                "persistentVolumeReclaimPolicy",
                "string",
                "What happens to the volume when it is released from its claim. The only policy is Delete: the volume is deleted.",
            ),
            ("storageClassName", "string", "Name of the StorageClass that the volume belongs to."),
            (
                "volumeMode",
                "string",
                "Whether the volume is used with a formatted filesystem or as a raw block device: Filesystem or Block, as its claim requests.",
            ),
            ("local", "any", "Directly attached storage with node affinity: the directory of the volume."),
            ("nodeAffinity", "any", "Constraints on the nodes from which the volume can be accessed."),
            ("mountOptions", "[]string", "Mount options. Not used by this server."),
        ],
    ),
    (
        "PersistentVolumeStatus",
        "Current status of a persistent volume.",
        &[
            (
                "phase",
                "string",
                "Whether the volume is bound to its claim: Bound, or Failed if its disk is gone.",
            ),
            (
                "reason",
                "string",
                "Brief CamelCase string that describes a failure, for programs and the CLI.",
            ),
            ("message", "string", "Human-readable details about why the volume is in this state."),
            (
                "lastPhaseTransitionTime",
                "time",
                "Time at which the phase last changed. Not used by this server.",
            ),
        ],
    ),
    (
        "StorageClass",
        "Describes the parameters of a class of storage for which volumes are dynamically provisioned. The only class is local.",
        &[
            ("provisioner", "string", "Type of the provisioner: vireo.io/local."),
            ("parameters", "{}string", "Parameters for the provisioner. Not supported."),
            (
                "reclaimPolicy",
                "string",
                "Reclaim policy of the volumes of this class. The only policy is Delete.",
            ),
            ("mountOptions", "[]string", "Mount options of the volumes of this class. Not supported."),
            ("allowVolumeExpansion", "boolean", "Whether the class allows volume expansion."),
            (
                "volumeBindingMode",
                "string",
                "How claims are provisioned and bound. The only mode is Immediate.",
            ),
            (
                "allowedTopologies",
                "[]any",
                "Node topologies in which volumes can be provisioned. Not supported.",
            ),
        ],
    ),
];
