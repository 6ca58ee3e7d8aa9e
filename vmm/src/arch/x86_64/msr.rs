//! Model-specific registers a vCPU starts with.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

const IA32_TSC: u32 = 0x10;
const IA32_SYSENTER_CS: u32 = 0x174;
const IA32_SYSENTER_ESP: u32 = 0x175;
const IA32_SYSENTER_EIP: u32 = 0x176;
const IA32_MISC_ENABLE: u32 = 0x1a0;
const IA32_MTRR_DEF_TYPE: u32 = 0x2ff;
const STAR: u32 = 0xc000_0081;
const LSTAR: u32 = 0xc000_0082;
const CSTAR: u32 = 0xc000_0083;
const SYSCALL_MASK: u32 = 0xc000_0084;
/// Swapped with the base of GS by SWAPGS.
pub(crate) const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// Fast string operations.
const MISC_ENABLE_FAST_STRING: u64 = 1;
/// MTRRs are on; the default memory type is write-back.
const MTRR_ENABLED_WRITE_BACK: u64 = 1 << 11 | 6;

const BOOT: [(u32, u64); 11] = [
    (IA32_SYSENTER_CS, 0),
    (IA32_SYSENTER_ESP, 0),
    (IA32_SYSENTER_EIP, 0),
    (STAR, 0),
    (CSTAR, 0),
    (KERNEL_GS_BASE, 0),
    (SYSCALL_MASK, 0),
    (LSTAR, 0),
    (IA32_TSC, 0),
    (IA32_MISC_ENABLE, MISC_ENABLE_FAST_STRING),
    (IA32_MTRR_DEF_TYPE, MTRR_ENABLED_WRITE_BACK),
];

/// Sets what firmware would have set. One that this KVM does not have is left out: a guest that needs it sees
/// that in CPUID.
pub(crate) fn set_boot(vcpu: &VcpuFd) {
    let entry = |&(index, data): &(u32, u64)| kvm_msr_entry { index, data, ..Default::default() };
    let mut rest: &[(u32, u64)] = &BOOT;
    while !rest.is_empty() {
        let entries: Vec<_> = rest.iter().map(entry).collect();
        let Ok(msrs) = Msrs::from_entries(&entries) else { return };
        // The kernel stops at the first MSR that it rejects and returns how many it took.
        let taken = vcpu.set_msrs(&msrs).unwrap_or(0);
        if let Some((index, _)) = rest.get(taken) {
            tracing::debug!(index, "KVM has no such model-specific register");
        }
        rest = rest.get(taken + 1..).unwrap_or_default();
    }
}
