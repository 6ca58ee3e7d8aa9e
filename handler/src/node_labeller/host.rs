//! What this node tells of its CPUs and of its KVM.

use std::collections::{BTreeMap, BTreeSet};

use kvm_bindings::{
    KVM_CAP_GET_TSC_KHZ, KVM_CAP_HYPERV, KVM_CAP_HYPERV_SEND_IPI, KVM_CAP_HYPERV_SYNIC,
    KVM_CAP_HYPERV_SYNIC2, KVM_CAP_HYPERV_TIME, KVM_CAP_HYPERV_TLBFLUSH, KVM_CAP_HYPERV_VP_INDEX,
    KVM_CAP_TSC_CONTROL, KVM_CAP_TSC_DEADLINE_TIMER, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES,
    Msrs, kvm_cpuid_entry2, kvm_msr_entry,
};
use kvm_ioctls::Kvm;
use procfs::{CpuInfo, Current as _};
use tracing::warn;

use super::catalog::{Catalog, Location, Register};
use super::{Facts, KvmFacts, Tsc};
use crate::devices;

/// Where Linux says how long real-time tasks may run; -1 is without a limit.
const REALTIME_LIMIT: &str = "/proc/sys/kernel/sched_rt_runtime_us";
/// Extensions of KVM for Hyper-V enlightenments, by KubeVirt's names.
const HYPERV_CAPABILITIES: [(u32, &str); 7] = [
    (KVM_CAP_HYPERV, "base"),
    (KVM_CAP_HYPERV_TIME, "time"),
    (KVM_CAP_HYPERV_VP_INDEX, "vpindex"),
    (KVM_CAP_HYPERV_TLBFLUSH, "tlbflush"),
    (KVM_CAP_HYPERV_SEND_IPI, "ipi"),
    (KVM_CAP_HYPERV_SYNIC, "synic"),
    (KVM_CAP_HYPERV_SYNIC2, "synic2"),
];
/// Registers of KVM for Hyper-V enlightenments, by KubeVirt's names.
const HYPERV_REGISTERS: [(u32, &str); 7] = [
    (0x4000_0002, "vpindex"),
    (0x4000_0003, "reset"),
    (0x4000_0010, "runtime"),
    (0x4000_0022, "frequencies"),
    (0x4000_0080, "synic"),
    (0x4000_00b0, "synictimer"),
    (0x4000_0106, "reenlightenment"),
];
/// What QEMU shows to guests whether or not KVM reports it: leaf, register and bits.
const GIVEN: [(u32, Register, u32); 4] = [
    // A hypervisor is present.
    (1, Register::Ecx, 1 << 31),
    // MCE, MTRR, MCA, PAT.
    (1, Register::Edx, 1 << 7 | 1 << 12 | 1 << 14 | 1 << 16),
    // The timer of the APIC always runs.
    (6, Register::Eax, 1 << 2),
    // Recovery from machine checks: overflow-recov, succor.
    (0x8000_0007, Register::Ebx, 0b11),
];
const TSC_DEADLINE: (u32, Register, u32) = (1, Register::Ecx, 1 << 24);

/// Reads them. Blocks.
pub(super) fn read() -> Facts {
    let kvm = match devices::check_kvm() {
        Ok(()) => {
            let read = read_kvm();
            let report = |error: &kvm_ioctls::Error| {
                warn!(%error, "cannot ask KVM for the CPU features of guests; the node's labels are those of emulation");
            };
            read.inspect_err(report).ok()
        }
        Err(_) => None,
    };
    let vendor = CpuInfo::current().ok().and_then(|cpus| vendor(cpus.vendor_id(0)?));
    let limit = std::fs::read_to_string(REALTIME_LIMIT);
    Facts { vendor, kvm, is_realtime: limit.is_ok_and(|limit| limit.trim() == "-1") }
}

/// As KubeVirt spells it.
fn vendor(id: &str) -> Option<&'static str> {
    Some(match id {
        "GenuineIntel" => "Intel",
        "AuthenticAMD" => "AMD",
        "HygonGenuine" => "Hygon",
        _ => return None,
    })
}

fn read_kvm() -> Result<KvmFacts, kvm_ioctls::Error> {
    let kvm = Kvm::new()?;
    let has = |capability: u32| kvm.check_extension_raw(capability.into()) > 0;
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let features = features(cpuid.as_slice(), &feature_registers(&kvm), has(KVM_CAP_TSC_DEADLINE_TIMER));
    let registers = kvm.get_msr_index_list()?;
    let by_capability = HYPERV_CAPABILITIES.iter().filter(|(capability, _)| has(*capability));
    let by_register = HYPERV_REGISTERS.iter().filter(|(index, _)| registers.as_slice().contains(index));
    let hyperv = by_capability.chain(by_register).map(|(_, name)| *name).collect();
    Ok(KvmFacts { features, hyperv, tsc: read_tsc(&kvm) })
}

