use vireo_vmconfig::CpuTopology;

/// The highest APIC id: 255 is the broadcast address.
const APIC_ID_MAX: u32 = 254;

/// Sockets, cores and threads as they appear in local APIC ids: each level has a field of whole bits, so ids have
/// gaps where a count is not a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    cpus: CpuTopology,
    thread_bits: u32,
    core_bits: u32,
}

/// A topology whose APIC ids do not fit.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{sockets} sockets of {cores} cores with {threads} threads need APIC ids up to {highest}, and 254 is the highest: \
     choose powers of two for cores and threads"
)]
pub struct TopologyError {
    sockets: u8,
    cores: u8,
    threads: u8,
    highest: u32,
}

impl Topology {
    pub(crate) fn new(cpus: CpuTopology) -> Result<Self, TopologyError> {
        let topology = Self { cpus, thread_bits: bits(cpus.threads()), core_bits: bits(cpus.cores()) };
        let highest = topology.id(cpus.sockets() - 1, cpus.cores() - 1, cpus.threads() - 1);
        if highest > APIC_ID_MAX {
            let (sockets, cores, threads) = (cpus.sockets(), cpus.cores(), cpus.threads());
            return Err(TopologyError { sockets, cores, threads, highest });
        }
        Ok(topology)
    }

    /// The local APIC ids of all vCPUs, in order.
    pub(crate) fn apic_ids(self) -> Vec<u8> {
        let mut ids = Vec::with_capacity(usize::from(self.cpus.count()));
        for socket in 0..self.cpus.sockets() {
            for core in 0..self.cpus.cores() {
                for thread in 0..self.cpus.threads() {
                    // `new` has checked the highest.
                    ids.extend(u8::try_from(self.id(socket, core, thread)));
                }
            }
        }
        ids
    }

    fn id(self, socket: u8, core: u8, thread: u8) -> u32 {
        u32::from(socket) << self.package_shift() | u32::from(core) << self.thread_bits | u32::from(thread)
    }

    /// Bits below the core number.
    pub(crate) fn core_shift(self) -> u32 {
        self.thread_bits
    }

    /// Bits below the package number.
    pub(crate) fn package_shift(self) -> u32 {
        self.thread_bits + self.core_bits
    }

    pub(crate) fn threads_per_core(self) -> u32 {
        self.cpus.threads().into()
    }

    pub(crate) fn cores_per_package(self) -> u32 {
        self.cpus.cores().into()
    }

    pub(crate) fn threads_per_package(self) -> u32 {
        self.threads_per_core() * self.cores_per_package()
    }
}

/// Bits needed to number `count` things.
fn bits(count: u8) -> u32 {
    u32::from(count).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(sockets: u32, cores: u32, threads: u32) -> Result<Topology, TopologyError> {
        Topology::new(CpuTopology::new(sockets, cores, threads).unwrap())
    }

    #[test]
    fn every_level_has_whole_bits() {
        for ((s, c, t), want) in [
            ((1, 1, 1), vec![0]),
            ((1, 4, 1), vec![0, 1, 2, 3]),
            ((2, 2, 2), vec![0, 1, 2, 3, 4, 5, 6, 7]),
            ((2, 3, 1), vec![0, 1, 2, 4, 5, 6]),
            ((2, 1, 3), vec![0, 1, 2, 4, 5, 6]),
        ] {
            assert_eq!(topology(s, c, t).unwrap().apic_ids(), want, "{s} {c} {t}");
        }
    }

    #[test]
    fn ids_beyond_the_last_are_refused_by_name() {
        assert_eq!(topology(1, 254, 1).unwrap().apic_ids().len(), 254);
        assert_eq!(topology(254, 1, 1).unwrap().apic_ids().last(), Some(&253));
        let refused = topology(43, 5, 1).unwrap_err();
        assert_eq!(refused.highest, 42 << 3 | 4);
    }
}
