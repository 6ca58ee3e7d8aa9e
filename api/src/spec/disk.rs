use std::collections::BTreeMap;

use vireo_vmconfig::{
    self as vmconfig, BlockSize, CacheMode, DiskBus, DiskDevice, DiskTuning, ErrorPolicy, IoMode, PciSlot,
    UnknownName, VIRTIO_SERIAL_LEN,
};

use super::report::Findings;
use super::syntax::{DNS_LABEL, is_dns_label};
use super::volume::Volume;
use super::{Field, VolumeSource};
use crate::v1;

/// The longest serial KubeVirt takes.
const SERIAL: usize = 256;

/// A disk with its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    config: vmconfig::Disk<VolumeSource>,
    tag: String,
    index: usize,
    source_field: Field,
}

impl Disk {
    /// What hypervisors need of it. The content is [`VolumeSource::NoMedium`] for an empty CD-ROM drive.
    pub fn config(&self) -> &vmconfig::Disk<VolumeSource> {
        &self.config
    }

    /// The common name of disk and volume; a DNS label.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// By which the guest knows it in a config drive; empty without one.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The position in the list of disks, from 0: `vda` is the first on its bus.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The content; [`VolumeSource::NoMedium`] for an empty CD-ROM drive.
    pub fn source(&self) -> &VolumeSource {
        &self.config.source
    }

    /// Whether it is attached once the VM runs and can be detached.
    pub fn is_hotpluggable(&self) -> bool {
        self.config.source.is_hotpluggable() && !self.config.is_cdrom()
    }

    /// Whether it is a CD-ROM drive that is empty at the start, whose medium is inserted once the VM runs and can be ejected.
    pub fn has_hotpluggable_medium(&self) -> bool {
        self.config.source.is_hotpluggable() && self.config.is_cdrom()
    }

    /// The field of the volume, `spec.volumes[0].containerDisk`; that of the drive if there is none.
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
            && volume.memory_dump.is_none()
    };
    let added = volumes.iter().filter(unnamed).map(|volume| {
        // Windows looks for answer files on media that can be removed.
        let is_sysprep = matches!(&volume.source, Some(VolumeSource::Projected(one)) if one.is_sysprep());
        let cdrom = is_sysprep.then(Default::default);
        v1::Disk { name: volume.name.clone(), cdrom, ..v1::Disk::default() }
    });
    let mut disks = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for (index, disk) in devices.disks.iter().cloned().chain(added).enumerate() {
        let at = at.index(index);
        let named = name(&disk.name, &names, &at.at("name"), index < devices.disks.len(), found);
        let order = boot_order(disk.boot_order, &at.at("bootOrder"), taken, found);
        let Target { bus, field: bus_field, device, read_only } = target(&disk, &at, found);
        serial(&disk.serial, bus, &at.at("serial"), found);
        refused(&disk, &at, found);
        let tuning = tuning(&disk, bus, devices, &at, found);
        let (cache, io) = cache_and_io(&disk, &at, found);
        let error_policy = error_policy(disk.error_policy.as_deref(), &at.at("errorPolicy"), found);
        let volume = volumes.iter().find(|volume| volume.name == disk.name);
        let is_empty_drive = volume.is_none() && disk.cdrom.is_some();
        if volume.is_none() && !is_empty_drive && named {
            found.not_found(
                &at.at("name"),
                format!("no volume in spec.volumes is called {:?}: add one, or remove the disk", disk.name),
            );
        }
        if disk.lun.is_some() && volume.is_some_and(|volume| volume.claim.is_none()) {
            found.invalid(&at.at("lun"), "shows only a persistentVolumeClaim or a dataVolume: use disk");
        }
        if let Some(volume) = volume.filter(|volume| volume.container_path.is_some()) {
            let text = "is a file system and not a disk: name it in spec.domain.devices.filesystems alone";
            found.invalid(&volume.field.at("containerPath"), text);
        }
        if let Some(volume) = volume.filter(|volume| volume.memory_dump.is_some()) {
            let text =
                "is written to by the host and is not a disk of the guest: remove the disk of its name";
            found.invalid(&volume.field.at("memoryDump"), text);
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
        if source.is_read_only() && bus == DiskBus::Sata && !read_only {
            let message = format!("a sata disk cannot be read-only, and {source_field} is: {SATA_ADVICE}");
            found.invalid(&bus_field, message);
        }
        if disk.shareable == Some(true) && !source.is_writable_by_others() {
            let text = "is for the disks that other VMs have, too: a persistentVolumeClaim, a dataVolume or a hostDisk";
            found.invalid(&at.at("shareable"), text);
        }
        if source.is_hotpluggable() {
            let target = disk.disk.as_ref();
            let hotplugged = HotpluggedDisk {
                at: &at,
                bus,
                bus_field: &bus_field,
                boot_order: order,
                pci_address: target.map(|target| target.pci_address.as_str()).unwrap_or_default(),
                has_thread: tuning.dedicated_io_thread,
                matches_volume: tuning.block_size == BlockSize::Volume,
            };
            match device {
                DiskDevice::Disk => hotplugged.validate(devices, found),
                DiskDevice::CdRom => {}
            }
        }
        let config = vmconfig::Disk {
            name: disk.name,
            field: bus_field.to_string(),
            bus,
            device,
            // A sata disk cannot be read-only: writes go to the VMI's own copy.
            read_only: read_only
                || source.is_read_only()
                || (matches!(source, VolumeSource::Projected(_)) && bus != DiskBus::Sata),
            serial: if tuning.scsi_passthrough { String::new() } else { disk.serial },
            boot_order: order,
            cache,
            io,
            error_policy,
            tuning,
            source,
        };
        let disk = Disk { config, tag: disk.tag, index, source_field };
        tag(&disk, &at.at("tag"), found);
        disks.push(disk);
    }
    disks
}

