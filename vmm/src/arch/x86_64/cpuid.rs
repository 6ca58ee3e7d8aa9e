//! CPUID of the guest: what KVM supports on this host, with the VM's own topology.

use std::arch::x86_64::{__cpuid, CpuidResult};
use std::ops::RangeInclusive;

use kvm_bindings::{KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

use super::topology::Topology;

/// Leaf 1 ECX.
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1 ECX: the register that describes performance counters.
const PDCM: u32 = 1 << 15;
/// Leaf 1 EDX: the count of logical processors in EBX is valid.
const HTT: u32 = 1 << 28;
/// Leaf 0x8000_0001 ECX: a package holds more than one vCPU, and which is in leaf 0x8000_0008.
const CMP_LEGACY: u32 = 1 << 1;

/// Leaf 0x8000_0001 ECX: more performance counters of AMD, for the core, the northbridge and the last cache.
const PERFORMANCE: u32 = 1 << 23 | 1 << 24 | 1 << 28;

/// Leaves 0xB and 0x1F: level types.
const LEVEL_THREAD: u32 = 1 << 8;
const LEVEL_CORE: u32 = 2 << 8;

/// KVM's own leaves begin here.
const KVM_SIGNATURE: u32 = 0x4000_0000;
/// Frequencies, as VMware defined the leaf and others took it over.
const FREQUENCIES: u32 = 0x4000_0010;
/// Nanoseconds of a local APIC timer tick under KVM are 1: it counts at 1 GHz.
const APIC_BUS_KHZ: u32 = 1_000_000;

/// The highest extended leaf.
const EXTENDED: u32 = 0x8000_0000;
/// The CPU's name, in three leaves of 16 bytes.
const NAME: RangeInclusive<u32> = 0x8000_0002..=0x8000_0004;

/// What about the host matters here beside the leaves KVM supports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFacts {
    /// KVM's local APIC has the TSC-deadline timer.
    pub(crate) tsc_deadline: bool,
    /// The guest's TSC frequency, where it is known.
    pub(crate) tsc_khz: Option<u32>,
    /// The CPU's name, which KVM leaves out.
    pub(crate) name: Option<CpuName>,
    /// The guest has performance counters, where KVM has them.
    pub(crate) pmu: bool,
}

/// The text of leaves 0x8000_0002 to 0x8000_0004, each with EAX, EBX, ECX and EDX.
pub(crate) type CpuName = [[u32; 4]; 3];

/// The name of the host's CPU; `None` if it has none.
pub(crate) fn host_name() -> Option<CpuName> {
    (host(EXTENDED).eax >= *NAME.end()).then(|| {
        [0, 1, 2].map(|part| {
            let CpuidResult { eax, ebx, ecx, edx } = host(NAME.start() + part);
            [eax, ebx, ecx, edx]
        })
    })
}

fn host(leaf: u32) -> CpuidResult {
    // Compilers differ in whether it is an unsafe function.
    let cpuid: unsafe fn(u32) -> CpuidResult = __cpuid;
    // SAFETY: every x86_64 CPU has the instruction, and it changes nothing.
    #[expect(unsafe_code, reason = "the instruction has no other binding")]
    let result = unsafe { cpuid(leaf) };
    result
}

/// The leaves of the vCPU with `apic_id`.
pub(crate) fn leaves(
    supported: &[kvm_cpuid_entry2],
    topology: Topology,
    apic_id: u8,
    host: HostFacts,
) -> Vec<kvm_cpuid_entry2> {
    let mut leaves: Vec<_> = supported
        .iter()
        .filter(|leaf| !is_rebuilt(leaf.function, host))
        .copied()
        .map(|mut leaf| {
            adjust(&mut leaf, topology, apic_id, host);
            leaf
        })
        .collect();
    let extended_topology = supported.iter().any(|leaf| leaf.function == 0xb);
    for function in [0xb, 0x1f] {
        let wanted = match function {
            0xb => extended_topology,
            _ => supported.iter().any(|leaf| leaf.function == function),
        };
        if wanted {
            leaves.extend(topology_leaf(function, topology, apic_id));
        }
    }
    leaves.extend(host.name.into_iter().flat_map(name_leaves));
    if let Some(khz) = host.tsc_khz
        && leaves.iter().any(|leaf| leaf.function == KVM_SIGNATURE)
    {
        leaves.push(kvm_cpuid_entry2 {
            function: FREQUENCIES,
            eax: khz,
            ebx: APIC_BUS_KHZ,
            ..Default::default()
        });
    }
    leaves
}

