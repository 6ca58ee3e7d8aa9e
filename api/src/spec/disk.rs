use std::collections::BTreeMap;

use super::report::Findings;
use super::syntax::{DNS_LABEL, is_dns_label};
use super::volume::Volume;
use super::{Field, VolumeSource};
use crate::v1;

/// The longest serial KubeVirt takes.
const SERIAL: usize = 256;
/// The longest serial a virtio disk can tell (virtio 1.2, section 5.2.6).
const VIRTIO_SERIAL: usize = 20;

/// A disk with what it is filled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    name: String,
    index: usize,
    bus: DiskBus,
    bus_field: Field,
    target: DiskTarget,
    serial: String,
    boot_order: Option<u32>,
    cache: Option<Cache>,
    error_policy: ErrorPolicy,
    source: VolumeSource,
    source_field: Field,
}

/// How a disk is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskBus {
    /// virtio-blk.
    Virtio,
    /// AHCI; what a disk gets that does not say.
    Sata,
    /// virtio-scsi.
    Scsi,
    /// USB mass storage.
    Usb,
}

/// What a disk is to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskTarget {
    /// A disk.
    Disk {
        /// The guest may not write.
        read_only: bool,
    },
    /// A CD-ROM, which is never written to.
    CdRom,
}

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// When the device has it; the host's page cache is passed by.
    None,
    /// When stable storage has it.
    WriteThrough,
    /// When the host's page cache has it; the guest flushes.
    WriteBack,
}

/// What becomes of requests that the host cannot carry out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// The guest is paused, and goes on once they succeed; as KubeVirt has it where nothing is said.
    #[default]
    Stop,
    /// The guest gets an I/O error.
    Report,
    /// The guest is told that they succeeded.
    Ignore,
    /// As stop for writes where the host has no space, as report otherwise.
    Enospace,
}

impl Disk {
    /// The volume's and the disk's common name; a DNS label.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place among the machine's disks, from 0: `vda` is the first on its bus.
    pub fn index(&self) -> usize {
        self.index
    }

    /// How it is attached.
    pub fn bus(&self) -> DiskBus {
        self.bus
    }

    /// Where the bus was decided: `spec.domain.devices.disks[0].disk.bus`.
    pub fn field(&self) -> &Field {
        &self.bus_field
    }

    /// What it is to the guest.
    pub fn target(&self) -> DiskTarget {
        self.target
    }

    /// Whether the guest may not write.
    pub fn is_read_only(&self) -> bool {
        self.target != DiskTarget::Disk { read_only: false } || self.source.is_read_only()
    }

    /// What the guest reads as its serial number; may be empty.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// From 1; unique in the machine.
    pub fn boot_order(&self) -> Option<u32> {
        self.boot_order
    }

    /// When a write counts as done; the hypervisor's choice when absent.
    pub fn cache(&self) -> Option<Cache> {
        self.cache
    }

    /// What becomes of requests that the host cannot carry out.
    pub fn error_policy(&self) -> ErrorPolicy {
        self.error_policy
    }

    /// What it is filled from; [`VolumeSource::NoMedium`] for an empty CD-ROM drive.
    pub fn source(&self) -> &VolumeSource {
        &self.source
    }

    /// Whether it is plugged in once the machine runs, and may be plugged out.
    pub fn is_hotpluggable(&self) -> bool {
        self.source.is_hotpluggable()
    }

    /// Where the volume was written: `spec.volumes[0].containerDisk`; the drive itself where there is none.
    pub fn source_field(&self) -> &Field {
        &self.source_field
    }
}

/// Boot orders that are taken, by whom.
pub(super) type BootOrders = BTreeMap<u32, Field>;

pub(super) fn boot_order(
    order: Option<u32>,
    at: &Field,
    taken: &mut BootOrders,
    found: &mut Findings,
) -> Option<u32> {
    let order = order?;
    if order == 0 {
        found.invalid_value(at, order, "must be greater than or equal to 1");
        return None;
    }
    if let Some(other) = taken.get(&order) {
        found.duplicate(
            at,
            format!("Duplicate value: {order}: {other} has this boot order: give every device its own"),
        );
        return None;
    }
    taken.insert(order, at.clone());
    Some(order)
}

