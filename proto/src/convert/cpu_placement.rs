use vireo_vmconfig::{CpuPlacement, HostNode};

use super::Problems;
use crate::launcher as wire;

impl From<CpuPlacement> for wire::CpuPlacement {
    fn from(placement: CpuPlacement) -> Self {
        let CpuPlacement { cpus, isolate_emulator_thread, numa, realtime } = placement;
        let node = |HostNode { id, cpus, distances, free_huge_pages }| wire::HostNode {
            id,
            cpus,
            distances: distances.into_iter().map(u32::from).collect(),
            free_huge_pages,
        };
        Self {
            cpus,
            isolate_emulator_thread,
            numa: numa.map(|nodes| wire::HostNuma { nodes: nodes.into_iter().map(node).collect() }),
            realtime: realtime.map(|vcpus| wire::Realtime { vcpus }),
        }
    }
}

/// CPUs of the host from their message.
pub fn cpu_placement(problems: &mut Problems, placement: wire::CpuPlacement) -> CpuPlacement {
    let wire::CpuPlacement { cpus, isolate_emulator_thread, numa, realtime } = placement;
    let mut node = |(index, node): (usize, wire::HostNode)| {
        let at = format!("cpu_placement.numa.nodes[{index}].distances");
        let distances = node.distances.into_iter().filter_map(|distance| {
            let read = u8::try_from(distance);
            read.map_err(|_| problems.add(&at, format_args!("{distance} is above 255"))).ok()
        });
        HostNode {
            id: node.id,
            cpus: node.cpus,
            distances: distances.collect(),
            free_huge_pages: node.free_huge_pages,
        }
    };
    CpuPlacement {
        cpus,
        isolate_emulator_thread,
        numa: numa.map(|numa| numa.nodes.into_iter().enumerate().map(&mut node).collect()),
        realtime: realtime.map(|realtime| realtime.vcpus),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_survives_the_message() {
        let node = HostNode { id: 1, cpus: vec![2, 3], distances: vec![21, 10], free_huge_pages: Some(7) };
        for placement in [
            CpuPlacement::default(),
            CpuPlacement {
                cpus: vec![2, 3],
                isolate_emulator_thread: true,
                numa: Some(vec![HostNode::default(), node]),
                realtime: Some(vec![0]),
            },
            CpuPlacement { numa: Some(vec![]), realtime: Some(vec![]), ..CpuPlacement::default() },
        ] {
            let mut problems = Problems::default();
            assert_eq!(cpu_placement(&mut problems, placement.clone().into()), placement);
            assert!(problems.is_empty());
        }
        let far = wire::HostNode { distances: vec![256], ..wire::HostNode::default() };
        let numa = Some(wire::HostNuma { nodes: vec![far] });
        let mut problems = Problems::default();
        cpu_placement(&mut problems, wire::CpuPlacement { numa, ..wire::CpuPlacement::default() });
        assert_eq!(problems.into_texts(), ["cpu_placement.numa.nodes[0].distances: 256 is above 255"]);
    }
}
