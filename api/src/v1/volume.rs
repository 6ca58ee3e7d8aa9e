use super::shape::shapes;
use super::{DownwardMetrics, LocalObjectReference, Quantity};

shapes! {
    /// A volume of the VMI: one of its sources must be set.
    pub struct Volume {
        /// Name of the volume, unique in the VMI. Disks and filesystems refer to it.
        pub name: String,
        /// Disk image on the node.
        pub host_disk: Option<Box<HostDisk>>,
        /// PersistentVolumeClaim in the same namespace that is attached to the VMI.
        pub persistent_volume_claim: Option<Box<ClaimVolumeSource>>,
        /// cloud-init NoCloud source, attached as a disk that is generated when the VMI starts.
        pub cloud_init_no_cloud: Option<Box<CloudInitSource>>,
        /// cloud-init ConfigDrive source, attached as a disk that is generated when the VMI starts.
        pub cloud_init_config_drive: Option<Box<CloudInitSource>>,
        /// Sysprep answer files, attached as a CD-ROM that Windows reads when it is set up.
        pub sysprep: Option<Box<SysprepSource>>,
        /// Disk image that is embedded in a container image.
        pub container_disk: Option<Box<ContainerDiskSource>>,
        /// Copy-on-write overlay over a PersistentVolumeClaim. Its writes are lost when the VMI ends.
        pub ephemeral: Option<Box<EphemeralVolumeSource>>,
        /// Empty disk that shares the VMI's life cycle. It survives reboots of the guest.
        pub empty_disk: Option<Box<EmptyDiskSource>>,
        /// DataVolume whose PersistentVolumeClaim CDI creates and imports.
        pub data_volume: Option<Box<DataVolumeSource>>,
        /// ConfigMap in the same namespace, whose entries are files of a disk.
        pub config_map: Option<Box<ConfigMapVolumeSource>>,
        /// Secret in the same namespace, whose entries are files of a disk.
        pub secret: Option<Box<SecretVolumeSource>>,
        /// Fields of the pod that are files of a disk.
        pub downward_api: Option<Box<DownwardApiVolumeSource>> = "downwardAPI",
        /// ServiceAccount whose token is a file of a disk.
        pub service_account: Option<Box<ServiceAccountVolumeSource>>,
        /// Disk that exposes host and VM metrics to the guest.
        pub downward_metrics: Option<Box<DownwardMetrics>>,
        /// PersistentVolumeClaim that memory dumps of the VMI are written to.
        pub memory_dump: Option<Box<ClaimVolumeSource>>,
        /// Directory in the launcher container that is shared with the guest.
        pub container_path: Option<Box<ContainerPathVolumeSource>>,
    }

    /// A disk image on the node.
    pub struct HostDisk {
        /// Absolute path of the disk image.
        pub path: String,
        /// How the disk image is treated: `Disk` must exist; `DiskOrCreate` is created if it does not.
        pub r#type: String = "type",
        /// Capacity of the disk image, if it is created.
        pub capacity: Option<Quantity>,
        /// Whether the disk image is shared by several VMIs.
        pub shared: Option<bool>,
    }

    /// A PersistentVolumeClaim in the same namespace.
    pub struct ClaimVolumeSource {
        /// Name of the PersistentVolumeClaim.
        pub claim_name: String,
        /// Whether the volume is attached read-only. Defaults to false.
        pub read_only: Option<bool>,
        /// Whether the volume can be hotplugged and unplugged.
        pub hotpluggable: Option<bool>,
    }

    /// A cloud-init source: at most one kind of user data and one kind of network data is set.
    pub struct CloudInitSource {
        /// Reference to a Secret that contains the user data, under the key `userdata`.
        pub secret_ref: Option<LocalObjectReference>,
        /// Base64-encoded cloud-init user data.
        pub user_data_base64: String,
        /// Inline cloud-init user data.
        pub user_data: String,
        /// Reference to a Secret that contains the network data, under the key `networkdata`.
        pub network_data_secret_ref: Option<LocalObjectReference>,
        /// Base64-encoded cloud-init network data.
        pub network_data_base64: String,
        /// Inline cloud-init network data.
        pub network_data: String,
    }

    /// Sysprep answer files (`Autounattend.xml` or `Unattend.xml`): one of its members must be set.
    pub struct SysprepSource {
        /// Secret that contains the answer files.
        pub secret: Option<LocalObjectReference>,
        /// ConfigMap that contains the answer files.
        pub config_map: Option<LocalObjectReference>,
    }

    /// A disk image that is embedded in a container image.
    pub struct ContainerDiskSource {
        /// Container image that contains the disk image.
        pub image: String,
        /// Name of the Docker registry Secret that is required to pull the image. The Secret must exist already.
        pub image_pull_secret: String,
        /// Path of the disk image in the container image. Defaults to the single file in `/disk`.
        pub path: String,
        /// When the image is pulled: `Always`, `Never` or `IfNotPresent`. Defaults to `Always` if the tag is `latest`,
        /// else to `IfNotPresent`.
        pub image_pull_policy: String,
    }

    /// A copy-on-write overlay over a PersistentVolumeClaim.
    pub struct EphemeralVolumeSource {
        /// PersistentVolumeClaim that is the read-only backing store.
        pub persistent_volume_claim: Option<ClaimVolumeSource>,
    }

    /// An empty disk that shares the VMI's life cycle.
    pub struct EmptyDiskSource {
        /// Capacity of the sparse disk.
        pub capacity: Option<Quantity>,
    }

    /// A DataVolume in the same namespace.
    pub struct DataVolumeSource {
        /// Name of the DataVolume, and of the PersistentVolumeClaim that it populates.
        pub name: String,
        /// Whether the volume can be hotplugged and unplugged.
        pub hotpluggable: Option<bool>,
    }

    /// A ConfigMap whose entries are files of a disk.
    pub struct ConfigMapVolumeSource {
        /// Name of the ConfigMap.
        pub name: String,
        /// Whether the ConfigMap or its keys may be missing.
        pub optional: Option<bool>,
        /// Volume label of the resulting disk in the guest.
        pub volume_label: String,
    }

    /// A Secret whose entries are files of a disk.
    pub struct SecretVolumeSource {
        /// Name of the Secret.
        pub secret_name: String,
        /// Whether the Secret or its keys may be missing.
        pub optional: Option<bool>,
        /// Volume label of the resulting disk in the guest.
        pub volume_label: String,
    }

    /// Fields of the pod that are files of a disk.
    pub struct DownwardApiVolumeSource {
        /// Files of the volume.
        pub fields: Vec<DownwardApiVolumeFile>,
        /// Volume label of the resulting disk in the guest.
        pub volume_label: String,
    }

    /// A file that contains a field of the pod: core `DownwardAPIVolumeFile`.
    pub struct DownwardApiVolumeFile {
        /// Relative path of the file. It must not contain `..` nor be absolute.
        pub path: String,
        /// Selects a field of the pod: its annotations, labels, name, namespace or UID.
        pub field_ref: Option<ObjectFieldSelector>,
        /// Selects a resource of a container: limits and requests.
        pub resource_field_ref: Option<ResourceFieldSelector>,
        /// Permission bits of the file, from 0000 to 0777.
        pub mode: Option<i32>,
    }

    /// Selects a field of an object.
    pub struct ObjectFieldSelector: atomic {
        /// Version of the schema that the path is written in terms of. Defaults to `v1`.
        pub api_version: String,
        /// Path of the field to select.
        pub field_path: String,
    }

    /// Selects a resource of a container.
    pub struct ResourceFieldSelector: atomic {
        /// Name of the container.
        pub container_name: String,
        /// Resource to select, such as `limits.memory`.
        pub resource: String,
        /// Output format of the resource. Defaults to `1`.
        pub divisor: Option<Quantity>,
    }

    /// A ServiceAccount whose token is a file of a disk.
    pub struct ServiceAccountVolumeSource {
        /// Name of the ServiceAccount in the namespace of the VMI.
        pub service_account_name: String,
    }

    /// A directory in the launcher container that is shared with the guest.
    pub struct ContainerPathVolumeSource {
        /// Absolute path of the directory in the launcher container.
        pub path: String,
        /// Whether the directory is shared read-only. It must be true.
        pub read_only: Option<bool>,
    }

    /// A PersistentVolumeClaim that is hotplugged into the launcher pod for operations.
    pub struct UtilityVolume {
        /// Name of the utility volume, unique in the VMI.
        pub name: String,
        /// Name of the PersistentVolumeClaim.
        pub claim_name: String,
        /// Whether the volume is attached read-only. Defaults to false.
        pub read_only: Option<bool>,
        /// Purpose of the utility volume: `MemoryDump` or `Backup`.
        pub r#type: Option<String> = "type",
    }
}