/// Joins disks with volumes. A volume that no disk and no file system names becomes a disk of its name, as
/// KubeVirt's defaulting has it.
pub(super) fn read(
    devices: &v1::Devices,
    volumes: &[Volume],
    taken: &mut BootOrders,
    found: &mut Findings,
) -> Vec<Disk> {
    let at = Field::new("spec.domain.devices.disks");
    let unnamed = |volume: &&Volume| {
        devices.disks.iter().all(|disk| disk.name != volume.name)
            && devices.filesystems.iter().all(|filesystem| filesystem.name != volume.name)
            && !volume.name.is_empty()
    };
    let added = volumes
        .iter()
        .filter(unnamed)
        .map(|volume| v1::Disk { name: volume.name.clone(), ..v1::Disk::default() });
    let mut disks = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for (index, disk) in devices.disks.iter().cloned().chain(added).enumerate() {
        let at = at.index(index);
        let named = name(&disk.name, &names, &at.at("name"), index < devices.disks.len(), found);
        let order = boot_order(disk.boot_order, &at.at("bootOrder"), taken, found);
        let (bus, bus_field, target) = target(&disk, &at, found);
        serial(&disk.serial, bus, &at.at("serial"), found);
        properties(&disk, bus, &at, found);
        let cache = cache(&disk.cache, &at.at("cache"), found);
        let error_policy = error_policy(disk.error_policy.as_deref(), &at.at("errorPolicy"), found);
        let volume = volumes.iter().find(|volume| volume.name == disk.name);
        let is_empty_drive = volume.is_none() && disk.cdrom.is_some();
        if volume.is_none() && !is_empty_drive && named {
            found.not_found(
                &at.at("name"),
                format!("no volume in spec.volumes is called {:?}: add one, or remove the disk", disk.name),
            );
        }
        if disk.lun.is_some() && volume.is_some_and(|volume| !volume.claim) {
            found.invalid(&at.at("lun"), "shows only a persistentVolumeClaim or a dataVolume: use disk");
        }
        names.push(disk.name.clone());
        let (source, source_field) = match volume {
            None if is_empty_drive => (VolumeSource::NoMedium, at.at("cdrom")),
            None => continue,
            Some(volume) => match volume.source.clone() {
                None => continue,
                Some(source) => {
                    let field = source_field(volume, &source);
                    (source, field)
                }
            },
        };
        if source.is_read_only() && bus == DiskBus::Sata && target == (DiskTarget::Disk { read_only: false })
        {
            let message = format!("a sata disk cannot be read-only, and {source_field} is: {SATA_ADVICE}");
            found.invalid(&bus_field, message);
        }
        if source.is_hotpluggable() {
            pluggable((bus, &bus_field), target, (order, &at), (devices, found));
        }
        disks.push(Disk {
            name: disk.name,
            index,
            bus,
            bus_field,
            target,
            serial: disk.serial,
            boot_order: order,
            cache,
            error_policy,
            source_field,
            source,
        });
    }
    disks
}

/// What can be plugged into a machine that runs.
fn pluggable(
    (bus, bus_field): (DiskBus, &Field),
    target: DiskTarget,
    (order, at): (Option<u32>, &Field),
    (devices, found): (&v1::Devices, &mut Findings),
) {
    if target == DiskTarget::CdRom {
        found.invalid(&at.at("cdrom"), "a CD-ROM cannot be plugged in: use disk");
    } else if !matches!(bus, DiskBus::Scsi | DiskBus::Virtio) {
        found.invalid(bus_field, "a volume that is hotpluggable needs the bus scsi or virtio");
    }
    if order.is_some() {
        let message =
            "a volume that is hotpluggable is not there yet when firmware looks for something to start";
        found.not_supported(&at.at("bootOrder"), message);
    }
    if devices.disable_hotplug == Some(true) {
        let message =
            "nothing can be plugged into the machine, and a volume is hotpluggable: remove one of the two";
        found.invalid(&Field::new("spec.domain.devices.disableHotplug"), message);
    }
}

fn source_field(volume: &Volume, source: &VolumeSource) -> Field {
    volume.field.at(match source {
        VolumeSource::ContainerDisk { .. } => "containerDisk",
        VolumeSource::CloudInitNoCloud(_) => "cloudInitNoCloud",
        VolumeSource::CloudInitConfigDrive(_) => "cloudInitConfigDrive",
        VolumeSource::EmptyDisk { .. } => "emptyDisk",
        VolumeSource::HostDisk { .. } => "hostDisk",
        VolumeSource::PersistentVolumeClaim { .. } => "persistentVolumeClaim",
        VolumeSource::NoMedium => "",
    })
}

/// Whether it is a name that no disk before it has. The name of an added disk is its volume's, and told there.
fn name(name: &str, names: &[String], at: &Field, written: bool, found: &mut Findings) -> bool {
    if !written {
        return true;
    }
    if name.is_empty() {
        found.required_value(at, "name the volume the disk shows");
    } else if !is_dns_label(name) {
        found.invalid_value(at, name, DNS_LABEL);
    } else if names.iter().any(|known| known == name) {
        found.duplicate_value(at, name);
    } else {
        return true;
    }
    false
}

