//! Prepares the files of a VM from its validated spec: plans the steps first, then runs them.

mod places;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vireo_api::names::{
    EFI_VARIABLES, KERNEL_BOOT_CONTAINER, TPM_STATE, claim_device, claim_disk, disk_container,
    hotplug_device, hotplug_disk,
};
use vireo_api::spec::{BootSource, Disk, Field, HostDiskCreate, ImageRef, KernelBoot, Vm, VolumeSource};
use vireo_vmconfig::{AcpiTable, DiskSource};

use super::claims::{ClaimError, Claims};
use super::cloud_init::{self, CloudInitError, Layout as SeedLayout, Seed, TaggedDevice};
use super::host_disks;
use super::images::{ImageError, Source, hold};
use super::iso::{self, IsoError};
use super::projected::{self, AcpiTableError, ProjectedError, SeedData};
use super::volumes::{self, VolumeError};
use crate::downward_metrics;
use crate::jobs::{JobContext, JobError, Jobs};
use crate::launcher::pod::disk_size;

pub use places::{Places, PullSecrets};

/// The [`StorageError::reason`] of a missing claim; KubeVirt's.
pub const NO_CLAIM: &str = "FailedPvcNotFound";
/// The reason of a claim without a disk.
pub const NOT_BOUND: &str = "PvcNotBound";
/// The reason of a claim that waits for its image.
pub const NO_IMAGE: &str = "PvcNotPopulated";
/// The reason of files that are missing; Kubernetes'.
pub const FAILED_MOUNT: &str = "FailedMount";
/// The reason of an image error; KubeVirt's.
pub const ERR_IMAGE_PULL: &str = "ErrImagePull";

/// A VM's disks and kernel on this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prepared {
    /// One per disk, in the order of [`Vm::fixed_disks`].
    pub disks: Vec<DiskSource>,
    /// The kernel to start, where firmware does not.
    pub kernel: Option<Kernel>,
    /// The file of the EFI variables, for a VM with persistent variables.
    pub variables: Option<PathBuf>,
    /// The ACPI tables of its Secrets.
    pub acpi_tables: Vec<AcpiTable>,
    /// The metrics that the guest reads at a port, if it does.
    pub metrics: Option<PathBuf>,
    /// The file of the TPM's state, for a VM with a persistent TPM.
    pub tpm: Option<PathBuf>,
}

/// A kernel on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its image.
    pub kernel: PathBuf,
    /// Its initial ramdisk.
    pub initrd: Option<PathBuf>,
}

/// Why a VM's disks or its kernel cannot be prepared, with the field of the spec.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// An image could not be used.
    #[error("{field}: the image {image} cannot be used")]
    Image {
        /// `spec.volumes[0].containerDisk` or `spec.domain.firmware.kernelBoot.container`.
        field: Field,
        /// As the manifest names it.
        image: String,
        /// Why.
        source: ImageError,
    },
    /// A disk could not be created or opened.
    #[error("{field}: the disk cannot be used")]
    Volume {
        /// `spec.volumes[0].hostDisk`, ...
        field: Field,
        /// Why.
        source: VolumeError,
    },
    /// cloud-init's disk could not be created.
    #[error("{field}: the disk cannot be made")]
    CloudInit {
        /// `spec.volumes[0].cloudInitNoCloud`, ...
        field: Field,
        /// Why.
        source: CloudInitError,
    },
    /// The files of a volume are not there.
    #[error("{field}: the files of the volume cannot be read")]
    Projected {
        /// `spec.volumes[0].configMap`, ...
        field: Field,
        /// Why.
        source: ProjectedError,
    },
    /// An ACPI table is not there, or is none.
    #[error("{field}: the ACPI table cannot be used")]
    AcpiTable {
        /// `spec.domain.firmware.acpi.slicNameRef`, ...
        field: Field,
        /// Why.
        source: AcpiTableError,
    },
    /// The disk of files could not be created.
    #[error("{field}: the disk cannot be made")]
    Iso {
        /// `spec.volumes[0].configMap`, ...
        field: Field,
        /// Why.
        source: IsoError,
    },
    /// A claim does not exist, or is not a disk.
    #[error("{field}: the claim cannot be used")]
    Claim {
        /// `spec.volumes[0].persistentVolumeClaim`.
        field: Field,
        /// Why.
        source: ClaimError,
    },
    /// The VM's own directory.
    #[error("cannot make the directory {path}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A blocking operation failed or timed out.
    #[error("the disks cannot be prepared")]
    Job(#[from] JobError),
    /// A path that the launcher's protocol cannot carry.
    #[error("the path {0:?} is not UTF-8: choose another state directory")]
    NotUtf8(PathBuf),
}

