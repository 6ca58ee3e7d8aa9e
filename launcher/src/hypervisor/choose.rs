use vireo_proto::launcher::Fault;
use vireo_vmm::config::{DiskSerial, MemorySize, SATA_PORTS, VmConfig};
use vireo_vmm::hotplug::HOTPLUG_SLOTS;

use crate::fault::{Code, fault_at};
use crate::launch::{Disk, HypervisorChoice, Kind, Launch, NicPeer};
use vireo_vmconfig::{
    BlockSize, BootSource, CpuModel, DeviceRequest, DiskBus, ExtraDevice, IoThreads, NicModel, Video,
};

/// What this node can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Its KVM.
    pub kvm: KvmState,
    /// Whether QEMU can be started, and if not, why.
    pub qemu: Result<(), String>,
}

/// A node's KVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvmState {
    /// Runs guests in hardware.
    Usable,
    /// Runs guests in software: not to be chosen, but to be had by force.
    SoftwareOnly(String),
    /// Not to be had.
    Unusable(String),
}

/// Who runs the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The hypervisor.
    pub kind: Kind,
    /// Why this one, for people.
    pub reason: String,
}

/// A requested feature that a hypervisor does not support.
struct Requirement {
    field: String,
    what: String,
}

impl Requirement {
    fn new(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { field: field.into(), what: what.into() }
    }
}

/// Chooses who runs the VM: the monitor where it can, QEMU where it must.
///
/// # Errors
/// A forced hypervisor that lacks something, or no hypervisor that has everything. The fault carries the first field
/// to change and speaks of all.
pub fn choose(launch: &Launch, probe: &Probe) -> Result<Choice, Fault> {
    let choice = |kind, reason| Ok(Choice { kind, reason });
    match &launch.hypervisor {
        HypervisorChoice::Forced { kind: Kind::Native, by } => {
            if let KvmState::Unusable(why) = &probe.kvm {
                return Err(fault_at(Code::NoKvm, "", format!("{by} requests native: {why}")));
            }
            require_supported(&unsupported_by_native(launch), &format!("native, which {by} requests,"))?;
            choice(Kind::Native, format!("{by} requests native"))
        }
        HypervisorChoice::Forced { kind: Kind::Qemu, by } => {
            require_supported(&unsupported_by_qemu(launch), &format!("qemu, which {by} requests,"))?;
            require_kvm(launch, probe)?;
            require_qemu(probe, &format!("{by} requests qemu"))?;
            choice(Kind::Qemu, format!("{by} requests qemu"))
        }
        HypervisorChoice::Auto => {
            let reason = match (&probe.kvm, unsupported_by_native(launch)) {
                (KvmState::Usable, lacks) if lacks.is_empty() => {
                    return choice(
                        Kind::Native,
                        "KVM is usable and native supports every requested feature".to_owned(),
                    );
                }
                (KvmState::Usable, lacks) => describe_unsupported(&lacks, "native"),
                (KvmState::SoftwareOnly(why) | KvmState::Unusable(why), _) => why.clone(),
            };
            require_supported(&unsupported_by_qemu(launch), "no hypervisor")?;
            require_kvm(launch, probe)?;
            require_qemu(probe, &reason)?;
            choice(Kind::Qemu, reason)
        }
    }
}

fn describe_unsupported(requirements: &[Requirement], who: &str) -> String {
    let all: Vec<_> = requirements
        .iter()
        .map(|requirement| format!("{} requests {}", requirement.field, requirement.what))
        .collect();
    match who {
        "no hypervisor" => format!("{}: no hypervisor supports that yet", all.join("; ")),
        _ => format!("{}: {who} does not support that", all.join("; ")),
    }
}

fn require_supported(requirements: &[Requirement], who: &str) -> Result<(), Fault> {
    match requirements.first() {
        None => Ok(()),
        Some(first) => {
            Err(fault_at(Code::Unsupported, &first.field, describe_unsupported(requirements, who)))
        }
    }
}

