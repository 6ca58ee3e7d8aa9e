//! The NUMA nodes of a guest as QEMU has them, and what scheduling in real time needs of its memory.

use serde_json::json;
use vireo_vmconfig::{GuestNuma, HugePage};

use super::args::Args;

/// Nodes whose memory is of nodes of the host. It is taken at the start: where a node has too few huge pages, the guest would
/// be killed later.
pub(super) fn nodes(args: &mut Args, numa: &GuestNuma, page: HugePage) {
    for (id, node) in numa.nodes().iter().enumerate() {
        let memory = json!({
            "qom-type": "memory-backend-memfd", "id": format!("ram-node{id}"), "size": node.memory,
            "hugetlb": true, "hugetlbsize": page.bytes(), "share": true,
            "host-nodes": [node.host], "policy": "bind", "prealloc": true,
        });
        args.json("-object", &memory);
        let cpus: String = node.vcpus.iter().map(|vcpu| format!(",cpus={vcpu}")).collect();
        args.option("-numa", format!("node,nodeid={id},memdev=ram-node{id}{cpus}"));
    }
    for (from, distances) in numa.distances().iter().enumerate() {
        for (to, distance) in distances.iter().enumerate().filter(|(to, _)| *to != from) {
            args.option("-numa", format!("dist,src={from},dst={to},val={distance}"));
        }
    }
}

/// Nothing is swapped or merged. What QEMU has, and not all that it could touch: threads' stacks alone are 8 MiB each.
pub(super) fn lock_memory(args: &mut Args) {
    args.option("-overcommit", "mem-lock=on-fault");
    args.option("-machine", "mem-merge=off");
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::{CpuPlacement, HostNode};

    use super::*;
    use crate::launch::{Launch, sample};

    #[test]
    fn a_node_has_its_vcpus_and_memory_of_one_node_of_the_host() {
        let node = |id, cpus: &[u32], distances: &[u8]| HostNode {
            id,
            cpus: cpus.to_vec(),
            distances: distances.to_vec(),
            free_huge_pages: None,
        };
        let host = [node(0, &[0, 2], &[10, 32]), node(3, &[1], &[32, 10])];
        let of = |cpus: &[usize]| {
            let mut args = Args::default();
            nodes(&mut args, &GuestNuma::of(&host, cpus, 6 << 20, HugePage::Mib2).unwrap(), HugePage::Mib2);
            args.into_line().join(" ")
        };
        let memory = |id: u8, host: u8, size: u64| {
            format!(
                "-object {{\"host-nodes\":[{host}],\"hugetlb\":true,\"hugetlbsize\":2097152,\"id\":\"ram-node{id}\",\
                 \"policy\":\"bind\",\"prealloc\":true,\"qom-type\":\"memory-backend-memfd\",\"share\":true,\"size\":{size}}}"
            )
        };
        let (first, second) = (memory(0, 0, 4 << 20), memory(1, 3, 2 << 20));
        let expected = format!(
            "{first} -numa node,nodeid=0,memdev=ram-node0,cpus=0,cpus=2 {second} -numa node,nodeid=1,memdev=ram-node1,cpus=1 \
             -numa dist,src=0,dst=1,val=32 -numa dist,src=1,dst=0,val=32"
        );
        assert_eq!(of(&[0, 1, 2]), expected);
        assert_eq!(
            of(&[1]),
            format!("{} -numa node,nodeid=0,memdev=ram-node0,cpus=0", memory(0, 3, 6 << 20))
        );
    }

    #[test]
    fn real_time_is_of_a_placement() {
        let launch = |placement| Launch { cpu_placement: placement, ..sample::kernel_boot() };
        let realtime =
            |vcpus: &[u32]| CpuPlacement { realtime: Some(vcpus.to_vec()), ..CpuPlacement::default() };
        for (placement, expected) in [
            (None, false),
            (Some(CpuPlacement::default()), false),
            (Some(realtime(&[])), true),
            (Some(realtime(&[0])), true),
        ] {
            assert_eq!(launch(placement.clone()).is_realtime(), expected, "{placement:?}");
        }
    }
}
