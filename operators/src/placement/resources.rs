use std::collections::BTreeMap;

use vireo_api::spec::{Bytes, MilliCpus};
use vireo_api::v1::Quantity;

/// Memory and CPU: what there is, or what is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// In bytes.
    pub memory: u64,
    /// In thousandths of a CPU.
    pub cpu: u64,
}

impl Resources {
    /// The allocatable resources of a node. Absent ones are not limited.
    pub(super) fn of(allocatable: &BTreeMap<String, Quantity>) -> Self {
        let (memory, cpu) = read(allocatable);
        Self { memory: memory.unwrap_or(u64::MAX), cpu: cpu.unwrap_or(u64::MAX) }
    }

    /// The requests of a container. Absent ones are zero.
    pub(super) fn requested(requests: &BTreeMap<String, Quantity>) -> Self {
        let (memory, cpu) = read(requests);
        Self { memory: memory.unwrap_or_default(), cpu: cpu.unwrap_or_default() }
    }

    /// Both together.
    #[must_use]
    pub(super) fn with(self, more: Self) -> Self {
        Self { memory: self.memory.saturating_add(more.memory), cpu: self.cpu.saturating_add(more.cpu) }
    }

    /// What is left of it.
    #[must_use]
    pub(super) fn without(self, taken: Self) -> Self {
        Self { memory: self.memory.saturating_sub(taken.memory), cpu: self.cpu.saturating_sub(taken.cpu) }
    }

    /// What of it is not enough for a Pod, as kube-scheduler says it.
    pub(super) fn lacks(self, requests: Self) -> Vec<&'static str> {
        let lacks = [
            (self.cpu < requests.cpu, "Insufficient cpu"),
            (self.memory < requests.memory, "Insufficient memory"),
        ];
        lacks.into_iter().filter(|(lacks, _)| *lacks).map(|(_, text)| text).collect()
    }
}

/// Bytes of memory and thousandths of a CPU, where they are there and can be read.
fn read(list: &BTreeMap<String, Quantity>) -> (Option<u64>, Option<u64>) {
    let memory = list.get("memory").and_then(|has| Bytes::try_from(has).ok());
    let cpu = list.get("cpu").and_then(|has| MilliCpus::try_from(has).ok());
    (memory.map(Bytes::get), cpu.map(MilliCpus::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;

    #[test]
    fn node_resources_are_read() {
        let given = [("memory", "1Gi"), ("cpu", "2")];
        let given = given.map(|(name, text)| (name.to_owned(), Quantity(text.to_owned()))).into();
        let all = Resources::of(&given);
        assert_eq!(all, Resources { memory: 1024 * MI, cpu: 2000 });
        assert_eq!(Resources::requested(&given), all);
        assert_eq!(Resources::of(&BTreeMap::new()), Resources { memory: u64::MAX, cpu: u64::MAX });
        assert_eq!(Resources::requested(&BTreeMap::new()), Resources { memory: 0, cpu: 0 });
        let left = all.without(Resources { memory: 1000 * MI, cpu: 5000 });
        assert_eq!(left, Resources { memory: 24 * MI, cpu: 0 });
        assert_eq!(left.lacks(Resources { memory: 24 * MI, cpu: 0 }), Vec::<&str>::new());
        let more = Resources { memory: 25 * MI, cpu: 1 };
        assert_eq!(left.lacks(more), ["Insufficient cpu", "Insufficient memory"]);
        assert_eq!(left.with(more), Resources { memory: 49 * MI, cpu: 1 });
    }
}