fn require_qemu(probe: &Probe, reason: &str) -> Result<(), Fault> {
    probe.qemu.clone().map_err(|why| fault_at(Code::NoQemu, "", format!("{reason}, which needs qemu: {why}")))
}

/// QEMU has interfaces of other hypervisors with KVM alone, and leaves them out without it.
fn require_kvm(launch: &Launch, probe: &Probe) -> Result<(), Fault> {
    let (KvmState::SoftwareOnly(why) | KvmState::Unusable(why)) = &probe.kvm else { return Ok(()) };
    let mut requests = launch.extra_devices.iter();
    match requests.find(|request| matches!(request.device, ExtraDevice::HyperV(_))) {
        None => Ok(()),
        Some(DeviceRequest { field, device }) => {
            let detail = format!("{field} requests {device}, which needs KVM: {why}");
            Err(fault_at(Code::Unsupported, field, detail))
        }
    }
}

fn unsupported_by_qemu(launch: &Launch) -> Vec<Requirement> {
    launch.unknown_devices.iter().map(|device| Requirement::new(&device.field, &device.what)).collect()
}

/// Every requested feature that the monitor does not support, in the order of the manifest.
fn unsupported_by_native(launch: &Launch) -> Vec<Requirement> {
    let (mut requirements, fields) = (Vec::new(), &launch.fields);
    if let CpuModel::Named(model) = launch.cpu.model() {
        requirements.push(Requirement::new(&fields.cpu_model, format!("the CPU model {model}")));
    }
    if let Some(feature) = launch.cpu.features().first() {
        requirements.push(Requirement::new(
            &fields.cpu_features,
            format!("the CPU feature {} by name", feature.name()),
        ));
    }
    let numa = launch.cpu_placement.as_ref().and_then(|placement| placement.numa.as_ref());
    if numa.is_some_and(|nodes| nodes.len() > VmConfig::MAX_NUMA_NODES) {
        let what = format!("the nodes of a host that has more than {}", VmConfig::MAX_NUMA_NODES);
        requirements.push(Requirement::new(&fields.numa, what));
    }
    if let Err(error) = MemorySize::from_bytes(launch.memory_bytes) {
        requirements.push(Requirement::new(&fields.memory, format!("a size outside its range ({error})")));
    }
    match launch.boot {
        BootSource::Kernel(_) | BootSource::Bios { .. } | BootSource::Efi { secure_boot: false, .. } => {}
        BootSource::Efi { secure_boot: true, .. } => {
            // Without it the guest could change what is to be trusted.
            let what = "secure boot, which needs system management mode";
            requirements.push(Requirement::new(&fields.secure_boot, what));
        }
    }
    for disk in &launch.disks {
        match (disk.bus, disk.is_cdrom()) {
            (DiskBus::Usb, _) => requirements.push(Requirement::new(&disk.field, "the bus usb")),
            (DiskBus::Virtio, true) => {
                requirements.push(Requirement::new(&disk.field, "a CD drive on the bus virtio"))
            }
            // ATA has no write protection for disks.
            (DiskBus::Sata, false) if disk.read_only => {
                requirements.push(Requirement::new(&disk.field, "a read-only disk on the bus sata"));
            }
            (DiskBus::Virtio | DiskBus::Sata | DiskBus::Scsi, _) => {}
        }
        requirements.extend(tuning(disk));
        if DiskSerial::new(&disk.serial).is_err() {
            requirements.push(Requirement::new(&disk.field, "a serial number of more than 20 bytes"));
        }
    }
    if let Some(beyond) = launch.disks.iter().filter(|disk| disk.bus == DiskBus::Sata).nth(SATA_PORTS) {
        requirements
            .push(Requirement::new(&beyond.field, format!("more than {SATA_PORTS} drives on the bus sata")));
    }
    let devices = native_devices(launch);
    if devices > VmConfig::DEVICE_SLOTS {
        let what = format!("{devices} PCI devices, of which {} fit,", VmConfig::DEVICE_SLOTS);
        requirements.push(Requirement::new(&fields.disks, what));
    }
    if let Some(IoThreads::Supplemental(count)) = launch.io_threads {
        // A virtio disk has a thread of its own.
        let what = format!("{count} threads for each disk");
        requirements.push(Requirement::new(&fields.io_threads, what));
    }
    for interface in &launch.interfaces {
        for (name, is_set, what) in [
            ("pciAddress", interface.pci_slot.is_some(), "a fixed PCI address"),
            ("acpiIndex", interface.acpi_index.is_some(), "an ACPI index"),
        ] {
            if is_set {
                requirements.push(Requirement::new(format!("{}.{name}", interface.field), what));
            }
        }
        if interface.boot_order.is_some() && matches!(launch.boot, BootSource::Bios { .. }) {
            let field = format!("{}.bootOrder", interface.field);
            requirements.push(Requirement::new(field, "a start from the network through BIOS"));
        }
        if interface.peer == NicPeer::Passt {
            requirements.push(Requirement::new(format!("{}.passtBinding", interface.field), "passt"));
        }
        if interface.model != NicModel::Virtio {
            let field = format!("{}.model", interface.field);
            requirements.push(Requirement::new(field, format!("a {} NIC", interface.model)));
        }
    }
    if let Some(video @ (Video::Cirrus | Video::Ramfb)) = launch.video {
        let what = format!("a {} display adapter", video);
        requirements.push(Requirement::new(&fields.video, what));
    }
    let slots = VmConfig::DEVICE_SLOTS.saturating_sub(devices).min(HOTPLUG_SLOTS);
    if let Some(field) = &launch.hotplug_field
        && usize::try_from(launch.hotplug_volumes).is_ok_and(|volumes| volumes > slots)
    {
        let what = format!("{} volumes that are attached, of which {slots} fit,", launch.hotplug_volumes);
        requirements.push(Requirement::new(field, what));
    }
    let extra = launch.extra_devices.iter().filter(|request| !request.device.is_native());
    requirements.extend(extra.map(|request| Requirement::new(&request.field, request.device.to_string())));
    requirements.extend(unsupported_by_qemu(launch));
    requirements
}

