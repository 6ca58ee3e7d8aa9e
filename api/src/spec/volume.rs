use std::path::{Path, PathBuf};

use super::cloud_init::{self, CloudInit};
use super::report::Findings;
use super::syntax::{
    ABSOLUTE_PATH, DNS_SUBDOMAIN, is_dns_subdomain, is_normal_absolute_path, without_trailing_slash,
};
use super::{Bytes, Field, ImageRef, Projected, Pull, firmware, projected};
use crate::v1::{self, VolumeClaim};

/// The largest disk that is made: what an ext4 file system on a node can hold as one file.
const LARGEST: Bytes = Bytes::new(16 << 40);

const CLAIM: &str = "persistentVolumeClaim";
const DATA_VOLUME: &str = "dataVolume";
const EPHEMERAL: &str = "ephemeral";
const MEMORY_DUMP: &str = "memoryDump";

/// What a disk is filled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// A disk in an image; every VM writes to a layer of its own.
    ContainerDisk {
        /// Which image.
        image: ImageRef,
        /// Absolute in the image; the single file in `/disk` when absent.
        path: Option<String>,
        /// How an image of a registry is pulled.
        pull: Pull,
    },
    /// A NoCloud disk made at start.
    CloudInitNoCloud(CloudInit),
    /// An OpenStack config drive made at start.
    CloudInitConfigDrive(CloudInit),
    /// An empty disk, gone with the VM.
    EmptyDisk {
        /// How large.
        capacity: Bytes,
    },
    /// A claim of the VM's namespace, with one disk in it; also that of a DataVolume, which has its name.
    PersistentVolumeClaim {
        /// Its name.
        name: String,
        /// It is not written to.
        read_only: bool,
        /// It is attached once the VM runs, and may be detached.
        hotpluggable: bool,
    },
    /// A layer of the VM's own over the disk in a claim of its namespace, which is only read.
    Ephemeral {
        /// The name of the claim.
        claim: String,
    },
    /// A raw image that is a file of the node.
    HostDisk {
        /// Absolute, without `.` and `..`.
        path: PathBuf,
        /// What happens when it is not there.
        create: HostDiskCreate,
    },
    /// A disk made at start with files that Kubernetes projects from its objects.
    Projected(Projected),
    /// A disk with metrics of the host and the VM, which follows them.
    DownwardMetrics,
    /// No volume: the medium that a CD-ROM drive is without.
    NoMedium,
}

impl VolumeSource {
    /// Whether no disk may write to it.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::PersistentVolumeClaim { read_only: true, .. } | Self::DownwardMetrics)
    }

    /// Whether it is a raw disk that is not this VM's alone.
    pub(super) fn is_writable_by_others(&self) -> bool {
        matches!(self, Self::PersistentVolumeClaim { .. } | Self::HostDisk { .. })
    }

    /// Whether it is attached once the VM runs, and may be detached.
    pub fn is_hotpluggable(&self) -> bool {
        matches!(self, Self::PersistentVolumeClaim { hotpluggable: true, .. })
    }
}

/// What happens when a host disk's file is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostDiskCreate {
    /// The VM does not start.
    No,
    /// It is made, this large.
    Sized(Bytes),
}

/// A claim that the guest's memory is dumped to. It is no disk of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryDump {
    volume: String,
    claim: String,
}

impl MemoryDump {
    /// The name of the volume.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// The name of the claim, in the VM's namespace.
    pub fn claim(&self) -> &str {
        &self.claim
    }
}

/// What a claim has beside the guest's memory, as in KubeVirt.
const MEMORY_DUMP_OVERHEAD: Bytes = Bytes::mebibytes(100);

/// How large a claim must be for a dump of the memory of a VMI. `None` where the VMI does not say how much memory it has.
pub fn memory_dump_size(spec: &v1::VirtualMachineInstanceSpec) -> Option<Bytes> {
    let domain = &spec.domain;
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let memory = Bytes::try_from(guest.or(domain.resources.requests.get("memory"))?).ok()?;
    Some(Bytes::new(memory.get().saturating_add(MEMORY_DUMP_OVERHEAD.get())))
}

