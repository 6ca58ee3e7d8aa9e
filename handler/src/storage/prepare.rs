//! From a checked spec to the files a VM is given: what is to be made is decided purely, then made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vireo_api::spec::{
    BootSource, CloudInit, Disk, Field, HostDiskCreate, ImageRef, KernelBoot, Vm, VolumeSource,
};
use vireo_proto::launcher::{DiskSource, disk_source};

use super::claims::{ClaimError, Claims};
use super::cloud_init::{self, CloudInitError, Layout as SeedLayout, Seed};
use super::host_disks::HostDisks;
use super::images::{ImageError, Images, Layout};
use super::volumes::{self, VolumeError};

/// A [`StorageError::reason`] that ends when a claim appears; KubeVirt's.
pub const NO_CLAIM: &str = "FailedPvcNotFound";
/// One that ends when a claim has its disk.
pub const NOT_BOUND: &str = "PvcNotBound";
/// One that ends when the image of a claim has come.
pub const NO_IMAGE: &str = "PvcNotPopulated";

/// What a VM's disks and kernel are on this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prepared {
    /// One per disk, in the order of [`Vm::fixed_disks`].
    pub disks: Vec<DiskSource>,
    /// The kernel to start, where firmware does not.
    pub kernel: Option<Kernel>,
    /// Where EFI's variables are kept, for a machine that keeps them.
    pub variables: Option<PathBuf>,
}

/// A kernel on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its image.
    pub kernel: PathBuf,
    /// Its initial ramdisk.
    pub initrd: Option<PathBuf>,
}

/// Why a VM's disks or its kernel are not there. Names the field that asked.
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
    /// A disk could not be made or opened.
    #[error("{field}: the disk cannot be used")]
    Volume {
        /// `spec.volumes[0].hostDisk`, ...
        field: Field,
        /// Why.
        source: VolumeError,
    },
    /// cloud-init's disk could not be made.
    #[error("{field}: the disk cannot be made")]
    CloudInit {
        /// `spec.volumes[0].cloudInitNoCloud`, ...
        field: Field,
        /// Why.
        source: CloudInitError,
    },
    /// A claim is not there, or is no disk.
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
    /// A path that the launcher's protocol cannot carry.
    #[error("the path {0:?} is not UTF-8: choose another state directory")]
    NotUtf8(PathBuf),
}

impl StorageError {
    /// The manifest's field that asked for what is not there, where one did.
    pub fn field(&self) -> Option<&Field> {
        match self {
            Self::Image { field, .. }
            | Self::Volume { field, .. }
            | Self::CloudInit { field, .. }
            | Self::Claim { field, .. } => Some(field),
            Self::Directory { .. } | Self::NotUtf8(_) => None,
        }
    }

    /// One word, KubeVirt's where it has one.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Claim { source: ClaimError::Absent { .. }, .. } => NO_CLAIM,
            Self::Claim { source: ClaimError::Unbound { .. }, .. } => NOT_BOUND,
            Self::Claim { source: ClaimError::NoImage { .. }, .. } => NO_IMAGE,
            _ => "FailedStorage",
        }
    }
}

/// What is to be made for one disk.
#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    /// A layer of the VM's own over a disk in an image.
    Overlay { image: &'a ImageRef, path: Option<&'a str>, at: PathBuf },
    /// cloud-init's disk.
    Seed { layout: SeedLayout, data: &'a CloudInit, at: PathBuf },
    /// An empty disk.
    Empty { capacity: u64, at: PathBuf },
    /// A file of the node.
    Host { path: &'a Path, create_with: Option<u64> },
    /// What is in a claim.
    Claim { name: &'a str },
    /// An empty CD-ROM drive.
    NoMedium,
}

/// Where disks come from and are made.
#[derive(Debug)]
pub struct Places {
    /// The VM's own directory.
    pub vmi: PathBuf,
    /// What is to outlive the VM.
    pub kept: PathBuf,
    /// What comes out of images, for every VM of the node.
    pub images: PathBuf,
    /// The node's claims.
    pub claims: Claims,
    /// Which files of the node may be disks.
    pub host_disks: HostDisks,
}

/// What is to be made for a disk of a VM whose volumes are in `volumes`. A disk's name is a DNS label, and so a file
/// name.
fn step<'a>(disk: &'a Disk, volumes: &Path) -> Step<'a> {
    let at = |extension: &str| volumes.join(format!("{}.{extension}", disk.name()));
    match disk.source() {
        VolumeSource::ContainerDisk { image, path } => {
            Step::Overlay { image, path: path.as_deref(), at: at("qcow2") }
        }
        VolumeSource::CloudInitNoCloud(data) => {
            Step::Seed { layout: SeedLayout::NoCloud, data, at: at("iso") }
        }
        VolumeSource::CloudInitConfigDrive(data) => {
            Step::Seed { layout: SeedLayout::ConfigDrive, data, at: at("iso") }
        }
        VolumeSource::EmptyDisk { capacity } => Step::Empty { capacity: capacity.get(), at: at("qcow2") },
        VolumeSource::HostDisk { path, create, shared: _ } => Step::Host {
            path,
            create_with: match create {
                HostDiskCreate::No => None,
                HostDiskCreate::Sized(capacity) => Some(capacity.get()),
            },
        },
        VolumeSource::PersistentVolumeClaim { name, .. } => Step::Claim { name },
        VolumeSource::NoMedium => Step::NoMedium,
    }
}

