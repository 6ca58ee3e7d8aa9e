use std::error::Error;
use std::fmt;

use crate::HugePage;

/// The distance of a node to itself (ACPI 6.5, section 5.2.17).
const LOCAL: u8 = 10;
/// The distance of two nodes where the host gives none.
const REMOTE: u8 = 20;

/// A NUMA node of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNode {
    /// Its number.
    pub id: u32,
    /// Its CPUs.
    pub cpus: Vec<u32>,
    /// Its distances to all nodes of the host, itself among them, in their order.
    pub distances: Vec<u8>,
    /// Huge pages of the guest's size that it has free, where that is known.
    pub free_huge_pages: Option<u64>,
}

/// A NUMA node of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestNode {
    /// The node of the host that its memory is of.
    pub host: u32,
    /// Its vCPUs, at least one.
    pub vcpus: Vec<u32>,
    /// Its memory in bytes: whole huge pages, at least one.
    pub memory: u64,
}

/// The NUMA nodes of a guest, which follow those of the host: one for each that its vCPUs' CPUs are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestNuma {
    nodes: Vec<GuestNode>,
    distances: Vec<Vec<u8>>,
}

/// Why a guest cannot have the nodes of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaError {
    /// The host names no node.
    NoNodes,
    /// A CPU is of no node.
    NoNodeOfCpu(usize),
    /// There are fewer huge pages than nodes, or parts of pages.
    Memory {
        /// Of the guest, in bytes.
        bytes: u64,
        /// The size of its pages.
        page: HugePage,
        /// How many nodes it would have.
        nodes: usize,
    },
}

impl fmt::Display for NumaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNodes => f.write_str("the node has no NUMA topology"),
            Self::NoNodeOfCpu(cpu) => write!(f, "CPU {cpu} of the node is of no NUMA node"),
            Self::Memory { bytes, page, nodes } => {
                write!(
                    f,
                    "{bytes} bytes of memory are not at least one page of {page} for each of {nodes} NUMA nodes"
                )
            }
        }
    }
}

impl Error for NumaError {}

impl GuestNuma {
    /// The nodes of a guest whose vCPUs have these CPUs of the host, in the order of the host's. Its memory is shared out
    /// evenly, in whole huge pages; what is left over goes to the first nodes, page by page, as in KubeVirt.
    ///
    /// # Errors
    /// When a CPU is of no node, or a node of the guest would be without memory.
    pub fn of(host: &[HostNode], cpus: &[usize], memory: u64, page: HugePage) -> Result<Self, NumaError> {
        if host.is_empty() {
            return Err(NumaError::NoNodes);
        }
        let is_of = |node: &HostNode, cpu: usize| node.cpus.iter().any(|of| usize::try_from(*of) == Ok(cpu));
        if let Some(cpu) = cpus.iter().find(|cpu| !host.iter().any(|node| is_of(node, **cpu))) {
            return Err(NumaError::NoNodeOfCpu(*cpu));
        }
        let vcpus = |node: &HostNode| -> Vec<u32> {
            (0..).zip(cpus).filter(|(_, cpu)| is_of(node, **cpu)).map(|(vcpu, _)| vcpu).collect()
        };
        // A CPU that two nodes name is of the first.
        let mut seen = Vec::new();
        let mut used = Vec::new();
        for (position, node) in host.iter().enumerate() {
            let own: Vec<u32> = vcpus(node).into_iter().filter(|vcpu| !seen.contains(vcpu)).collect();
            if !own.is_empty() {
                seen.extend(&own);
                used.push((position, node, own));
            }
        }
        let count = used.len();
        let too_little = NumaError::Memory { bytes: memory, page, nodes: count };
        let (pages, nodes) = (memory / page.bytes(), u64::try_from(count).unwrap_or(u64::MAX));
        let each = pages.checked_div(nodes).filter(|each| *each > 0).ok_or(too_little)?;
        if !memory.is_multiple_of(page.bytes()) {
            return Err(too_little);
        }
        let more = pages % nodes;
        let positions: Vec<usize> = used.iter().map(|(position, ..)| *position).collect();
        let distances = used.iter().map(|(from, node, _)| {
            positions.iter().map(|to| distance(*from == *to, node.distances.get(*to).copied())).collect()
        });
        let distances = distances.collect();
        let nodes = (0_u64..).zip(used).map(|(index, (_, node, vcpus))| GuestNode {
            host: node.id,
            vcpus,
            memory: (each + u64::from(index < more)) * page.bytes(),
        });
        Ok(Self { nodes: nodes.collect(), distances })
    }

