//! What the hypervisor native does not support. Admission, the requests of launcher Pods and launchers decide by this list.

use std::ops::RangeInclusive;

use crate::{
    BlockSize, Cpu, CpuModel, DeviceRequest, Disk, DiskBus, ExtraDevice, FieldPaths, IoThreads, NicModel,
    PciSlot, VIRTIO_SERIAL_LEN, Video,
};

/// The sizes of guest memory, in bytes: what a kernel can be loaded into, and what the 64-bit PCI window and hosts with 46 bits
/// of physical addresses leave room for.
pub const NATIVE_MEMORY: RangeInclusive<u64> = 16 << 20..=64 << 30;
const PAGE: u64 = 4096;
/// Slots on the root bus that are left for devices: the host bridge and the LPC bridge take two of 32.
pub const NATIVE_SLOTS: usize = 29;
/// The most hotplug slots. There are fewer where other devices leave fewer slots.
pub const NATIVE_HOTPLUG_SLOTS: usize = 8;
/// Drives on the SATA controller, which shares the slot of the LPC bridge.
pub const SATA_PORTS: usize = 6;
/// NUMA nodes that a guest may have: the tables that describe them have a place of limited size.
pub const NATIVE_NUMA_NODES: usize = 32;

/// A requested feature that a hypervisor does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The field of the manifest that requests it.
    pub field: String,
    /// The feature, with its article where it has one: `the bus usb`.
    pub what: String,
}

impl Requirement {
    /// A feature that a field requests.
    pub fn new(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { field: field.into(), what: what.into() }
    }
}

/// What a VM requests of its hypervisor, as far as not every hypervisor supports it.
#[derive(Clone, Debug)]
pub struct NativeRequest<'a> {
    /// The fields of the manifest.
    pub fields: &'a FieldPaths,
    /// vCPUs.
    pub cpu: &'a Cpu,
    /// How many NUMA nodes of the host it has; 0 where the host is not known.
    pub numa_nodes: usize,
    /// Guest memory.
    pub memory_bytes: u64,
    /// It starts through BIOS.
    pub bios: bool,
    /// It starts through EFI with secure boot.
    pub secure_boot: bool,
    /// The disks that are there from the start.
    pub disks: Vec<Disk<()>>,
    /// NICs.
    pub nics: Vec<NativeNic<'a>>,
    /// How many file systems it shares.
    pub filesystems: usize,
    /// An entropy device.
    pub rng: bool,
    /// A memory balloon.
    pub balloon: bool,
    /// The display adapter.
    pub video: Option<Video>,
    /// Virtio tablets.
    pub tablets: u32,
    /// The threads of disks.
    pub io_threads: Option<IoThreads>,
    /// The volumes that are attached as soon as it runs: the field of the first one, and how many there are.
    pub hotplug: Option<(&'a str, usize)>,
    /// What only some hypervisors have.
    pub extra_devices: &'a [DeviceRequest],
}

/// A NIC of a [`NativeRequest`].
#[derive(Clone, Copy, Debug)]
pub struct NativeNic<'a> {
    /// Its field.
    pub field: &'a str,
    /// What the guest sees.
    pub model: NicModel,
    /// Its slot on the PCI bus, where it is chosen.
    pub pci_slot: Option<PciSlot>,
    /// By which the guest names it.
    pub acpi_index: Option<u32>,
    /// Rank among the boot devices.
    pub boot_order: Option<u32>,
}

/// Every requested feature that the hypervisor native does not support, in the order of the manifest.
pub fn unsupported_by_native(request: &NativeRequest<'_>) -> Vec<Requirement> {
    let mut requirements = of_cpu_and_memory(request);
    requirements.extend(request.disks.iter().flat_map(of_disk));
    requirements.extend(of_slots(request));
    if let Some(IoThreads::Supplemental(count)) = request.io_threads {
        // A virtio disk has a thread of its own.
        let what = format!("{count} threads for each disk");
        requirements.push(Requirement::new(&request.fields.io_threads, what));
    }
    requirements.extend(request.nics.iter().flat_map(|nic| of_nic(nic, request.bios)));
    if let Some(video @ (Video::Cirrus | Video::Ramfb)) = request.video {
        let what = format!("a {video} display adapter");
        requirements.push(Requirement::new(&request.fields.video, what));
    }
    requirements.extend(of_hotplug(request));
    let extra = request.extra_devices.iter().filter(|extra| !extra.device.is_native());
    requirements.extend(extra.map(|extra| Requirement::new(&extra.field, extra.device.to_string())));
    requirements
}