/// The topology leaves are generated. AMD's newest one (0x8000_0026), which has the same content, is left out.
fn is_rebuilt(function: u32, host: HostFacts) -> bool {
    matches!(function, 0xb | 0x1f | FREQUENCIES | 0x8000_0026)
        || host.name.is_some() && NAME.contains(&function)
}

fn name_leaves(name: CpuName) -> impl Iterator<Item = kvm_cpuid_entry2> {
    NAME.zip(name).map(|(function, [eax, ebx, ecx, edx])| kvm_cpuid_entry2 {
        function,
        eax,
        ebx,
        ecx,
        edx,
        ..Default::default()
    })
}

fn adjust(leaf: &mut kvm_cpuid_entry2, topology: Topology, apic_id: u8, host: HostFacts) {
    let logical = topology.threads_per_package();
    let ids = 1_u32 << topology.package_shift();
    match leaf.function {
        0x1 => {
            let counted = ids.min(255);
            leaf.ebx = leaf.ebx & 0xffff | u32::from(apic_id) << 24 | counted << 16;
            leaf.ecx = set(leaf.ecx, TSC_DEADLINE, host.tsc_deadline) | HYPERVISOR;
            leaf.edx = set(leaf.edx, HTT, logical > 1);
            leaf.ecx = set(leaf.ecx, PDCM, host.pmu && leaf.ecx & PDCM != 0);
        }
        // Performance counters of Intel, branch records, and AMD's second version.
        0xa | 0x1c | 0x8000_0022 if !host.pmu => (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx) = (0, 0, 0, 0),
        // Deterministic cache parameters, Intel's and AMD's: who shares the cache, and on Intel how many cores.
        0x4 if leaf.eax & 0x1f != 0 => {
            let cores = 1_u32 << (topology.package_shift() - topology.core_shift());
            let shared = cache_sharing(leaf.eax, topology);
            leaf.eax = leaf.eax & 0x3fff | (shared - 1) << 14 | (cores - 1).min(0x3f) << 26;
        }
        0x8000_001d if leaf.eax & 0x1f != 0 => {
            leaf.eax = leaf.eax & !(0xfff << 14) | (cache_sharing(leaf.eax, topology) - 1) << 14;
        }
        KVM_SIGNATURE if host.tsc_khz.is_some() => leaf.eax = leaf.eax.max(FREQUENCIES),
        EXTENDED if host.name.is_some() => leaf.eax = leaf.eax.max(*NAME.end()),
        0x8000_0001 => {
            leaf.ecx = set(leaf.ecx, CMP_LEGACY, logical > 1 && leaf.ecx != 0);
            leaf.ecx &= if host.pmu { u32::MAX } else { !PERFORMANCE };
        }
        0x8000_0008 => {
            leaf.ecx = if logical > 1 { topology.package_shift() << 12 | (logical - 1) } else { 0 };
        }
        0x8000_001e => {
            let core = u32::from(apic_id) >> topology.core_shift();
            leaf.eax = apic_id.into();
            leaf.ebx = core & 0xff | (topology.threads_per_core() - 1) << 8;
            leaf.ecx = 0;
        }
        _ => {}
    }
}

/// How many APIC ids share a cache: the first two levels are those of a core, further ones to a package.
fn cache_sharing(eax: u32, topology: Topology) -> u32 {
    let level = eax >> 5 & 0b111;
    let shift = if level <= 2 { topology.core_shift() } else { topology.package_shift() };
    1 << shift
}