fn target(disk: &v1::Disk, at: &Field, found: &mut Findings) -> (DiskBus, Field, DiskTarget) {
    let kinds = [disk.disk.is_some(), disk.cdrom.is_some(), disk.lun.is_some()];
    if kinds.iter().filter(|there| **there).count() > 1 {
        found.invalid(at, "is a disk, a cdrom or a lun: keep one");
    }
    if let Some(cdrom) = &disk.cdrom {
        let at = at.at("cdrom");
        let bus = bus(&cdrom.bus, &at.at("bus"), found);
        if bus == DiskBus::Virtio {
            found.invalid_value(&at.at("bus"), "virtio", "a CD-ROM must have the bus sata, scsi or usb");
        }
        found.refuse_if(cdrom.readonly == Some(false), &at.at("readonly"), "a writable CD-ROM");
        match cdrom.tray.as_str() {
            "" | "closed" => {}
            "open" => found.refuse_if(true, &at.at("tray"), "an open tray"),
            other => found.invalid_value(&at.at("tray"), other, "must be open or closed"),
        }
        return (bus, at.at("bus"), DiskTarget::CdRom);
    }
    if let Some(lun) = &disk.lun {
        let at = at.at("lun");
        found.refuse_if(true, &at, "a SCSI device handed through");
        return (bus(&lun.bus, &at.at("bus"), found), at.at("bus"), DiskTarget::Disk { read_only: false });
    }
    let empty = v1::DiskTarget::default();
    let target = disk.disk.as_ref().unwrap_or(&empty);
    let at = at.at("disk");
    let bus = bus(&target.bus, &at.at("bus"), found);
    let read_only = target.readonly == Some(true);
    if read_only && bus == DiskBus::Sata {
        found.invalid(&at.at("bus"), format!("a sata disk cannot be read-only: {SATA_ADVICE}"));
    }
    found.refuse_if(!target.pci_address.is_empty(), &at.at("pciAddress"), "a fixed PCI address");
    (bus, at.at("bus"), DiskTarget::Disk { read_only })
}

const SATA_ADVICE: &str = "use virtio or scsi, or a cdrom";

fn bus(text: &str, at: &Field, found: &mut Findings) -> DiskBus {
    match text {
        "" | "sata" => DiskBus::Sata,
        "virtio" => DiskBus::Virtio,
        "scsi" => DiskBus::Scsi,
        "usb" => DiskBus::Usb,
        other => {
            found.unsupported_value(at, other, &["sata", "scsi", "usb", "virtio"]);
            DiskBus::Sata
        }
    }
}

fn serial(serial: &str, bus: DiskBus, at: &Field, found: &mut Findings) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'+' | b'-');
    if serial.len() > SERIAL {
        found.invalid(at, format!("is {} bytes long: at most {SERIAL} are taken", serial.len()));
    } else if !serial.bytes().all(plain) {
        found.invalid_value(at, serial, "must consist of letters, digits, '_', '.', '+' and '-'");
    } else if bus == DiskBus::Virtio && serial.len() > VIRTIO_SERIAL {
        found.invalid(
            at,
            format!("is {} bytes long: a virtio disk has room for {VIRTIO_SERIAL}", serial.len()),
        );
    }
}

fn cache(text: &str, at: &Field, found: &mut Findings) -> Option<Cache> {
    match text {
        "" => None,
        "none" => Some(Cache::None),
        "writethrough" => Some(Cache::WriteThrough),
        "writeback" => Some(Cache::WriteBack),
        other => {
            found.invalid_value(at, other, "must be none, writethrough or writeback");
            None
        }
    }
}

fn error_policy(text: Option<&str>, at: &Field, found: &mut Findings) -> ErrorPolicy {
    match text {
        None | Some("stop") => ErrorPolicy::Stop,
        Some("report") => ErrorPolicy::Report,
        Some("ignore") => ErrorPolicy::Ignore,
        Some("enospace") => ErrorPolicy::Enospace,
        Some(other) => {
            found.unsupported_value(at, other, &["enospace", "ignore", "report", "stop"]);
            ErrorPolicy::Stop
        }
    }
}

fn properties(disk: &v1::Disk, bus: DiskBus, at: &Field, found: &mut Findings) {
    let thread = at.at("dedicatedIOThread");
    if disk.dedicated_io_thread == Some(true) {
        if bus != DiskBus::Virtio {
            found.not_supported(at, "dedicatedIOThread is for virtio disks: change the bus, or remove it");
        }
        found.notice_if(true, &thread, "the hypervisor decides about threads");
    }
    match disk.io.as_str() {
        "" => {}
        "native" | "threads" => {
            found.notice_if(true, &at.at("io"), "the hypervisor decides how it reads and writes");
        }
        other => found.invalid_value(&at.at("io"), other, "must be native or threads"),
    }
    found.notice_if(!disk.tag.is_empty(), &at.at("tag"), "config drives do not tell tags yet");
    found.refuse_if(disk.block_size.is_some(), &at.at("blockSize"), "choosing a sector size");
    found.refuse_if(disk.shareable == Some(true), &at.at("shareable"), "sharing a disk between machines");
    found.refuse_if(
        disk.changed_block_tracking == Some(true),
        &at.at("changedBlockTracking"),
        "incremental backup",
    );
}