fn of_cpu_and_memory(request: &NativeRequest<'_>) -> Vec<Requirement> {
    let (mut requirements, fields) = (Vec::new(), request.fields);
    if let CpuModel::Named(model) = request.cpu.model() {
        requirements.push(Requirement::new(&fields.cpu_model, format!("the CPU model {model}")));
    }
    if let Some(feature) = request.cpu.features().first() {
        let what = format!("the CPU feature {} by name", feature.name());
        requirements.push(Requirement::new(&fields.cpu_features, what));
    }
    if request.numa_nodes > NATIVE_NUMA_NODES {
        let what = format!("the nodes of a host that has more than {NATIVE_NUMA_NODES}");
        requirements.push(Requirement::new(&fields.numa, what));
    }
    if !NATIVE_MEMORY.contains(&request.memory_bytes) || !request.memory_bytes.is_multiple_of(PAGE) {
        let what = "a size that is not 16 MiB to 64 GiB in pages of 4 KiB";
        requirements.push(Requirement::new(&fields.memory, what));
    }
    if request.secure_boot {
        // Without it the guest could change what is to be trusted.
        let what = "secure boot, which needs system management mode";
        requirements.push(Requirement::new(&fields.secure_boot, what));
    }
    requirements
}

fn of_disk(disk: &Disk<()>) -> Vec<Requirement> {
    // spec.domain.devices.disks[0].disk.bus
    let (at, _) = disk.field.split_once(']').unwrap_or((&disk.field, ""));
    let what = match (disk.bus, disk.is_cdrom()) {
        (DiskBus::Usb, _) => Some("the bus usb"),
        (DiskBus::Virtio, true) => Some("a CD drive on the bus virtio"),
        // ATA has no write protection for disks.
        (DiskBus::Sata, false) if disk.read_only => Some("a read-only disk on the bus sata"),
        (DiskBus::Virtio | DiskBus::Sata | DiskBus::Scsi, _) => None,
    };
    let mut requirements: Vec<Requirement> =
        what.into_iter().map(|what| Requirement::new(&disk.field, what)).collect();
    if disk.tuning.block_size != BlockSize::Default && disk.bus != DiskBus::Virtio {
        let what = format!("a block size on the bus {}", disk.bus);
        requirements.push(Requirement::new(format!("{at}].blockSize"), what));
    }
    if disk.tuning.pci_slot.is_some() {
        requirements.push(Requirement::new(format!("{at}].disk.pciAddress"), "a fixed PCI address"));
    }
    if disk.tuning.scsi_passthrough {
        let what = "SCSI commands of the guest for a device of the host";
        requirements.push(Requirement::new(format!("{at}].lun"), what));
    }
    if disk.serial.len() > VIRTIO_SERIAL_LEN {
        let what = format!("a serial number of more than {VIRTIO_SERIAL_LEN} bytes");
        requirements.push(Requirement::new(&disk.field, what));
    }
    requirements
}

fn of_nic(nic: &NativeNic<'_>, bios: bool) -> Vec<Requirement> {
    let model = format!("a {} NIC", nic.model);
    let requests = [
        ("pciAddress", nic.pci_slot.is_some(), "a fixed PCI address"),
        ("acpiIndex", nic.acpi_index.is_some(), "an ACPI index"),
        ("bootOrder", bios && nic.boot_order.is_some(), "a start from the network through BIOS"),
        ("model", nic.model != NicModel::Virtio, &model),
    ];
    let requested = requests.into_iter().filter(|(_, is_requested, _)| *is_requested);
    requested.map(|(name, _, what)| Requirement::new(format!("{}.{name}", nic.field), what)).collect()
}

fn of_slots(request: &NativeRequest<'_>) -> Vec<Requirement> {
    let mut requirements = Vec::new();
    let mut sata = request.disks.iter().filter(|disk| disk.bus == DiskBus::Sata);
    if let Some(beyond) = sata.nth(SATA_PORTS) {
        let what = format!("more than {SATA_PORTS} drives on the bus sata");
        requirements.push(Requirement::new(&beyond.field, what));
    }
    let devices = devices(request);
    if devices > NATIVE_SLOTS {
        let what = format!("{devices} PCI devices, of which {NATIVE_SLOTS} fit");
        requirements.push(Requirement::new(&request.fields.disks, what));
    }
    requirements
}

fn of_hotplug(request: &NativeRequest<'_>) -> Option<Requirement> {
    let (field, volumes) = request.hotplug?;
    let slots = NATIVE_SLOTS.saturating_sub(devices(request)).min(NATIVE_HOTPLUG_SLOTS);
    let what = format!("{volumes} volumes that are attached, of which {slots} fit");
    (volumes > slots).then(|| Requirement::new(field, what))
}

/// Devices on the root bus, the guest agent's port among them.
fn devices(request: &NativeRequest<'_>) -> usize {
    let count = |bus| request.disks.iter().filter(|disk| disk.bus == bus).count();
    let has_scsi = count(DiskBus::Scsi) > 0;
    let single = [request.rng, request.balloon, request.video.is_some(), has_scsi, true].map(usize::from);
    let extra = request.extra_devices.iter().map(|extra| extra.device);
    let extra = extra.filter(|device| device.is_native()).map(ExtraDevice::pci_slots).sum();
    let tablets = usize::try_from(request.tablets).unwrap_or(usize::MAX);
    [count(DiskBus::Virtio), request.nics.len(), request.filesystems, single.iter().sum(), extra]
        .into_iter()
        .fold(tablets, usize::saturating_add)
}
