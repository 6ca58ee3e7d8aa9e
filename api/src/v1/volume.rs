use super::shape::shapes;
use super::{DownwardMetrics, LocalObjectReference, Quantity};

shapes! {
    /// What a disk is filled from: one of its sources.
    pub struct Volume {
        /// How it is referred to.
        pub name: String,
        /// A file of the node.
        pub host_disk: Option<HostDisk>,
        /// A claim.
        pub persistent_volume_claim: Option<ClaimVolumeSource>,
        /// A NoCloud disk made at start.
        pub cloud_init_no_cloud: Option<CloudInitSource>,
        /// A config drive made at start.
        pub cloud_init_config_drive: Option<CloudInitSource>,
        /// Answer files for Windows.
        pub sysprep: Option<SysprepSource>,
        /// A disk in an image.
        pub container_disk: Option<ContainerDiskSource>,
        /// A claim that is not written to.
        pub ephemeral: Option<EphemeralVolumeSource>,
        /// An empty disk.
        pub empty_disk: Option<EmptyDiskSource>,
        /// A claim that CDI fills.
        pub data_volume: Option<DataVolumeSource>,
        /// Files of a config map.
        pub config_map: Option<ConfigMapVolumeSource>,
        /// Files of a secret.
        pub secret: Option<SecretVolumeSource>,
        /// Facts about the machine.
        pub downward_api: Option<DownwardApiVolumeSource> = "downwardAPI",
        /// An account's token.
        pub service_account: Option<ServiceAccountVolumeSource>,
        /// Metrics of the host.
        pub downward_metrics: Option<DownwardMetrics>,
        /// Where a memory dump goes.
        pub memory_dump: Option<ClaimVolumeSource>,
        /// A directory of the launcher's container.
        pub container_path: Option<ContainerPathVolumeSource>,
    }

    /// A file of the node.
    pub struct HostDisk {
        /// Its absolute path.
        pub path: String,
        /// `Disk` or `DiskOrCreate`.
        pub r#type: String = "type",
        /// How large it is made.
        pub capacity: Option<Quantity>,
        /// Several machines write to it.
        pub shared: Option<bool>,
    }

    /// A claim.
    pub struct ClaimVolumeSource {
        /// Its name.
        pub claim_name: String,
        /// It is not written to.
        pub read_only: Option<bool>,
        /// It can be plugged in and out.
        pub hotpluggable: Option<bool>,
    }

    /// Data for cloud-init: one kind of user data, one kind of network data.
    pub struct CloudInitSource {
        /// User data in a secret.
        pub secret_ref: Option<LocalObjectReference>,
        /// User data in base64.
        pub user_data_base64: String,
        /// User data.
        pub user_data: String,
        /// Network data in a secret.
        pub network_data_secret_ref: Option<LocalObjectReference>,
        /// Network data in base64.
        pub network_data_base64: String,
        /// Network data.
        pub network_data: String,
    }

    /// Answer files for Windows.
    pub struct SysprepSource {
        /// In a secret.
        pub secret: Option<LocalObjectReference>,
        /// In a config map.
        pub config_map: Option<LocalObjectReference>,
    }

    /// A disk in an image.
    pub struct ContainerDiskSource {
        /// Which image.
        pub image: String,
        /// The secret to pull it with.
        pub image_pull_secret: String,
        /// Its path; the single file in `/disk` when empty.
        pub path: String,
        /// When to pull it.
        pub image_pull_policy: String,
    }

    /// A claim that is not written to.
    pub struct EphemeralVolumeSource {
        /// The claim.
        pub persistent_volume_claim: Option<ClaimVolumeSource>,
    }

    /// An empty disk.
    pub struct EmptyDiskSource {
        /// How large.
        pub capacity: Option<Quantity>,
    }

    /// A claim that CDI fills.
    pub struct DataVolumeSource {
        /// Its name.
        pub name: String,
        /// It can be plugged in and out.
        pub hotpluggable: Option<bool>,
    }

    /// Files of a config map.
    pub struct ConfigMapVolumeSource {
        /// Its name.
        pub name: String,
        /// It may be missing.
        pub optional: Option<bool>,
        /// The disk's label.
        pub volume_label: String,
    }

    /// Files of a secret.
    pub struct SecretVolumeSource {
        /// Its name.
        pub secret_name: String,
        /// It may be missing.
        pub optional: Option<bool>,
        /// The disk's label.
        pub volume_label: String,
    }

    /// Facts about the machine.
    pub struct DownwardApiVolumeSource {
        /// The files.
        pub fields: Vec<DownwardApiVolumeFile>,
        /// The disk's label.
        pub volume_label: String,
    }

    /// A file with a field of the pod: core `DownwardAPIVolumeFile`.
    pub struct DownwardApiVolumeFile {
        /// The file's relative path, without `..`.
        pub path: String,
        /// A field: annotations, labels, name, namespace or uid.
        pub field_ref: Option<ObjectFieldSelector>,
        /// A resource of a container.
        pub resource_field_ref: Option<ResourceFieldSelector>,
        /// The file's permission bits.
        pub mode: Option<i32>,
    }

    /// A field of an object.
    pub struct ObjectFieldSelector: atomic {
        /// The version of the API in whose terms the path is written; `v1` when empty.
        pub api_version: String,
        /// The field's path.
        pub field_path: String,
    }

    /// A resource of a container.
    pub struct ResourceFieldSelector: atomic {
        /// The container's name.
        pub container_name: String,
        /// The resource, `limits.memory`.
        pub resource: String,
        /// The unit in which it is written; `1` when absent.
        pub divisor: Option<Quantity>,
    }

    /// An account's token.
    pub struct ServiceAccountVolumeSource {
        /// The account.
        pub service_account_name: String,
    }

    /// A directory of the launcher's container.
    pub struct ContainerPathVolumeSource {
        /// Its absolute path.
        pub path: String,
        /// Must be true.
        pub read_only: Option<bool>,
    }

    /// A claim plugged into the pod for operations.
    pub struct UtilityVolume {
        /// How it is referred to.
        pub name: String,
        /// The claim.
        pub claim_name: String,
        /// It is not written to.
        pub read_only: Option<bool>,
        /// `MemoryDump` or `Backup`.
        pub r#type: Option<String> = "type",
    }
}