impl StorageError {
    /// The field of the spec that the error is about, if there is one.
    pub fn field(&self) -> Option<&Field> {
        match self {
            Self::Image { field, .. }
            | Self::Volume { field, .. }
            | Self::CloudInit { field, .. }
            | Self::Projected { field, .. }
            | Self::AcpiTable { field, .. }
            | Self::Iso { field, .. }
            | Self::Claim { field, .. } => Some(field),
            Self::Directory { .. } | Self::Job(_) | Self::NotUtf8(_) => None,
        }
    }

    /// One word, KubeVirt's where it has one.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Claim { source: ClaimError::Absent { .. }, .. } => NO_CLAIM,
            Self::Claim { source: ClaimError::Unbound { .. }, .. } => NOT_BOUND,
            Self::Claim { source: ClaimError::NoImage { .. }, .. } => NO_IMAGE,
            Self::Projected { .. } => FAILED_MOUNT,
            Self::Image { source, .. } => source.reason(),
            _ => "FailedStorage",
        }
    }
}

/// What to create for one disk.
#[derive(Debug, Clone)]
enum Step {
    /// A layer of the VM's own over a disk that has come out of an image.
    Overlay { backing: PathBuf, at: PathBuf },
    /// cloud-init's disk.
    Seed { layout: SeedLayout, data: SeedData, at: PathBuf },
    /// A disk with projected files.
    Files { label: String, files: Vec<iso::File>, at: PathBuf },
    /// An empty disk.
    Empty { capacity: u64, at: PathBuf },
    /// A file of the node.
    Host { path: PathBuf, create_with: Option<u64> },
    /// A layer of the VM's own over what is in a claim, which the kubelet may have mounted at a path in the Pod.
    Layer { claim: String, mounted: Option<String>, at: PathBuf },
    /// What is in a claim.
    Claim { name: String },
    /// What is in a claim that the kubelet has mounted.
    Mounted { path: String },
    /// Metrics of the host.
    Metrics { at: PathBuf },
    /// An empty CD-ROM drive.
    NoMedium,
}

