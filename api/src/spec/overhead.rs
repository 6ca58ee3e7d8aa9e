//! Who runs a VM, and the memory that its launcher takes beside the guest's.

use vireo_vmconfig::ExtraDevice;

use super::native::unsupported_by_native;
use super::{Binding, Forwards, HypervisorChoice, VFIO_OVERHEAD, Vm};

const MIB: u64 = 1 << 20;
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
            (HypervisorChoice::Auto, true) if unsupported_by_native(vm).is_empty() => Self::Native,
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