/// A disk that is attached to a VM while it runs. A drive for a medium is there from the start.
struct HotpluggedDisk<'a> {
    at: &'a Field,
    bus: DiskBus,
    bus_field: &'a Field,
    boot_order: Option<u32>,
    pci_address: &'a str,
    has_thread: bool,
    matches_volume: bool,
}

impl HotpluggedDisk<'_> {
    fn validate(&self, devices: &v1::Devices, found: &mut Findings) {
        if !matches!(self.bus, DiskBus::Scsi | DiskBus::Virtio) {
            found.invalid(self.bus_field, "a volume that is hotpluggable needs the bus scsi or virtio");
        }
        if self.boot_order.is_some() {
            let message =
                "a volume that is hotpluggable is not there yet when firmware looks for something to start";
            found.not_supported(&self.at.at("bootOrder"), message);
        }
        if !self.pci_address.is_empty() {
            found.invalid(
                &self.at.at("disk").at("pciAddress"),
                "is not for a volume that is hotpluggable: its port is chosen",
            );
        }
        found.notice_if(
            self.matches_volume,
            &self.at.at("blockSize").at("matchVolume"),
            "a disk that is plugged in has blocks of 512 bytes",
        );
        found.notice_if(
            self.has_thread,
            &self.at.at("dedicatedIOThread"),
            "a disk that is plugged in has no thread of its own",
        );
        if devices.disable_hotplug == Some(true) {
            let message =
                "the hypervisor has no hotplug slots, and a volume is hotpluggable: remove one of the two";
            found.invalid(&Field::new("spec.domain.devices.disableHotplug"), message);
        }
    }
}

fn source_field(volume: &Volume, source: &VolumeSource) -> Field {
    volume.field.at(match source {
        VolumeSource::ContainerDisk { .. } => "containerDisk",
        VolumeSource::CloudInitNoCloud(_) => "cloudInitNoCloud",
        VolumeSource::CloudInitConfigDrive(_) => "cloudInitConfigDrive",
        VolumeSource::DownwardMetrics => "downwardMetrics",
        VolumeSource::EmptyDisk { .. } => "emptyDisk",
        VolumeSource::Ephemeral { .. } => "ephemeral",
        VolumeSource::HostDisk { .. } => "hostDisk",
        VolumeSource::PersistentVolumeClaim { .. } => volume.claim.unwrap_or_default(),
        VolumeSource::Projected(projected) => projected.field(),
        VolumeSource::NoMedium => "",
    })
}

/// Whether it is a name that no disk before it has. The name of an added disk is its volume's, and reported there.
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

/// What is below `disk`, `cdrom` or `lun`.
struct Target {
    bus: DiskBus,
    /// The field of the bus.
    field: Field,
    device: DiskDevice,
    read_only: bool,
}