/// The step for a disk, after its image was imported. A disk's name is a DNS label, and so a valid file name.
async fn step(vm: &Vm, disk: &Disk, places: &Places, jobs: &Jobs) -> Result<Step, StorageError> {
    let at = |extension: &str| places.disks.join(format!("{}.{extension}", disk.name()));
    Ok(match disk.source() {
        VolumeSource::ContainerDisk { image, path, pull } => {
            let source = Source::container_disk(image, path.as_deref());
            let name = disk_container(disk.name());
            let backing = places.imported(jobs, vm.identity().namespace(), source, (&name, pull)).await;
            let backing = backing.map_err(image_error(disk.source_field(), image))?;
            Step::Overlay { backing, at: at("qcow2") }
        }
        VolumeSource::CloudInitNoCloud(data) => {
            let data = projected::seed_data(vm, disk, data, &places.projected)?;
            Step::Seed { layout: SeedLayout::NoCloud, data, at: at("iso") }
        }
        VolumeSource::CloudInitConfigDrive(data) => {
            let data = projected::seed_data(vm, disk, data, &places.projected)?;
            Step::Seed { layout: SeedLayout::ConfigDrive, data, at: at("iso") }
        }
        VolumeSource::Projected(volume) => {
            let files = projected::files(disk, volume, &places.projected)?;
            Step::Files { label: volume.label().to_owned(), files, at: at("iso") }
        }
        VolumeSource::EmptyDisk { capacity } => {
            Step::Empty { capacity: capacity.get(), at: empty_disk_in(&places.disks, disk) }
        }
        VolumeSource::HostDisk { path, create } => Step::Host {
            path: path.clone(),
            create_with: match create {
                HostDiskCreate::No => None,
                HostDiskCreate::Sized(capacity) => Some(capacity.get()),
            },
        },
        VolumeSource::PersistentVolumeClaim { name, hotpluggable, .. } => {
            let paths = match hotpluggable {
                true => [hotplug_disk(name), hotplug_device(name)],
                false => [claim_disk(disk.name()), claim_device(disk.name())],
            };
            match paths.into_iter().find(|path| places.mounted.contains(path)) {
                Some(path) => Step::Mounted { path },
                None => Step::Claim { name: name.clone() },
            }
        }
        VolumeSource::Ephemeral { claim } => {
            let paths = [claim_disk(disk.name()), claim_device(disk.name())];
            let mounted = paths.into_iter().find(|path| places.mounted.contains(path));
            Step::Layer { claim: claim.clone(), mounted, at: at("qcow2") }
        }
        VolumeSource::DownwardMetrics => Step::Metrics { at: metrics_disk(&places.disks, disk.name()) },
        VolumeSource::NoMedium => Step::NoMedium,
    })
}

/// Counts the empty disks that were made for a VM, in the directory of its disks, as promised: for a node agent that finds
/// the VM after a restart. Blocks for a moment.
pub fn promise_disks(vm: &Vm, directory: &Path, claims: &Claims) {
    for disk in vm.fixed_disks() {
        if let VolumeSource::EmptyDisk { capacity } = disk.source() {
            claims.promise_disk(&empty_disk_in(directory, disk), capacity.get());
        }
    }
}

/// The file of an empty disk.
fn empty_disk_in(directory: &Path, disk: &Disk) -> PathBuf {
    directory.join(format!("{}.qcow2", disk.name()))
}

/// Looks for the claims that a VM starts with.
///
/// # Errors
/// Names the field of the first one that is not there.
pub async fn find_claims(vm: &Vm, claims: &Claims, jobs: &Jobs) -> Result<(), StorageError> {
    let (vm, claims) = (vm.clone(), claims.clone());
    let namespace = vm.identity().namespace().to_owned();
    let find = move |_: &JobContext| {
        for disk in vm.fixed_disks().filter(|disk| !disk.has_hotpluggable_medium()) {
            if let VolumeSource::PersistentVolumeClaim { name, .. }
            | VolumeSource::Ephemeral { claim: name } = disk.source()
            {
                claim(&vm, disk.source_field(), name, &claims)?;
            }
        }
        Ok(())
    };
    jobs.quick.run(&namespace, find).await?
}

fn claim(vm: &Vm, field: &Field, name: &str, claims: &Claims) -> Result<PathBuf, StorageError> {
    let found = claims.find(vm.identity().namespace(), name);
    found.map_err(|source| StorageError::Claim { field: field.clone(), source })
}