/// What of a disk's properties the monitor does not support.
fn tuning(disk: &Disk) -> Vec<Requirement> {
    // spec.domain.devices.disks[0].disk.bus
    let (at, _) = disk.field.split_once(']').unwrap_or((&disk.field, ""));
    let tuning = &disk.tuning;
    let mut requirements = Vec::new();
    if tuning.block_size != BlockSize::Default {
        requirements.push(Requirement::new(format!("{at}].blockSize"), "a block size"));
    }
    if tuning.pci_slot.is_some() {
        requirements.push(Requirement::new(format!("{at}].disk.pciAddress"), "a fixed PCI address"));
    }
    if tuning.scsi_passthrough {
        requirements.push(Requirement::new(
            format!("{at}].lun"),
            "SCSI commands of the guest for a device of the host",
        ));
    }
    requirements
}

/// Devices on the monitor's root bus, the guest agent's port among them.
fn native_devices(launch: &Launch) -> usize {
    let count = |bus| launch.disks.iter().filter(|disk| disk.bus == bus).count();
    let scsi = count(DiskBus::Scsi) > 0;
    let single = [launch.rng, launch.memory_balloon, launch.video.is_some(), scsi, true].map(usize::from);
    let tablets = usize::try_from(launch.tablets).unwrap_or(usize::MAX);
    let extra = launch.extra_devices.iter().map(|request| request.device);
    let extra = extra.filter(|device| device.is_native()).map(ExtraDevice::pci_slots).sum();
    [count(DiskBus::Virtio), launch.interfaces.len(), launch.filesystems.len(), single.iter().sum(), extra]
        .into_iter()
        .fold(tablets, usize::saturating_add)
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