fn target(disk: &v1::Disk, at: &Field, found: &mut Findings) -> Target {
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
        return Target { bus, field: at.at("bus"), device: DiskDevice::CdRom, read_only: true };
    }
    if let Some(lun) = &disk.lun {
        let (outer, at) = (at, at.at("lun"));
        found.refuse_if(
            lun.reservation == Some(true),
            &at.at("reservation"),
            "a SCSI persistent reservation",
        );
        let field = at.at("bus");
        if !lun.bus.is_empty() && bus(&lun.bus, &field, found) != DiskBus::Scsi {
            found.invalid_value(&field, &lun.bus, "must be scsi: other buses do not pass SCSI commands on");
        }
        let own = "has no effect: the guest sees that of the device itself";
        found.notice_if(!disk.serial.is_empty(), &outer.at("serial"), own);
        found.notice_if(disk.block_size.is_some(), &outer.at("blockSize"), own);
        let read_only = lun.readonly == Some(true);
        return Target { bus: DiskBus::Scsi, field, device: DiskDevice::Disk, read_only };
    }
    let empty = v1::DiskTarget::default();
    let target = disk.disk.as_ref().unwrap_or(&empty);
    let at = at.at("disk");
    let bus = bus(&target.bus, &at.at("bus"), found);
    let read_only = target.readonly == Some(true);
    if read_only && bus == DiskBus::Sata {
        found.invalid(&at.at("bus"), format!("a sata disk cannot be read-only: {SATA_ADVICE}"));
    }
    if !target.pci_address.is_empty() && bus != DiskBus::Virtio {
        found.invalid(&at.at("pciAddress"), "is for disks on the bus virtio: change the bus, or remove it");
    }
    Target { bus, field: at.at("bus"), device: DiskDevice::Disk, read_only }
}

const SATA_ADVICE: &str = "use virtio or scsi, or a cdrom";

/// The default is KubeVirt's.
fn bus(text: &str, at: &Field, found: &mut Findings) -> DiskBus {
    match text {
        "" => DiskBus::Sata,
        text => text.parse().unwrap_or_else(|UnknownName { supported }| {
            found.unsupported_value(at, text, supported);
            DiskBus::Sata
        }),
    }
}

fn serial(serial: &str, bus: DiskBus, at: &Field, found: &mut Findings) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'+' | b'-');
    if serial.len() > SERIAL {
        found.invalid(at, format!("is {} bytes long: at most {SERIAL} are taken", serial.len()));
    } else if !serial.bytes().all(plain) {
        found.invalid_value(at, serial, "must consist of letters, digits, '_', '.', '+' and '-'");
    } else if bus == DiskBus::Virtio && serial.len() > VIRTIO_SERIAL_LEN {
        found.invalid(
            at,
            format!("is {} bytes long: a virtio disk has room for {VIRTIO_SERIAL_LEN}", serial.len()),
        );
    }
}

/// As in KubeVirt, native I/O is only for disks that bypass the page cache; they do so where no cache mode is given.
fn cache_and_io(disk: &v1::Disk, at: &Field, found: &mut Findings) -> (CacheMode, Option<IoMode>) {
    let io = match disk.io.as_str() {
        "" => None,
        text => text
            .parse()
            .map_err(|_| found.invalid_value(&at.at("io"), text, "must be native or threads"))
            .ok(),
    };
    let cache = match disk.cache.as_str() {
        "" if io == Some(IoMode::Native) || disk.shareable == Some(true) => CacheMode::None,
        "" => CacheMode::default(),
        text => text.parse().unwrap_or_else(|UnknownName { .. }| {
            found.invalid_value(&at.at("cache"), text, "must be none, writethrough or writeback");
            CacheMode::None
        }),
    };
    if disk.shareable == Some(true) && cache != CacheMode::None {
        let text = format_args!("a sharable disk requires cache = none got: {cache}");
        found.invalid_value(&at.at("cache"), &disk.cache, text);
    }
    if !cache.supports(io) {
        found.invalid_value(
            &at.at("io"),
            &disk.io,
            format_args!("requires the cache mode none, not {cache}"),
        );
    }
    (cache, io)
}

fn error_policy(text: Option<&str>, at: &Field, found: &mut Findings) -> ErrorPolicy {
    let Some(text) = text else { return ErrorPolicy::default() };
    text.parse().unwrap_or_else(|UnknownName { supported }| {
        found.unsupported_value(at, text, supported);
        ErrorPolicy::default()
    })
}

