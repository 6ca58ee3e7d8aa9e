//! The vCPUs: how many, what they are, and where the first one starts.

use std::sync::Arc;

use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::{Cap, Kvm, VcpuFd};

use super::{Assembly, BuildError};
use crate::arch::x86_64::cpuid::{self, HostFacts};
use crate::arch::x86_64::topology::Topology;
use crate::arch::x86_64::{msr, regs};
use crate::boot::Entry;
use crate::config::VmConfig;
use crate::kvm::KvmError;
use crate::memory::GuestMemory;
use crate::vcpu::Vcpu;

pub(super) fn check_count(kvm: &Kvm, config: &VmConfig, apic_ids: &[u8]) -> Result<(), BuildError> {
    let highest = apic_ids.last().copied().map_or(0, usize::from);
    let max = kvm.get_max_vcpus().min(kvm.get_max_vcpu_id());
    if highest >= max {
        return Err(BuildError::TooManyVcpus { wanted: config.cpus.count(), max });
    }
    Ok(())
}

pub(super) fn create(
    kvm: &Arc<Kvm>,
    assembly: &Assembly,
    (topology, pmu): (Topology, bool),
    apic_ids: &[u8],
) -> Result<Vec<Vcpu>, BuildError> {
    let supported = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(KvmError::at("list the supported CPUID leaves"))?;
    let vm = &assembly.vm;
    let mut vcpus = Vec::with_capacity(apic_ids.len());
    for (cpu, apic_id) in (0..).zip(apic_ids.iter().copied()) {
        let fd = vm.fd.create_vcpu(apic_id.into()).map_err(KvmError::at("create a vCPU"))?;
        let host = HostFacts {
            tsc_deadline: kvm.check_extension(Cap::TscDeadlineTimer),
            tsc_khz: fd.get_tsc_khz().ok(),
            name: cpuid::host_name(),
            pmu,
        };
        let leaves = cpuid::leaves(supported.as_slice(), topology, apic_id, host);
        let buses = (&assembly.buses.mmio, &assembly.buses.pio);
        vcpus.push(Vcpu::new((fd, kvm.clone()), (cpu, leaves), buses, assembly.outcome.clone())?);
    }
    Ok(vcpus)
}

/// Sets what firmware would have set on every vCPU.
pub(super) fn skip_firmware(fd: &VcpuFd) -> Result<(), KvmError> {
    msr::set_boot(fd);
    fd.set_fpu(&regs::fpu()).map_err(KvmError::at("set the floating-point unit"))?;
    let mut lapic = fd.get_lapic().map_err(KvmError::at("read the local interrupt controller"))?;
    regs::wire_local_interrupts(&mut lapic);
    fd.set_lapic(&lapic).map_err(KvmError::at("set the local interrupt controller"))?;
    Ok(())
}

/// Sets the first vCPU to the kernel's entry point.
pub(super) fn enter_at(fd: &VcpuFd, entry: Entry, memory: &GuestMemory) -> Result<(), BuildError> {
    let (mode, rip, argument) = match entry {
        Entry::Linux64 { rip, boot_params } => (regs::Mode::Long, rip, boot_params),
        Entry::Pvh { rip, start_info } => (regs::Mode::Protected, rip, start_info),
    };
    let reset = fd.get_sregs().map_err(KvmError::at("read the vCPU's registers"))?;
    let sregs = regs::special(mode, reset, memory)
        .map_err(|source| BuildError::Write { what: "descriptor and page tables", source })?;
    fd.set_sregs(&sregs).map_err(KvmError::at("set the vCPU's special registers"))?;
    fd.set_regs(&regs::general(mode, rip, argument))
        .map_err(KvmError::at("set the vCPU's general registers"))?;
    Ok(())
}
