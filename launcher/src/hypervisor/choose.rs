use vireo_proto::launcher::Fault;
use vireo_vmconfig::{BootSource, DeviceRequest, ExtraDevice, NativeNic, NativeRequest, Requirement};

use crate::fault::{Code, fault_at};
use crate::launch::{HypervisorChoice, Interface, Kind, Launch};

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
    let numa = launch.cpu_placement.as_ref().and_then(|placement| placement.numa.as_ref());
    let volumes = usize::try_from(launch.hotplug_volumes).unwrap_or(usize::MAX);
    let request = NativeRequest {
        fields: &launch.fields,
        cpu: &launch.cpu,
        numa_nodes: numa.map_or(0, Vec::len),
        memory_bytes: launch.memory_bytes,
        bios: matches!(launch.boot, BootSource::Bios { .. }),
        secure_boot: matches!(launch.boot, BootSource::Efi { secure_boot: true, .. }),
        disks: launch.disks.iter().map(|disk| disk.with_source(())).collect(),
        nics: launch.interfaces.iter().map(nic).collect(),
        filesystems: launch.filesystems.len(),
        rng: launch.rng,
        balloon: launch.memory_balloon,
        video: launch.video,
        tablets: launch.tablets,
        io_threads: launch.io_threads,
        hotplug: launch.hotplug_field.as_deref().map(|field| (field, volumes)),
        extra_devices: &launch.extra_devices,
    };
    let mut requirements = vireo_vmconfig::unsupported_by_native(&request);
    requirements.extend(unsupported_by_qemu(launch));
    requirements
}

fn nic(interface: &Interface) -> NativeNic<'_> {
    let Interface { field, model, pci_slot, acpi_index, boot_order, .. } = interface;
    NativeNic { field, model: *model, pci_slot: *pci_slot, acpi_index: *acpi_index, boot_order: *boot_order }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
