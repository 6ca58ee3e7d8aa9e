use vireo_proto::launcher::Fault;
use vireo_vmm::config::{DiskSerial, Machine, MemorySize};

use crate::fault::{Code, fault_at};
use crate::launch::{Boot, CpuModel, Kind, Launch, Wanted};
use vireo_vmconfig::{DiskBus, DiskSource, NicModel, Video};

/// Drives on the monitor's SATA controller.
const SATA_PORTS: usize = 6;

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

/// Who runs the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The hypervisor.
    pub kind: Kind,
    /// Why this one, for people.
    pub reason: String,
}

/// Something asked for that a hypervisor lacks.
struct Need {
    field: String,
    what: String,
}

impl Need {
    fn new(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { field: field.into(), what: what.into() }
    }
}

/// Chooses who runs the machine: the monitor where it can, QEMU where it must.
///
/// # Errors
/// A forced hypervisor that lacks something, or no hypervisor that has everything. The fault carries the first field
/// to change and speaks of all.
pub fn choose(launch: &Launch, probe: &Probe) -> Result<Choice, Fault> {
    let chosen = |kind, reason| Ok(Choice { kind, reason });
    match &launch.hypervisor {
        Wanted::Forced { kind: Kind::Native, by } => {
            if let KvmState::Unusable(why) = &probe.kvm {
                return Err(fault_at(Code::NoKvm, "", format!("{by} asks for native: {why}")));
            }
            refuse_unless_none(&native_lacks(launch), &format!("native, which {by} asks for,"))?;
            chosen(Kind::Native, format!("{by} asks for native"))
        }
        Wanted::Forced { kind: Kind::Qemu, by } => {
            refuse_unless_none(&qemu_lacks(launch), &format!("qemu, which {by} asks for,"))?;
            require_qemu(probe, &format!("{by} asks for qemu"))?;
            chosen(Kind::Qemu, format!("{by} asks for qemu"))
        }
        Wanted::Auto => {
            let reason = match (&probe.kvm, native_lacks(launch)) {
                (KvmState::Usable, lacks) if lacks.is_empty() => {
                    return chosen(
                        Kind::Native,
                        "KVM is usable and native has everything asked for".to_owned(),
                    );
                }
                (KvmState::Usable, lacks) => lacked(&lacks, "native"),
                (KvmState::SoftwareOnly(why) | KvmState::Unusable(why), _) => why.clone(),
            };
            refuse_unless_none(&qemu_lacks(launch), "no hypervisor")?;
            require_qemu(probe, &reason)?;
            chosen(Kind::Qemu, reason)
        }
    }
}

fn lacked(needs: &[Need], who: &str) -> String {
    let all: Vec<_> = needs.iter().map(|need| format!("{} asks for {}", need.field, need.what)).collect();
    match who {
        "no hypervisor" => format!("{}: no hypervisor has that yet", all.join("; ")),
        _ => format!("{}: {who} does not have that", all.join("; ")),
    }
}

fn refuse_unless_none(needs: &[Need], who: &str) -> Result<(), Fault> {
    match needs.first() {
        None => Ok(()),
        Some(first) => Err(fault_at(Code::Unsupported, &first.field, lacked(needs, who))),
    }
}

fn require_qemu(probe: &Probe, reason: &str) -> Result<(), Fault> {
    probe.qemu.clone().map_err(|why| fault_at(Code::NoQemu, "", format!("{reason}, which needs qemu: {why}")))
}

fn qemu_lacks(launch: &Launch) -> Vec<Need> {
    launch.unknown_devices.iter().map(|device| Need::new(&device.field, &device.what)).collect()
}

