//! Who runs a VM, and the memory that its launcher takes beside the guest's.

use std::ops::RangeInclusive;

use vireo_vmconfig::{
    BlockSize, CpuModel, DiskBus, ExtraDevice, IoThreads, NicModel, VIRTIO_SERIAL_LEN, Video,
};

use super::capacity::{NATIVE_HOTPLUG_SLOTS, NATIVE_SLOTS, SATA_PORTS};
use super::{Binding, BootSource, Disk, Forwards, HypervisorChoice, VFIO_OVERHEAD, Vm};

const MIB: u64 = 1 << 20;
/// The memory of guests that the native monitor runs, in bytes.
const NATIVE_MEMORY: RangeInclusive<u64> = 16 << 20..=64 << 30;
/// The launcher with the native monitor in its process: 5.6 MiB are measured, of a vCPU and two devices.
const NATIVE: Part = Part { requested: 16 * MIB, most: 32 * MIB };
/// The launcher and QEMU: 57 MiB are measured with KVM.
const QEMU: Part = Part { requested: 96 * MIB, most: 160 * MIB };
/// The launcher and QEMU, which translates the guest's code: 86 MiB are measured. By QEMU's default it keeps up to 1 GiB of
/// translated code.
const EMULATED: Part = Part { requested: 128 * MIB, most: (160 + 1024) * MIB };
/// A screen of 3840 by 2160 pixels; at most with what is encoded for several viewers.
const DISPLAY: Part = Part { requested: 32 * MIB, most: 128 * MIB };
/// The process `swtpm`.
const TPM: Part = Part { requested: 16 * MIB, most: 32 * MIB };
/// The process `virtiofsd` of a shared file system.
const FILESYSTEM: Part = Part { requested: 24 * MIB, most: 64 * MIB };
/// The process `passt` with its buffers.
const PASST: Part = Part { requested: 24 * MIB, most: 64 * MIB };
/// The sockets of `passt` where it listens to all ports but the ephemeral ones, of which the kernel counts 4.5 KiB each.
const PASST_ALL_PORTS: Part = Part { requested: 350 * MIB, most: 700 * MIB };
/// Stacks and buffers of a vCPU and its queues.
const VCPU: Part = Part { requested: 2 * MIB, most: 2 * MIB };
/// Stacks and buffers of a disk or a NIC.
const DEVICE: Part = Part { requested: MIB, most: MIB };
/// Registers of devices of the host that VFIO maps.
const VFIO: Part = Part { requested: VFIO_OVERHEAD, most: VFIO_OVERHEAD };
/// A page table of 8 bytes for each page of 4 KiB, for the process and for the guest's CPUs.
const PAGE_TABLES: u64 = 4096 / 8 / 2;

/// What one part of a launcher takes, in bytes.
#[derive(Clone, Copy)]
struct Part {
    requested: u64,
    most: u64,
}

/// Who runs a VM on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// Vireo's own monitor, with KVM.
    Native,
    /// QEMU, with KVM.
    Qemu,
    /// QEMU, which translates the guest's code: the node has no KVM.
    Emulated,
}

impl Runner {
    /// Who runs a VM on a node with this choice of its own, with or without KVM that runs guests in hardware. The VM's own
    /// choice comes first.
    pub fn of(vm: &Vm, node: HypervisorChoice, has_kvm: bool) -> Self {
        let chosen = match vm.hypervisor() {
            HypervisorChoice::Auto => node,
            chosen => chosen,
        };
        match (chosen, has_kvm) {
            (HypervisorChoice::Native, _) => Self::Native,
            (HypervisorChoice::Auto, true) if runs_natively(vm) => Self::Native,
            (HypervisorChoice::Auto | HypervisorChoice::Qemu, true) => Self::Qemu,
            (HypervisorChoice::Auto | HypervisorChoice::Qemu, false) => Self::Emulated,
        }
    }
}

/// The memory that a launcher takes beside its guest's, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LauncherOverhead {
    /// What is requested of a node: what is measured, with room to spare.
    pub requested: u64,
    /// What it can take, of which a limit of its own is made: beyond it, its processes are killed.
    pub most: u64,
}

impl LauncherOverhead {
    /// That of an instance which is no VM, so that its node refuses it.
    pub const UNKNOWN: Self =
        Self { requested: QEMU.requested + DISPLAY.requested, most: QEMU.most + DISPLAY.most };

