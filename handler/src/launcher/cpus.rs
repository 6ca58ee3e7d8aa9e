//! The CPUs that VMs of this host have for themselves.

use std::collections::BTreeSet;

use rustix::thread::{CpuSet, sched_getaffinity};
use thiserror::Error;

/// Why a VM does not get CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "spec.domain.cpu.dedicatedCpuPlacement: {wanted} CPUs are needed, and this node has {all}, of which other VMs have {used} for \
     themselves"
)]
pub(crate) struct TooFewCpus {
    wanted: usize,
    all: usize,
    used: usize,
}

/// The CPUs that the node agent may use.
pub(crate) fn of_this_node() -> Vec<u32> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).filter_map(|cpu| u32::try_from(cpu).ok()).collect()
}

/// The first CPUs that none of `used` is.
///
/// # Errors
/// When there are fewer.
pub(crate) fn choose(wanted: usize, all: &[u32], used: &BTreeSet<u32>) -> Result<Vec<u32>, TooFewCpus> {
    let free: Vec<u32> = all.iter().copied().filter(|cpu| !used.contains(cpu)).collect();
    match free.get(..wanted) {
        Some(chosen) => Ok(chosen.to_vec()),
        None => Err(TooFewCpus { wanted, all: all.len(), used: all.len() - free.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_vms_have_a_cpu() {
        let all = [0, 1, 4, 5];
        assert_eq!(choose(2, &all, &BTreeSet::new()), Ok(vec![0, 1]));
        assert_eq!(choose(2, &all, &BTreeSet::from([0, 4, 9])), Ok(vec![1, 5]));
        let error = choose(3, &all, &BTreeSet::from([0, 4])).unwrap_err().to_string();
        let expected = "spec.domain.cpu.dedicatedCpuPlacement: 3 CPUs are needed, and this node has 4, of which other VMs \
                        have 2 for themselves";
        assert_eq!(error, expected);
        assert!(!of_this_node().is_empty());
    }
}