/// Everything the monitor does not have, in the order of the manifest.
fn native_lacks(launch: &Launch) -> Vec<Need> {
    let mut needs = Vec::new();
    if let CpuModel::Named(model) = &launch.cpu.model {
        needs.push(Need::new("spec.domain.cpu.model", format!("the CPU model {model}")));
    }
    if let Some((feature, _)) = launch.cpu.features.first() {
        needs.push(Need::new("spec.domain.cpu.features", format!("the CPU feature {feature} by name")));
    }
    if let Err(error) = MemorySize::from_bytes(launch.memory_bytes) {
        needs.push(Need::new("spec.domain.memory.guest", format!("a size outside its range ({error})")));
    }
    match launch.boot {
        Boot::Kernel { .. } | Boot::Bios { .. } | Boot::Efi { secure_boot: false, .. } => {}
        Boot::Efi { secure_boot: true, .. } => {
            // Without it the guest could change what is to be trusted.
            let what = "secure boot, which needs system management mode";
            needs.push(Need::new("spec.domain.firmware.bootloader.efi.secureBoot", what));
        }
    }
    for disk in &launch.disks {
        match (disk.bus, disk.is_cdrom()) {
            (DiskBus::Usb, _) => needs.push(Need::new(&disk.field, "the bus usb")),
            (DiskBus::Virtio, true) => needs.push(Need::new(&disk.field, "a CD drive on the bus virtio")),
            // An ATA disk has no way to say so.
            (DiskBus::Sata, false) if disk.read_only => {
                needs.push(Need::new(&disk.field, "a read-only disk on the bus sata"));
            }
            (DiskBus::Virtio | DiskBus::Sata | DiskBus::Scsi, _) => {}
        }
        if disk.source == DiskSource::NoMedium {
            needs.push(Need::new(&disk.field, "an empty CD drive"));
        }
        if DiskSerial::new(&disk.serial).is_err() {
            needs.push(Need::new(&disk.field, "a serial number of more than 20 bytes"));
        }
    }
    if let Some(beyond) = launch.disks.iter().filter(|disk| disk.bus == DiskBus::Sata).nth(SATA_PORTS) {
        needs.push(Need::new(&beyond.field, format!("more than {SATA_PORTS} drives on the bus sata")));
    }
    let devices = native_devices(launch);
    if devices > Machine::DEVICE_SLOTS {
        let what = format!("{devices} PCI devices, of which {} fit,", Machine::DEVICE_SLOTS);
        needs.push(Need::new("spec.domain.devices.disks", what));
    }
    for interface in &launch.interfaces {
        if interface.boot_order.is_some() && matches!(launch.boot, Boot::Bios { .. }) {
            let field = format!("{}.bootOrder", interface.field);
            needs.push(Need::new(field, "a start from the network through BIOS"));
        }
        if interface.model != NicModel::Virtio {
            let field = format!("{}.model", interface.field);
            needs.push(Need::new(field, format!("a {} card", interface.model)));
        }
    }
    if let Some(video @ (Video::Cirrus | Video::Ramfb)) = launch.video {
        let what = format!("a {} display adapter", video);
        needs.push(Need::new("spec.domain.devices.video.type", what));
    }
    if let Some(field) = &launch.hotplug_field {
        needs.push(Need::new(field, "a volume that is plugged in"));
    }
    if let Some(field) = &launch.memory_balloon_field {
        needs.push(Need::new(field, "a memory balloon"));
    }
    let extra = launch.extra_devices.iter();
    needs.extend(extra.map(|request| Need::new(&request.field, request.device.to_string())));
    needs.extend(qemu_lacks(launch));
    needs
}

/// Devices on the monitor's root bus, the guest agent's port among them.
fn native_devices(launch: &Launch) -> usize {
    let count = |bus| launch.disks.iter().filter(|disk| disk.bus == bus).count();
    let single = [launch.rng, launch.video.is_some(), count(DiskBus::Scsi) > 0, true].map(usize::from);
    let tablets = usize::try_from(launch.tablets).unwrap_or(usize::MAX);
    [count(DiskBus::Virtio), launch.interfaces.len(), single.iter().sum()]
        .into_iter()
        .fold(tablets, usize::saturating_add)
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