/// Creates a VM's disks, or finds existing ones. Takes long for a new image. Existing disks are kept, except
/// disks with files for the guest, which follow the manifest.
///
/// # Errors
/// Names the field whose source is not there. Nothing half-made is left.
pub async fn prepare(vm: &Vm, places: &Places, jobs: &Jobs) -> Result<Prepared, StorageError> {
    let mut steps = Vec::new();
    for disk in vm.fixed_disks() {
        steps.push(match disk.has_hotpluggable_medium() {
            true => Step::NoMedium,
            false => step(vm, disk, places, jobs).await?,
        });
    }
    let kernel = match vm.firmware().boot() {
        BootSource::Kernel(boot) => Some(kernel(vm, boot, places, jobs).await?),
        BootSource::Bios { .. } | BootSource::Efi { .. } => None,
    };
    let acpi_tables = projected::acpi_tables(vm, &places.projected)?;
    let is_bare = steps.is_empty() && kernel.is_none();
    let (made_for, places) = (vm.clone(), places.clone());
    let make = move |job: &JobContext| {
        places.make_directory()?;
        let make = |(disk, step): (&Disk, Step)| make(&made_for, disk.source_field(), step, (&places, job));
        let disks = made_for.fixed_disks().zip(steps).map(make).collect::<Result<_, _>>()?;
        let has_variables = matches!(made_for.firmware().boot(), BootSource::Efi { persistent: true, .. });
        let variables = has_variables.then(|| kept(EFI_VARIABLES, &places)).transpose()?;
        let tpm = made_for.has_persistent_tpm().then(|| kept(TPM_STATE, &places)).transpose()?;
        let metrics = made_for.has_metrics_port().then(|| metrics_port(&places.disks));
        if let Some(path) = &metrics {
            let open = |source| StorageError::Directory { path: path.clone(), source };
            downward_metrics::create(path).map_err(open)?;
        }
        Ok(Prepared { disks, kernel, variables, metrics, tpm, acpi_tables })
    };
    if is_bare {
        // No path of the manifest is accessed, so this does not block for long.
        return make(&JobContext::default());
    }
    jobs.quick.run(vm.identity().namespace(), make).await?
}

/// Makes one disk of a VM, as [`prepare`] makes all that it starts with.
///
/// # Errors
/// Names the field whose source is not there.
pub async fn prepare_disk(
    vm: &Vm,
    disk: &Disk,
    places: &Places,
    jobs: &Jobs,
) -> Result<DiskSource, StorageError> {
    let step = step(vm, disk, places, jobs).await?;
    let (made_for, field, places) = (vm.clone(), disk.source_field().clone(), places.clone());
    let make = move |job: &JobContext| {
        places.make_directory()?;
        make(&made_for, &field, step, (&places, job))
    };
    jobs.quick.run(vm.identity().namespace(), make).await?
}

/// The disk of this name with metrics of the host, among a VM's own disks.
pub(crate) fn metrics_disk(disks: &Path, name: &str) -> PathBuf {
    disks.join(format!("{name}.vhostmd"))
}

/// The metrics that a guest reads at a port, among a VM's own disks. No disk has a dot in its name.
pub(crate) fn metrics_port(disks: &Path) -> PathBuf {
    disks.join("downward.metrics.vhostmd")
}

/// A file that outlives a VMI: that of a claim at a path in its launcher Pod, else one of the same name in the VM's directory
/// on the node.
fn kept(in_pod: &str, places: &Places) -> Result<PathBuf, StorageError> {
    if places.mounted.contains(in_pod) {
        return Ok(in_pod.into());
    }
    directory(&places.kept)?;
    Ok(places.kept.join(Path::new(in_pod).file_name().unwrap_or_default()))
}

fn directory(path: &Path) -> Result<(), StorageError> {
    fs::create_dir_all(path).map_err(|source| StorageError::Directory { path: path.to_owned(), source })
}

