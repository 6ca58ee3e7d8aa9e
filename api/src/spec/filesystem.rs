//! File systems of volumes that the guest mounts by their names, by virtio-fs.

use super::report::Findings;
use super::syntax::{DNS_LABEL, is_dns_label, without_trailing_slash};
use super::volume::Volume;
use super::{Field, Projected, VolumeSource};
use crate::v1;

/// The longest tag of a device (VIRTIO 1.2, section 5.11.4).
const LONGEST_TAG: usize = 36;
/// The most of a VM: each has a process of its own.
const MOST: usize = 16;

/// A file system that the guest shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    name: String,
    field: Field,
    source: FilesystemSource,
    source_field: Field,
}

/// What a shared file system has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesystemSource {
    /// Files that are projected from objects. They are only read.
    Projected(Projected),
    /// A directory of the launcher's container. It is only read.
    ContainerPath {
        /// Absolute, without `.` and `..`.
        path: String,
    },
    /// The file system in a claim of the VM's namespace.
    Claim {
        /// It is not written to.
        read_only: bool,
    },
}

impl Filesystem {
    /// The name of the volume, and the tag by which the guest mounts it: a DNS label of at most 36 characters.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `spec.domain.devices.filesystems[0].virtiofs`.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// What it has.
    pub fn source(&self) -> &FilesystemSource {
        &self.source
    }

    /// The field of the volume: `spec.volumes[0].configMap`.
    pub fn source_field(&self) -> &Field {
        &self.source_field
    }

    /// Whether the guest may only read it.
    pub fn is_read_only(&self) -> bool {
        match self.source {
            FilesystemSource::Projected(_) | FilesystemSource::ContainerPath { .. } => true,
            FilesystemSource::Claim { read_only } => read_only,
        }
    }
}

/// Joins file systems with volumes.
pub(super) fn read(devices: &v1::Devices, volumes: &[Volume], found: &mut Findings) -> Vec<Filesystem> {
    let at = Field::new("spec.domain.devices.filesystems");
    if devices.filesystems.len() > MOST {
        found.too_many(&at, devices.filesystems.len(), MOST, "");
    }
    let mut read: Vec<Filesystem> = Vec::new();
    for (index, filesystem) in devices.filesystems.iter().enumerate() {
        let (at, name) = (at.index(index), &filesystem.name);
        let name_field = at.at("name");
        if filesystem.virtiofs.is_none() && filesystem.extra.is_empty() {
            found.required_value(&at.at("virtiofs"), "write virtiofs: {}");
        }
        if name.is_empty() {
            found.required_value(&name_field, "name the volume that is shared");
        } else if !is_dns_label(name) {
            found.invalid_value(&name_field, name, DNS_LABEL);
        } else if name.len() > LONGEST_TAG {
            let detail =
                format!("must be no more than {LONGEST_TAG} characters: it is the tag of the device");
            found.invalid_value(&name_field, name, detail);
        } else if devices.filesystems.iter().take(index).any(|other| other.name == *name) {
            found.duplicate_value(&name_field, name);
        } else if devices.disks.iter().any(|disk| disk.name == *name) {
            found.invalid(&name_field, "a disk has the volume: it is either a disk or a file system");
        } else if let Some(volume) = volumes.iter().find(|volume| volume.name == *name) {
            let source = source(volume, &name_field, found);
            read.extend(source.map(|(source, source_field)| Filesystem {
                name: name.clone(),
                field: at.at("virtiofs"),
                source,
                source_field,
            }));
        } else {
            let message =
                format!("no volume in spec.volumes is called {name:?}: add one, or remove the file system");
            found.not_found(&name_field, message);
        }
    }
    read
}

fn source(volume: &Volume, at: &Field, found: &mut Findings) -> Option<(FilesystemSource, Field)> {
    if let Some(path) = &volume.container_path {
        let path = without_trailing_slash(path).to_owned();
        return Some((FilesystemSource::ContainerPath { path }, volume.field.at("containerPath")));
    }
    match volume.source.as_ref()? {
        VolumeSource::Projected(projected) if !projected.is_sysprep() => {
            Some((FilesystemSource::Projected(projected.clone()), volume.field.at(projected.field())))
        }
        VolumeSource::PersistentVolumeClaim { read_only, hotpluggable: false, .. } => {
            let field = volume.field.at(volume.claim.unwrap_or_default());
            Some((FilesystemSource::Claim { read_only: *read_only }, field))
        }
        VolumeSource::PersistentVolumeClaim { .. } => {
            found.invalid(at, "a volume that is hotpluggable cannot be a file system: use a disk");
            None
        }
        _ => {
            let text = "only a configMap, secret, serviceAccount, downwardAPI, persistentVolumeClaim, \
                        dataVolume or containerPath is shared as a file system: use a disk";
            found.invalid(at, text);
            None
        }
    }
}