/// A volume and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) field: Field,
    /// Absent where it was rejected.
    pub(super) source: Option<VolumeSource>,
    /// The field of the source that makes it a claim, which alone a LUN may show.
    pub(super) claim: Option<&'static str>,
    /// The directory of the launcher's container that it is, which is not a source of disks.
    pub(super) container_path: Option<String>,
    /// The claim that the memory is dumped to, which is not a source of disks either.
    pub(super) memory_dump: Option<String>,
}

pub(super) fn read(volumes: &[v1::Volume], found: &mut Findings) -> Vec<Volume> {
    let at = Field::new("spec.volumes");
    let mut read: Vec<Volume> = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = at.index(index);
        let name = field.at("name");
        if volume.name.is_empty() {
            found.required_value(&name, "a volume needs a name");
        } else if !super::syntax::is_dns_label(&volume.name) {
            found.invalid_value(&name, &volume.name, super::syntax::DNS_LABEL);
        } else if read.iter().any(|known| known.name == volume.name) {
            found.duplicate_value(&name, &volume.name);
        }
        let claim = volume.persistent_volume_claim.as_ref().map(|_| CLAIM);
        let claim = claim.or_else(|| volume.data_volume.as_ref().map(|_| DATA_VOLUME));
        let source = source(volume, &field, found);
        let is_other = |known: &Volume| known.source == Some(VolumeSource::DownwardMetrics);
        if volume.downward_metrics.is_some() && read.iter().any(is_other) {
            found
                .invalid(&field.at("downwardMetrics"), "a VMI has at most one volume of this kind: keep one");
        }
        let container_path = volume.container_path.as_ref().map(|directory| directory.path.clone());
        let memory_dump = volume.memory_dump.as_ref().map(|dump| dump.claim_name.clone());
        if memory_dump.is_some() && read.iter().any(|known| known.memory_dump.is_some()) {
            found.invalid(&field.at(MEMORY_DUMP), "a VMI has at most one volume of this kind: keep one");
        }
        read.push(Volume { name: volume.name.clone(), field, source, claim, container_path, memory_dump });
    }
    read
}

/// The volume that the memory is dumped to.
pub(super) fn memory_dump_of(volumes: &[Volume]) -> Option<MemoryDump> {
    volumes.iter().find_map(|volume| {
        Some(MemoryDump { volume: volume.name.clone(), claim: volume.memory_dump.clone()? })
    })
}