    /// The nodes, in the order of their numbers in the guest; never none.
    pub fn nodes(&self) -> &[GuestNode] {
        &self.nodes
    }

    /// The distances between the nodes: for each, those to all.
    pub fn distances(&self) -> &[Vec<u8>] {
        &self.distances
    }
}

/// A distance as ACPI has it: that of a node to itself is the least, and no other node is as near.
fn distance(is_same: bool, given: Option<u8>) -> u8 {
    match given {
        _ if is_same => LOCAL,
        Some(distance) => distance.max(LOCAL + 1),
        None => REMOTE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn host(nodes: &[(u32, &[u32], &[u8])]) -> Vec<HostNode> {
        let node = |(id, cpus, distances): &(u32, &[u32], &[u8])| HostNode {
            id: *id,
            cpus: cpus.to_vec(),
            distances: distances.to_vec(),
            free_huge_pages: None,
        };
        nodes.iter().map(node).collect()
    }

    fn guest(numa: &GuestNuma) -> Vec<(u32, &[u32], u64)> {
        numa.nodes().iter().map(|node| (node.host, &*node.vcpus, node.memory / MIB)).collect()
    }

    #[test]
    fn vcpus_are_of_the_nodes_of_their_cpus() {
        let host =
            host(&[(0, &[0, 2, 4], &[10, 21, 31]), (1, &[1, 3, 5], &[21, 10, 41]), (4, &[6], &[31, 41, 10])]);
        let of = |cpus: &[usize], memory| GuestNuma::of(&host, cpus, memory, HugePage::Mib2).unwrap();
        let one = of(&[2, 4], 64 * MIB);
        assert_eq!((guest(&one), one.distances()), (vec![(0, &[0, 1][..], 64)], &[vec![10]][..]));
        let interleaved = of(&[2, 3, 4, 5], 64 * MIB);
        assert_eq!(guest(&interleaved), [(0, &[0, 2][..], 32), (1, &[1, 3][..], 32)]);
        assert_eq!(interleaved.distances(), [[10, 21], [21, 10]]);
        let outer = of(&[6, 1], 64 * MIB);
        assert_eq!(guest(&outer), [(1, &[1][..], 32), (4, &[0][..], 32)], "the order is the host's");
        assert_eq!(outer.distances(), [[10, 41], [41, 10]]);
    }

    #[test]
    fn the_first_nodes_have_the_pages_that_are_left_over() {
        let host = host(&[(0, &[0], &[]), (1, &[1], &[]), (2, &[2], &[])]);
        for (memory, expected) in [(12, [4, 4, 4]), (14, [6, 4, 4]), (16, [6, 6, 4]), (6, [2, 2, 2])] {
            let numa = GuestNuma::of(&host, &[0, 1, 2], memory * MIB, HugePage::Mib2).unwrap();
            let shares: Vec<u64> = numa.nodes().iter().map(|node| node.memory / MIB).collect();
            assert_eq!(shares, expected, "{memory}");
            assert_eq!(numa.distances(), [[10, 20, 20], [20, 10, 20], [20, 20, 10]], "the host gives none");
        }
        let numa = GuestNuma::of(&host, &[0, 1], 3072 * MIB, HugePage::Gib1).unwrap();
        assert_eq!(guest(&numa), [(0, &[0][..], 2048), (1, &[1][..], 1024)]);
    }

    #[test]
    fn no_node_is_without_memory_and_no_cpu_without_a_node() {
        let host = host(&[(0, &[0, 1], &[10, 0]), (1, &[1, 2], &[0, 10])]);
        let of = |cpus: &[usize], memory| GuestNuma::of(&host, cpus, memory, HugePage::Mib2);
        let memory = |bytes, nodes| Err(NumaError::Memory { bytes, page: HugePage::Mib2, nodes });
        assert_eq!(of(&[0, 2], 2 * MIB), memory(2 * MIB, 2));
        assert_eq!(of(&[0], 3 * MIB), memory(3 * MIB, 1));
        assert_eq!(of(&[], 4 * MIB), memory(4 * MIB, 0));
        assert_eq!(of(&[0, 7], 4 * MIB), Err(NumaError::NoNodeOfCpu(7)));
        assert_eq!(GuestNuma::of(&[], &[0], MIB, HugePage::Mib2), Err(NumaError::NoNodes));
        let twice = of(&[1, 2], 8 * MIB).unwrap();
        assert_eq!(guest(&twice), [(0, &[0][..], 4), (1, &[1][..], 4)], "each vCPU is of one node");
        assert_eq!(twice.distances(), [[10, 11], [11, 10]], "no other node is as near");
    }
}