/// Looks for the claims that a VM starts with. Blocks.
///
/// # Errors
/// Names the field of the first one that is not there.
pub fn find_claims(vm: &Vm, claims: &Claims) -> Result<(), StorageError> {
    for disk in vm.fixed_disks() {
        if let VolumeSource::PersistentVolumeClaim { name, .. } = disk.source() {
            claim(vm, disk.source_field(), name, claims)?;
        }
    }
    Ok(())
}

fn claim(vm: &Vm, field: &Field, name: &str, claims: &Claims) -> Result<PathBuf, StorageError> {
    let found = claims.find(vm.identity().namespace(), name);
    found.map_err(|source| StorageError::Claim { field: field.clone(), source })
}

/// Makes a VM's disks, or finds them made. Blocks, and takes long where an image is new. What exists is kept, except
/// cloud-init's disk, which follows the manifest.
///
/// # Errors
/// Names the field whose source is not there. Nothing half-made is left.
pub fn prepare(vm: &Vm, places: &Places) -> Result<Prepared, StorageError> {
    let Places { vmi, kept, images, .. } = places;
    let volumes = vmi.join("volumes");
    directory(&volumes)?;
    let images = Images::new(images.clone());
    let disks = vm
        .fixed_disks()
        .map(|disk| make(vm, disk.source_field(), step(disk, &volumes), (&images, places)))
        .collect::<Result<_, _>>()?;
    let kernel = match vm.firmware().boot() {
        BootSource::Kernel(boot) => Some(kernel(boot, &images)?),
        BootSource::Bios { .. } | BootSource::Efi { .. } => None,
    };
    let variables = match vm.firmware().boot() {
        BootSource::Efi { persistent: true, .. } => {
            directory(kept)?;
            Some(kept.join("efi-variables.fd"))
        }
        BootSource::Efi { persistent: false, .. } | BootSource::Bios { .. } | BootSource::Kernel(_) => None,
    };
    Ok(Prepared { disks, kernel, variables })
}

/// Makes one disk of a VM, as [`prepare`] makes all that it starts with. Blocks.
///
/// # Errors
/// Names the field whose source is not there.
pub fn prepare_disk(vm: &Vm, disk: &Disk, places: &Places) -> Result<DiskSource, StorageError> {
    let volumes = places.vmi.join("volumes");
    directory(&volumes)?;
    let images = Images::new(places.images.clone());
    make(vm, disk.source_field(), step(disk, &volumes), (&images, places))
}

fn directory(path: &Path) -> Result<(), StorageError> {
    fs::create_dir_all(path).map_err(|source| StorageError::Directory { path: path.to_owned(), source })
}

fn make(
    vm: &Vm,
    field: &Field,
    step: Step<'_>,
    (images, places): (&Images, &Places),
) -> Result<DiskSource, StorageError> {
    let volume = |source| StorageError::Volume { field: field.clone(), source };
    let source = match step {
        Step::NoMedium => disk_source::Source::NoMedium(disk_source::NoMedium {}),
        Step::Claim { name } => {
            let path = claim(vm, field, name, &places.claims)?;
            disk_source::Source::Raw(disk_source::Raw { path: text(&path)? })
        }
        Step::Overlay { image, path, at } => {
            let backing = images
                .container_disk(&layout(image), image.tag(), path.map(Path::new))
                .map_err(image_error(field, image))?;
            volumes::overlay(&at, &backing).map_err(volume)?;
            let (path, backing_raw_path) = (text(&at)?, text(&backing)?);
            disk_source::Source::Overlay(disk_source::Overlay { path, backing_raw_path })
        }
        Step::Seed { layout, data, at } => {
            let data = Seed {
                layout,
                uuid: vm.firmware().uuid().to_string(),
                name: format!("{}.{}", vm.identity().name(), vm.identity().namespace()),
                hostname: vm.hostname(),
                user_data: data.user_data().unwrap_or_default(),
                network_data: data.network_data(),
            };
            cloud_init::write(&at, &data)
                .map_err(|source| StorageError::CloudInit { field: field.clone(), source })?;
            disk_source::Source::Raw(disk_source::Raw { path: text(&at)? })
        }
        Step::Empty { capacity, at } => {
            volumes::empty_disk(&at, capacity).map_err(volume)?;
            disk_source::Source::Qcow2(disk_source::Qcow2 { path: text(&at)? })
        }
        Step::Host { path, create_with } => {
            let path = places.host_disks.find(path).map_err(volume)?;
            volumes::host_disk(&path, create_with).map_err(volume)?;
            disk_source::Source::Raw(disk_source::Raw { path: text(&path)? })
        }
    };
    Ok(DiskSource { source: Some(source) })
}

fn kernel(boot: &KernelBoot, images: &Images) -> Result<Kernel, StorageError> {
    let file = |path: &str| {
        images
            .boot_file(&layout(boot.image()), boot.image().tag(), Path::new(path))
            .map_err(image_error(boot.field(), boot.image()))
    };
    Ok(Kernel { kernel: file(boot.kernel_path())?, initrd: boot.initrd_path().map(file).transpose()? })
}

fn layout(image: &ImageRef) -> Layout {
    match image {
        ImageRef::Layout { path, .. } => Layout::Directory(path.clone()),
        ImageRef::Archive { path, .. } => Layout::Archive(path.clone()),
    }
}

fn image_error(field: &Field, image: &ImageRef) -> impl Fn(ImageError) -> StorageError {
    move |source| StorageError::Image { field: field.clone(), image: image.to_string(), source }
}

fn text(path: &Path) -> Result<String, StorageError> {
    path.to_str().map(str::to_owned).ok_or_else(|| StorageError::NotUtf8(path.to_owned()))
}

#[cfg(test)]
mod tests;