/// A PersistentVolumeClaim that a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeClaim<'a> {
    /// Its name, in the namespace of the VMI.
    pub name: &'a str,
    /// It is not written to.
    pub read_only: bool,
    /// It is attached once the VMI runs, and may be detached.
    pub hotpluggable: bool,
    /// It is only read: what the VM writes goes to a layer of its own.
    pub is_backing: bool,
}

impl<'a> From<&'a ClaimVolumeSource> for VolumeClaim<'a> {
    fn from(source: &'a ClaimVolumeSource) -> Self {
        Self {
            name: &source.claim_name,
            read_only: source.read_only == Some(true),
            hotpluggable: source.hotpluggable == Some(true),
            is_backing: false,
        }
    }
}

impl<'a> From<&'a DataVolumeSource> for VolumeClaim<'a> {
    /// A DataVolume fills the claim of its own name.
    fn from(source: &'a DataVolumeSource) -> Self {
        Self {
            name: &source.name,
            read_only: false,
            hotpluggable: source.hotpluggable == Some(true),
            is_backing: false,
        }
    }
}

impl Volume {
    /// The claim that it is, if it is one.
    pub fn claim(&self) -> Option<VolumeClaim<'_>> {
        let claim = self.persistent_volume_claim.as_deref().map(VolumeClaim::from);
        claim.or_else(|| self.data_volume.as_deref().map(VolumeClaim::from))
    }

    /// The claim whose disk it needs: the one that it is, or the one that it is a layer over.
    pub fn used_claim(&self) -> Option<VolumeClaim<'_>> {
        let backing = || {
            let claim = self.ephemeral.as_deref()?.persistent_volume_claim.as_ref()?;
            Some(VolumeClaim { hotpluggable: false, is_backing: true, ..VolumeClaim::from(claim) })
        };
        self.claim().or_else(backing)
    }
}
