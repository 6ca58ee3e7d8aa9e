//! The NUMA nodes of this host, as the kernel shows them.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use vireo_vmconfig::{HostNode, HugePage};

const NODES: &str = "/sys/devices/system/node";

/// Those of this host, with the free huge pages of a size. Blocks.
pub(crate) fn of_this_node(page: Option<HugePage>) -> Vec<HostNode> {
    read(Path::new(NODES), page)
}

/// In the order of their numbers. One that vanishes meanwhile has nothing.
fn read(directory: &Path, page: Option<HugePage>) -> Vec<HostNode> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("node")?.parse::<u32>().ok();
    let mut ids: Vec<u32> =
        entries.filter_map(|entry| number(&entry.file_name().to_string_lossy())).collect();
    ids.sort_unstable();
    let node = |id| {
        let at = directory.join(format!("node{id}"));
        let text = |name: &str| fs::read_to_string(at.join(name)).unwrap_or_default();
        let free =
            page.map(|page| text(&format!("hugepages/hugepages-{}kB/free_hugepages", page.bytes() >> 10)));
        HostNode {
            id,
            cpus: list(text("cpulist").trim()),
            distances: text("distance").split_whitespace().filter_map(|text| text.parse().ok()).collect(),
            free_huge_pages: free.and_then(|free| free.trim().parse().ok()),
        }
    };
    ids.into_iter().map(node).collect()
}

/// The numbers of a list of the kernel: `0-2,7`.
fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(u32::from_str(first).ok()?..=u32::from_str(last).ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_their_cpus_distances_and_pages() {
        let dir = tempfile::tempdir().unwrap();
        for (node, cpus, distances, pages) in
            [("node10", "1,3\n", "21 10\n", "0\n"), ("node2", "0-1,4\n", "10 21\n", "64\n")]
        {
            let pages_of = dir.path().join(node).join("hugepages/hugepages-2048kB");
            fs::create_dir_all(&pages_of).unwrap();
            fs::write(pages_of.join("free_hugepages"), pages).unwrap();
            fs::write(dir.path().join(node).join("cpulist"), cpus).unwrap();
            fs::write(dir.path().join(node).join("distance"), distances).unwrap();
        }
        fs::create_dir(dir.path().join("power")).unwrap();
        let node = |id, cpus: &[u32], distances: [u8; 2], free_huge_pages| HostNode {
            id,
            cpus: cpus.to_vec(),
            distances: distances.to_vec(),
            free_huge_pages,
        };
        let expected = [node(2, &[0, 1, 4], [10, 21], Some(64)), node(10, &[1, 3], [21, 10], Some(0))];
        assert_eq!(read(dir.path(), Some(HugePage::Mib2)), expected);
        let unknown = read(dir.path(), Some(HugePage::Gib1));
        assert_eq!(unknown.iter().map(|node| node.free_huge_pages).collect::<Vec<_>>(), [None, None]);
        assert_eq!(read(&dir.path().join("absent"), None), []);
        assert_eq!((list(""), list("a,3-1,2")), (vec![], vec![2]));
    }
}