    /// That of a VM which `runner` runs.
    pub fn of(vm: &Vm, runner: Runner) -> Self {
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let devices = vm.disks().len().saturating_add(vm.interfaces().len());
        let has_tpm = vm.extra_devices().iter().any(|request| request.device == ExtraDevice::Tpm);
        let hypervisor = match runner {
            Runner::Native => NATIVE,
            Runner::Qemu => QEMU,
            Runner::Emulated => EMULATED,
        };
        let parts = [
            (hypervisor, 1),
            (VCPU, vm.cpu().count().into()),
            (DEVICE, count(devices)),
            (DISPLAY, u64::from(vm.video().is_some())),
            (TPM, u64::from(has_tpm)),
            (FILESYSTEM, count(vm.filesystems().len())),
            (VFIO, u64::from(!vm.host_devices().is_empty())),
            (PASST, count(passt(vm).count())),
            (PASST_ALL_PORTS, count(passt(vm).filter(|forwards| **forwards == Forwards::All).count())),
        ];
        // A table of huge pages is of a few pages.
        let tables =
            if vm.memory().huge_page().is_some() { 0 } else { vm.memory().guest().get() / PAGE_TABLES };
        let sum = |of: fn(&Part) -> u64| {
            let parts = parts.iter().map(|(part, count)| of(part).saturating_mul(*count));
            parts.fold(tables, u64::saturating_add)
        };
        Self { requested: sum(|part| part.requested), most: sum(|part| part.most) }
    }
}

/// What is forwarded by the processes of passt of a VM.
fn passt(vm: &Vm) -> impl Iterator<Item = &Forwards> {
    vm.interfaces().iter().filter_map(|interface| match interface.binding() {
        Binding::Passt { forwards } => Some(forwards),
        Binding::Masquerade { .. } | Binding::Bridge => None,
    })
}

/// Whether the native monitor has all that a VM is to have. The launcher chooses by the same, and says what is missing.
fn runs_natively(vm: &Vm) -> bool {
    let has_boot = !matches!(vm.firmware().boot(), BootSource::Efi { secure_boot: true, .. });
    let has_cpu = !matches!(vm.cpu().model(), CpuModel::Named(_)) && vm.cpu().features().is_empty();
    let has_devices = vm.extra_devices().iter().all(|request| request.device.is_native());
    has_boot
        && has_cpu
        && has_devices
        && NATIVE_MEMORY.contains(&vm.memory().guest().get())
        && has_disks(vm)
        && has_interfaces(vm)
        && !matches!(vm.io_threads(), Some(IoThreads::Supplemental(_)))
        && !matches!(vm.video(), Some(Video::Cirrus | Video::Ramfb))
        && vm.host_devices().is_empty()
        && has_slots(vm)
}

fn has_disks(vm: &Vm) -> bool {
    let has_one = |disk: &Disk| {
        let disk = disk.config();
        let has_bus = match (disk.bus, disk.is_cdrom()) {
            (DiskBus::Usb, _) | (DiskBus::Virtio, true) => false,
            (DiskBus::Sata, false) => !disk.read_only,
            (DiskBus::Virtio | DiskBus::Sata | DiskBus::Scsi, _) => true,
        };
        let tuning = &disk.tuning;
        let is_usual = tuning.block_size == BlockSize::Default && tuning.pci_slot.is_none();
        has_bus && is_usual && !tuning.scsi_passthrough && disk.serial.len() <= VIRTIO_SERIAL_LEN
    };
    vm.fixed_disks().all(has_one) && on_bus(vm, DiskBus::Sata) <= SATA_PORTS
}

fn has_interfaces(vm: &Vm) -> bool {
    let starts_with_bios = matches!(vm.firmware().boot(), BootSource::Bios { .. });
    vm.interfaces().iter().all(|interface| {
        interface.pci_slot().is_none()
            && interface.acpi_index().is_none()
            && interface.model() == NicModel::Virtio
            && !matches!(interface.binding(), Binding::Passt { .. })
            && !(starts_with_bios && interface.boot_order().is_some())
    })
}

/// Whether there are slots for its devices, the guest agent's port among them, and for volumes that are attached.
fn has_slots(vm: &Vm) -> bool {
    let has_scsi = on_bus(vm, DiskBus::Scsi) > 0;
    let single = [vm.rng(), vm.has_balloon(), vm.video().is_some(), has_scsi, true].map(usize::from);
    let devices = [
        on_bus(vm, DiskBus::Virtio),
        vm.interfaces().len(),
        vm.filesystems().len(),
        single.iter().sum(),
        vm.extra_devices().iter().map(|request| request.device.pci_slots()).sum(),
        usize::try_from(vm.tablets()).unwrap_or(usize::MAX),
    ];
    let devices = devices.into_iter().fold(0, usize::saturating_add);
    let plugged = vm.disks().iter().filter(|disk| disk.is_hotpluggable()).count();
    devices <= NATIVE_SLOTS
        && (plugged == 0
            || vm.disks_with_hotpluggable_volumes().count()
                <= (NATIVE_SLOTS - devices).min(NATIVE_HOTPLUG_SLOTS))
}

fn on_bus(vm: &Vm, bus: DiskBus) -> usize {
    vm.fixed_disks().filter(|disk| disk.config().bus == bus).count()
}