/// A config drive, which is made when the VM starts, names disks by their serial numbers and addresses.
fn tag(disk: &Disk, at: &Field, found: &mut Findings) {
    let config = disk.config();
    let has_address = match config.bus {
        DiskBus::Sata | DiskBus::Scsi => true,
        DiskBus::Virtio => config.tuning.pci_slot.is_some(),
        DiskBus::Usb => false,
    };
    let why = if disk.is_hotpluggable() {
        "the config drive has no tag of a disk that is hotplugged"
    } else if !has_address && config.serial.is_empty() {
        "the config drive has no tag of a disk on virtio or usb without serial: write one"
    } else {
        return;
    };
    found.notice_if(!disk.tag.is_empty(), at, why);
}

fn refused(disk: &v1::Disk, at: &Field, found: &mut Findings) {
    found.refuse_if(
        disk.changed_block_tracking == Some(true),
        &at.at("changedBlockTracking"),
        "incremental backup",
    );
}

fn tuning(
    disk: &v1::Disk,
    bus: DiskBus,
    devices: &v1::Devices,
    at: &Field,
    found: &mut Findings,
) -> DiskTuning {
    let dedicated_io_thread = disk.dedicated_io_thread == Some(true);
    if dedicated_io_thread && bus != DiskBus::Virtio {
        found.not_supported(at, "dedicatedIOThread is for virtio disks: change the bus, or remove it");
    }
    let block_size = match &disk.block_size {
        Some(size) if disk.lun.is_none() => block_size(size, &at.at("blockSize"), found),
        _ => BlockSize::Default,
    };
    if let BlockSize::Custom { logical, .. } = block_size
        && bus == DiskBus::Sata
        && logical != 512
    {
        let field = at.at("blockSize").at("custom").at("logical");
        found.invalid_value(&field, logical, "must be 512 on the bus sata");
    }
    let address = disk.disk.as_ref().map(|target| target.pci_address.as_str()).unwrap_or_default();
    let pci_slot = pci_slot(address, &at.at("disk").at("pciAddress"), found);
    let multi_queue = devices.block_multi_queue == Some(true) && bus == DiskBus::Virtio;
    let (shareable, scsi_passthrough) = (disk.shareable == Some(true), disk.lun.is_some());
    DiskTuning { block_size, dedicated_io_thread, multi_queue, pci_slot, shareable, scsi_passthrough }
}

/// A slot of the PCI bus, where one is written.
pub(super) fn pci_slot(address: &str, at: &Field, found: &mut Findings) -> Option<PciSlot> {
    if address.is_empty() {
        return None;
    }
    let slot = address.parse();
    slot.map_err(|error: vmconfig::InvalidPciSlot| found.invalid_value(at, address, error)).ok()
}

fn block_size(size: &v1::BlockSize, at: &Field, found: &mut Findings) -> BlockSize {
    let volume = size.match_volume.as_ref().is_some_and(|volume| volume.enabled != Some(false));
    match (&size.custom, volume) {
        (Some(_), true) => {
            found.invalid(at, "has both custom and matchVolume: keep one");
            BlockSize::Default
        }
        (None, true) => BlockSize::Volume,
        (None, false) => BlockSize::Default,
        (Some(custom), false) => {
            let at = at.at("custom");
            let sizes = [("logical", custom.logical), ("physical", custom.physical)];
            let [logical, physical] = sizes.map(|(name, bytes)| {
                if bytes.is_none() {
                    found.required_value(&at.at(name), "the size of a block in bytes, such as 4096");
                } else if !bytes.is_some_and(BlockSize::is_valid) {
                    let detail = format!("must be a power of two between 512 and {}", BlockSize::MAX);
                    found.invalid_value(&at.at(name), bytes, detail);
                }
                bytes.unwrap_or(512)
            });
            if logical > physical {
                let detail = format!("must not be above the physical size, which is {physical}");
                found.invalid_value(&at.at("logical"), logical, detail);
            }
            let discard_granularity = custom.discard_granularity.filter(|bytes| *bytes > 0);
            if discard_granularity.is_some_and(|bytes| bytes % logical.max(1) != 0) {
                let detail = format!("must be a multiple of the logical size, which is {logical}");
                found.invalid_value(&at.at("discardGranularity"), custom.discard_granularity, detail);
            }
            BlockSize::Custom { logical, physical, discard_granularity }
        }
    }
}