fn topology_leaf(function: u32, topology: Topology, apic_id: u8) -> [kvm_cpuid_entry2; 3] {
    let level = |index, eax, ebx, kind| kvm_cpuid_entry2 {
        function,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax,
        ebx,
        ecx: kind | index,
        edx: apic_id.into(),
        ..Default::default()
    };
    [
        level(0, topology.core_shift(), topology.threads_per_core(), LEVEL_THREAD),
        level(1, topology.package_shift(), topology.threads_per_package(), LEVEL_CORE),
        level(2, 0, 0, 0),
    ]
}

fn set(value: u32, bit: u32, on: bool) -> u32 {
    if on { value | bit } else { value & !bit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vireo_vmconfig::CpuTopology;

    const HOST: HostFacts = HostFacts { tsc_deadline: true, tsc_khz: Some(2_500_000), name: None, pmu: true };

    fn leaf(function: u32, index: u32, eax: u32) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 { function, index, eax, ebx: 0xaaaa_bbbb, ..Default::default() }
    }

    fn host_leaves() -> Vec<kvm_cpuid_entry2> {
        vec![
            leaf(1, 0, 0),
            leaf(4, 0, 1 | 1 << 5),
            leaf(4, 3, 3 | 3 << 5),
            leaf(4, 4, 0),
            leaf(0xb, 0, 99),
            leaf(0x4000_0000, 0, 0x4000_0001),
            leaf(0x8000_0008, 0, 0x3028),
            leaf(0x8000_001d, 3, 3 | 3 << 5 | 0xfff << 14),
            leaf(0x8000_001e, 0, 0),
            leaf(0x8000_0026, 0, 0),
        ]
    }

    fn find(leaves: &[kvm_cpuid_entry2], function: u32, index: u32) -> kvm_cpuid_entry2 {
        let mut hits = leaves.iter().filter(|leaf| (leaf.function, leaf.index) == (function, index));
        let hit = *hits.next().unwrap();
        assert!(hits.next().is_none(), "leaf {function:#x}.{index} is there twice");
        hit
    }

    fn leaves_of(s: u32, c: u32, t: u32, apic_id: u8) -> Vec<kvm_cpuid_entry2> {
        leaves(&host_leaves(), Topology::new(CpuTopology::new(s, c, t).unwrap()).unwrap(), apic_id, HOST)
    }

    #[test]
    fn vcpus_of_two_sockets_have_their_topology() {
        // Socket 1, core 2, thread 1 of 2 x 3 x 2: ids have 1 bit for threads and 2 for cores.
        let got = leaves_of(2, 3, 2, 0b1101);
        let one = find(&got, 1, 0);
        assert_eq!((one.ebx >> 24, one.ebx >> 16 & 0xff, one.ebx & 0xffff), (0b1101, 8, 0xbbbb));
        assert_eq!(one.ecx & (HYPERVISOR | TSC_DEADLINE), HYPERVISOR | TSC_DEADLINE);
        assert_eq!(one.edx & HTT, HTT);
        let (l1, l3) = (find(&got, 4, 0).eax, find(&got, 4, 3).eax);
        assert_eq!((l1 >> 14 & 0xfff, l1 >> 26), (1, 3));
        assert_eq!((l3 >> 14 & 0xfff, l3 >> 26), (7, 3));
        assert_eq!(find(&got, 4, 4).eax, 0, "the end of the list stays the end");
        let (smt, core) = (find(&got, 0xb, 0), find(&got, 0xb, 1));
        assert_eq!((smt.eax, smt.ebx, smt.ecx, smt.edx), (1, 2, 0x100, 0b1101));
        assert_eq!((core.eax, core.ebx, core.ecx, core.edx), (3, 6, 0x201, 0b1101));
        assert_eq!(find(&got, 0x8000_0008, 0).ecx, 3 << 12 | 5);
        assert_eq!(find(&got, 0x8000_001d, 3).eax >> 14 & 0xfff, 7);
        let amd = find(&got, 0x8000_001e, 0);
        assert_eq!((amd.eax, amd.ebx, amd.ecx), (0b1101, 0b110 | 1 << 8, 0));
        assert!(got.iter().all(|leaf| leaf.function != 0x8000_0026));
    }

    #[test]
    fn a_single_vcpu_has_no_siblings() {
        let got = leaves_of(1, 1, 1, 0);
        let one = find(&got, 1, 0);
        assert_eq!((one.ebx >> 16 & 0xff, one.edx & HTT), (1, 0));
        assert_eq!(find(&got, 0x8000_0008, 0).ecx, 0);
        assert!(got.iter().all(|leaf| leaf.function != 0x1f), "the host has no such leaf");
    }

    #[test]
    fn the_frequency_is_reported_only_where_it_is_known() {
        let got = leaves_of(1, 1, 1, 0);
        assert_eq!(find(&got, KVM_SIGNATURE, 0).eax, FREQUENCIES);
        assert_eq!(find(&got, FREQUENCIES, 0).eax, 2_500_000);
        let unknown = HostFacts { tsc_deadline: false, tsc_khz: None, name: None, pmu: true };
        let topology = Topology::new(CpuTopology::new(1, 1, 1).unwrap()).unwrap();
        let got = leaves(&host_leaves(), topology, 0, unknown);
        assert_eq!(find(&got, KVM_SIGNATURE, 0).eax, 0x4000_0001);
        assert_eq!(find(&got, 1, 0).ecx & TSC_DEADLINE, 0);
    }

    #[test]
    fn performance_counters_may_be_left_out() {
        let full = |function| kvm_cpuid_entry2 {
            function,
            eax: u32::MAX,
            ebx: u32::MAX,
            ecx: u32::MAX,
            edx: u32::MAX,
            ..Default::default()
        };
        let supported = [1, 0xa, 0x1c, 0x8000_0001, 0x8000_0022].map(full);
        let topology = Topology::new(CpuTopology::new(1, 1, 1).unwrap()).unwrap();
        let of = |pmu| leaves(&supported, topology, 0, HostFacts { pmu, ..HOST });
        let (with, without) = (of(true), of(false));
        for function in [0xa, 0x1c, 0x8000_0022] {
            assert_eq!(find(&with, function, 0), full(function));
            let leaf = find(&without, function, 0);
            assert_eq!([leaf.eax, leaf.ebx, leaf.ecx, leaf.edx], [0; 4], "{function:#x}");
        }
        for (function, bits) in [(1, PDCM), (0x8000_0001, PERFORMANCE)] {
            let (with, without) = (find(&with, function, 0).ecx, find(&without, function, 0).ecx);
            assert_eq!((with & bits, with & !bits), (bits, without), "{function:#x}");
        }
    }

    #[test]
    fn the_name_is_that_of_the_host() {
        let text = b"A CPU of twelve words of four bytes each, no  mo";
        let word = |at: usize| u32::from_le_bytes(text[at..at + 4].try_into().unwrap());
        let name = [0, 16, 32].map(|leaf| [0, 4, 8, 12].map(|register| word(leaf + register)));
        let host = HostFacts { name: Some(name), ..HOST };
        let supported = [leaf(0x8000_0000, 0, 0x8000_0001), leaf(0x8000_0003, 0, 0)];
        let topology = Topology::new(CpuTopology::new(1, 1, 1).unwrap()).unwrap();
        let got = leaves(&supported, topology, 0, host);
        assert_eq!(find(&got, 0x8000_0000, 0).eax, 0x8000_0004);
        let read = [2, 3, 4].map(|part| find(&got, 0x8000_0000 + part, 0));
        let read: Vec<u8> = read
            .iter()
            .flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
            .flat_map(u32::to_le_bytes)
            .collect();
        assert_eq!(read, text);
    }
}