fn source(volume: &v1::Volume, at: &Field, found: &mut Findings) -> Option<VolumeSource> {
    let available = [
        volume.container_disk.is_some(),
        volume.cloud_init_no_cloud.is_some(),
        volume.cloud_init_config_drive.is_some(),
        volume.empty_disk.is_some(),
        volume.host_disk.is_some(),
        volume.persistent_volume_claim.is_some(),
        volume.data_volume.is_some(),
        volume.config_map.is_some(),
        volume.secret.is_some(),
        volume.service_account.is_some(),
        volume.downward_api.is_some(),
        volume.sysprep.is_some(),
        volume.ephemeral.is_some(),
        volume.container_path.is_some(),
        volume.memory_dump.is_some(),
        volume.downward_metrics.is_some(),
    ];
    let given = available.iter().filter(|there| **there).count();
    match given {
        1 => {}
        0 if volume.extra.is_empty() => {
            found.required_value(at, "set a source, such as containerDisk or emptyDisk");
            return None;
        }
        0 => return None,
        _ => {
            found.invalid(at, format!("has {given} sources: keep one"));
            return None;
        }
    }
    if let Some(disk) = &volume.container_disk {
        return container_disk(disk, &at.at("containerDisk"), found);
    }
    if let Some(cloud_init) = &volume.cloud_init_no_cloud {
        return cloud_init::read(cloud_init, &at.at("cloudInitNoCloud"), found)
            .map(VolumeSource::CloudInitNoCloud);
    }
    if let Some(cloud_init) = &volume.cloud_init_config_drive {
        return cloud_init::read(cloud_init, &at.at("cloudInitConfigDrive"), found)
            .map(VolumeSource::CloudInitConfigDrive);
    }
    if let Some(disk) = &volume.empty_disk {
        let capacity = capacity(disk.capacity.as_ref(), &at.at("emptyDisk").at("capacity"), found)?;
        return Some(VolumeSource::EmptyDisk { capacity });
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let (claim, field) = (VolumeClaim::from(&**claim), at.at(CLAIM).at("claimName"));
        return persistent_volume_claim(claim, &field, "name the claim", found);
    }
    if let Some(source) = &volume.data_volume {
        let (claim, field) = (VolumeClaim::from(&**source), at.at(DATA_VOLUME).at("name"));
        return persistent_volume_claim(claim, &field, "name the DataVolume", found);
    }
    if let Some(ephemeral) = &volume.ephemeral {
        return self::ephemeral(ephemeral, &at.at(EPHEMERAL).at(CLAIM), found);
    }
    if let Some(directory) = &volume.container_path {
        container_path(directory, &at.at("containerPath"), found);
        return None;
    }
    if let Some(dump) = &volume.memory_dump {
        memory_dump(dump, &at.at(MEMORY_DUMP), found);
        return None;
    }
    if volume.downward_metrics.is_some() {
        return Some(VolumeSource::DownwardMetrics);
    }
    if let Some(disk) = &volume.host_disk {
        return host_disk(disk, &at.at("hostDisk"), found);
    }
    projected::read(volume, at, found)
}

fn persistent_volume_claim(
    VolumeClaim { name, read_only, hotpluggable, is_backing: _ }: VolumeClaim<'_>,
    field: &Field,
    required: &str,
    found: &mut Findings,
) -> Option<VolumeSource> {
    if name.is_empty() {
        found.required_value(field, required);
    } else if !is_dns_subdomain(name) {
        found.invalid_value(field, name, DNS_SUBDOMAIN);
    } else {
        return Some(VolumeSource::PersistentVolumeClaim { name: name.to_owned(), read_only, hotpluggable });
    }
    None
}

/// `readOnly` is about how the claim is mounted: no VM writes to it.
fn ephemeral(source: &v1::EphemeralVolumeSource, at: &Field, found: &mut Findings) -> Option<VolumeSource> {
    let Some(claim) = &source.persistent_volume_claim else {
        found.required_value(at, "name the claim that the layer is over");
        return None;
    };
    let hotpluggable = at.at("hotpluggable");
    if claim.hotpluggable.is_some() {
        found
            .not_supported(&hotpluggable, "a volume of this kind is there from the start: remove this field");
    }
    let name = VolumeClaim::from(claim).name;
    let name = super::projected::name((name, &at.at("claimName")), "claim", found);
    (!name.is_empty()).then_some(VolumeSource::Ephemeral { claim: name })
}

/// The directories of a launcher's container that are the kernel's.
const KERNEL_DIRECTORIES: [&str; 3] = ["/dev", "/proc", "/sys"];
/// How those begin that are the launcher's own.
const OWN_PREFIXES: [&str; 4] = ["/run/kubevirt", "/run/vireo", "/var/run/kubevirt", "/var/run/vireo"];

/// Whether a directory of a launcher's container belongs to the kernel or the launcher, or contains what does.
fn is_reserved(path: &str) -> bool {
    let is_own = |own: &&str| path.starts_with(own) || Path::new(own).starts_with(path);
    KERNEL_DIRECTORIES.iter().any(|own| Path::new(path).starts_with(own)) || OWN_PREFIXES.iter().any(is_own)
}