/// The values of the registers with features; none on a KVM that does not have them.
fn feature_registers(kvm: &Kvm) -> BTreeMap<u32, u64> {
    let Ok(known) = kvm.get_msr_feature_index_list() else { return BTreeMap::new() };
    let value = |index: &u32| {
        let mut msrs =
            Msrs::from_entries(&[kvm_msr_entry { index: *index, ..kvm_msr_entry::default() }]).ok()?;
        let read = kvm.get_msrs(&mut msrs).ok()?;
        Some((*index, msrs.as_slice().get(..read)?.first()?.data))
    };
    known.as_slice().iter().filter_map(value).collect()
}

/// A vCPU tells the frequency.
fn read_tsc(kvm: &Kvm) -> Option<Tsc> {
    let vm = kvm.create_vm().ok()?;
    if vm.check_extension_raw(KVM_CAP_GET_TSC_KHZ.into()) <= 0 {
        return None;
    }
    let is_scalable = vm.check_extension_raw(KVM_CAP_TSC_CONTROL.into()) > 0;
    let khz = vm.create_vcpu(0).ok()?.get_tsc_khz().ok().filter(|khz| *khz > 0)?;
    Some(Tsc { hertz: u64::from(khz) * 1000, is_scalable })
}

/// The features of guests, from what KVM reports.
fn features(
    cpuid: &[kvm_cpuid_entry2],
    registers: &BTreeMap<u32, u64>,
    tsc_deadline: bool,
) -> BTreeSet<&'static str> {
    let given = GIVEN.into_iter().chain(tsc_deadline.then_some(TSC_DEADLINE));
    let given: Vec<_> = given.collect();
    let is_set = |location: Location| match location {
        Location::Cpuid { leaf, subleaf, register, bit } => {
            let is_its = |entry: &&kvm_cpuid_entry2| {
                let is_indexed = entry.flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX != 0;
                entry.function == leaf && (!is_indexed || entry.index == subleaf)
            };
            let value = cpuid.iter().find(is_its).map_or(0, |entry| match register {
                Register::Eax => entry.eax,
                Register::Ebx => entry.ebx,
                Register::Ecx => entry.ecx,
                Register::Edx => entry.edx,
            });
            let is_here = |given: &&(u32, Register, u32)| (given.0, given.1) == (leaf, register);
            let given = given.iter().filter(is_here).fold(0, |bits, (_, _, more)| bits | more);
            (value | given) >> bit & 1 == 1
        }
        Location::Msr { index, bit } => registers.get(&index).is_some_and(|value| value >> bit & 1 == 1),
    };
    let all = Catalog::read().features.into_iter();
    all.filter(|feature| is_set(feature.location)).map(|feature| feature.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_those_that_kvm_reports_and_what_qemu_adds() {
        let leaf = |function, index, flags| kvm_cpuid_entry2 { function, index, flags, ..Default::default() };
        let indexed = KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
        let cpuid = [
            kvm_cpuid_entry2 { ecx: 1 << 25, edx: 1, ..leaf(1, 0, 0) },
            kvm_cpuid_entry2 { ebx: 1 << 5, ..leaf(7, 0, indexed) },
            kvm_cpuid_entry2 { eax: 1 << 4, ..leaf(7, 1, indexed) },
        ];
        let registers = BTreeMap::from([(0x10a, 0b10)]);
        let given = ["arat", "hypervisor", "mca", "mce", "mtrr", "overflow-recov", "pat", "succor"];
        let reported = ["aes", "avx-vnni", "avx2", "fpu", "ibrs-all"];
        let expected: BTreeSet<&str> = given.into_iter().chain(reported).collect();
        assert_eq!(features(&cpuid, &registers, false), expected);
        let more = features(&cpuid, &registers, true);
        assert_eq!(more.difference(&expected).collect::<Vec<_>>(), [&"tsc-deadline"]);
    }

    #[test]
    fn vendors_are_spelled_as_kubevirt_spells_them() {
        assert_eq!((vendor("AuthenticAMD"), vendor("GenuineIntel")), (Some("AMD"), Some("Intel")));
        assert_eq!(vendor("Unknown"), None);
    }
}