fn make(
    vm: &Vm,
    field: &Field,
    step: Step,
    (places, job): (&Places, &JobContext),
) -> Result<DiskSource, StorageError> {
    let volume = |source| StorageError::Volume { field: field.clone(), source };
    let source = match step {
        Step::NoMedium => DiskSource::NoMedium,
        Step::Metrics { at } => {
            let open = |source| volume(VolumeError::Open { path: at.clone(), source });
            downward_metrics::create(&at).map_err(open)?;
            DiskSource::Raw(text(&at)?.into())
        }
        Step::Mounted { path } => DiskSource::Raw(path.into()),
        Step::Claim { name } => {
            let path = claim(vm, field, &name, &places.claims)?;
            DiskSource::Raw(text(&path)?.into())
        }
        Step::Layer { claim: name, mounted, at } => {
            let backing = match &mounted {
                Some(path) => PathBuf::from(path),
                None => claim(vm, field, &name, &places.claims)?,
            };
            let open = |source| volume(VolumeError::Open { path: backing.clone(), source });
            let size = match (&places.pod, &mounted) {
                (Some(pod), Some(path)) => disk_size(pod, path),
                _ => fs::metadata(&backing).map(|metadata| metadata.len()),
            };
            // The launch request names what it is over, and not the image.
            volumes::empty_disk(&at, size.map_err(open)?, job).map_err(volume)?;
            DiskSource::Qcow2 { path: text(&at)?.into(), backing: Some(text(&backing)?.into()) }
        }
        Step::Overlay { backing, at } => {
            let base = places.held(&at);
            hold(&backing, &base)
                .map_err(|source| volume(VolumeError::Open { path: base.clone(), source }))?;
            volumes::overlay(&at, &base, job).map_err(volume)?;
            DiskSource::Qcow2 { path: text(&at)?.into(), backing: Some(text(&base)?.into()) }
        }
        Step::Seed { layout, data, at } => {
            let data = Seed {
                layout,
                uuid: vm.firmware().uuid().to_string(),
                name: format!("{}.{}", vm.identity().name(), vm.identity().namespace()),
                hostname: vm.hostname(),
                user_data: &data.user,
                network_data: data.network.as_deref(),
                public_keys: &data.keys,
                devices: TaggedDevice::all(vm),
            };
            cloud_init::write(&at, &data)
                .map_err(|source| StorageError::CloudInit { field: field.clone(), source })?;
            DiskSource::Raw(text(&at)?.into())
        }
        Step::Files { label, files, at } => {
            iso::write(&at, &label, &files)
                .map_err(|source| StorageError::Iso { field: field.clone(), source })?;
            DiskSource::Raw(text(&at)?.into())
        }
        Step::Empty { capacity, at } => {
            if at.exists() {
                places.claims.promise_disk(&at, capacity);
            } else {
                let reserved = places.claims.admit_disk(&at, capacity).map_err(volume)?;
                volumes::empty_disk(&at, capacity, job).map_err(volume)?;
                reserved.keep();
            }
            DiskSource::Qcow2 { path: text(&at)?.into(), backing: None }
        }
        Step::Host { path, create_with } => {
            let path = host_disks::prepare(&places.allowed, &path, create_with).map_err(volume)?;
            DiskSource::Raw(text(&path)?.into())
        }
    };
    Ok(source)
}

async fn kernel(vm: &Vm, boot: &KernelBoot, places: &Places, jobs: &Jobs) -> Result<Kernel, StorageError> {
    let image = boot.image();
    let file = async |path: &str| {
        let (source, of) = (Source::boot_file(image, path), (KERNEL_BOOT_CONTAINER, boot.pull()));
        let got = places.imported(jobs, vm.identity().namespace(), source, of).await;
        got.map_err(image_error(boot.field(), image))
    };
    let kernel = file(boot.kernel_path()).await?;
    let initrd = match boot.initrd_path() {
        Some(path) => Some(file(path).await?),
        None => None,
    };
    Ok(Kernel { kernel, initrd })
}

fn image_error(field: &Field, image: &ImageRef) -> impl Fn(ImageError) -> StorageError {
    move |source| StorageError::Image { field: field.clone(), image: image.to_string(), source }
}

fn text(path: &Path) -> Result<String, StorageError> {
    path.to_str().map(str::to_owned).ok_or_else(|| StorageError::NotUtf8(path.to_owned()))
}

#[cfg(test)]
mod tests;