/// A directory that others have mounted into the launcher's container, such as a token of a cloud.
fn container_path(directory: &v1::ContainerPathVolumeSource, at: &Field, found: &mut Findings) {
    let path = without_trailing_slash(&directory.path);
    if path.is_empty() {
        found.required_value(&at.at("path"), "name the directory in the launcher's container");
    } else if !is_normal_absolute_path(path) {
        found.invalid_value(&at.at("path"), path, ABSOLUTE_PATH);
    } else if is_reserved(path) {
        found.invalid_value(&at.at("path"), path, "must not be a directory of the launcher or the kernel");
    }
    if directory.read_only == Some(false) {
        found.invalid_value(&at.at("readOnly"), false, "must be true: guests only read such a directory");
    }
}

/// It is there once the VM runs, whatever `hotpluggable` says.
fn memory_dump(source: &v1::ClaimVolumeSource, at: &Field, found: &mut Findings) {
    super::projected::name((&source.claim_name, &at.at("claimName")), "claim", found);
    if source.read_only == Some(true) {
        found.invalid_value(&at.at("readOnly"), true, "must not be true: the memory is written to the claim");
    }
}

fn container_disk(disk: &v1::ContainerDiskSource, at: &Field, found: &mut Findings) -> Option<VolumeSource> {
    let image = firmware::image(&disk.image, &at.at("image"), found);
    let path = (!disk.path.is_empty()).then(|| without_trailing_slash(&disk.path).to_owned());
    let bad = path.as_deref().is_some_and(|path| !is_normal_absolute_path(path));
    if bad {
        found.invalid_value(&at.at("path"), &disk.path, ABSOLUTE_PATH);
    }
    let pull = Pull::read(&disk.image, (&disk.image_pull_policy, &disk.image_pull_secret), at, found);
    let (image, pull) = (image?, pull?);
    (!bad).then_some(VolumeSource::ContainerDisk { image, path, pull })
}

fn capacity(given: Option<&v1::Quantity>, at: &Field, found: &mut Findings) -> Option<Bytes> {
    let Some(given) = given else {
        found.required_value(at, "say how large the disk is, such as 1Gi");
        return None;
    };
    match Bytes::try_from(given) {
        Ok(bytes) if (Bytes::mebibytes(1)..=LARGEST).contains(&bytes) => Some(bytes),
        Ok(bytes) => {
            found.invalid(at, format!("{bytes} is outside 1Mi to {LARGEST}"));
            None
        }
        Err(error) => {
            found.invalid(at, error.to_string());
            None
        }
    }
}

fn host_disk(disk: &v1::HostDisk, at: &Field, found: &mut Findings) -> Option<VolumeSource> {
    let before = found.problems.len();
    if disk.path.is_empty() {
        found.required_value(&at.at("path"), "name the file's absolute path on the node");
    } else if !is_normal_absolute_path(&disk.path) {
        found.invalid_value(
            &at.at("path"),
            &disk.path,
            "must be an absolute path to a file, without '.' and '..'",
        );
    }
    let create = match disk.r#type.as_str() {
        "Disk" => {
            if disk.capacity.is_some() {
                found.invalid(&at.at("capacity"), "is for type DiskOrCreate: remove it, or change the type");
            }
            Some(HostDiskCreate::No)
        }
        "DiskOrCreate" => {
            capacity(disk.capacity.as_ref(), &at.at("capacity"), found).map(HostDiskCreate::Sized)
        }
        other => {
            found.invalid_value(&at.at("type"), other, "must be Disk or DiskOrCreate");
            None
        }
    };
    found.notice_if(
        disk.shared == Some(true),
        &at.at("shared"),
        "VMs do not migrate: for several VMs, the disk is shareable",
    );
    let (create, path) = (create?, Path::new(&disk.path).to_owned());
    (found.problems.len() == before).then_some(VolumeSource::HostDisk { path, create })
}
