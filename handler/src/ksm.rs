//! Kernel same-page merging of a node: `ksmConfiguration` of the KubeVirt object.
//!
//! As KubeVirt's node agent, this one has the kernel merge equal pages on the nodes that are selected, while they are short of
//! memory, and stops what it has started. KSM that was started otherwise stays as it is.

use std::io;
use std::path::Path;

use procfs::{Current as _, Meminfo};
pub(crate) use vireo_api::names::{
    KSM_ENABLED_LABEL as ENABLED_LABEL, KSM_MANAGED_ANNOTATION as MANAGED_ANNOTATION,
};

/// The kernel's directory with the settings of KSM.
pub(crate) const DIRECTORY: &str = "/sys/kernel/mm/ksm";
/// A node is short of memory while less than this many percent of it are available; KubeVirt's.
const SHORT: u64 = 20;

/// Whether KSM runs, and who has started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ksm {
    /// It does not run.
    Stopped,
    /// The node agent has started it, or is to.
    Ours,
    /// It was started otherwise.
    Foreign,
}

impl Ksm {
    fn new(runs: bool, is_managed: bool) -> Self {
        match (runs, is_managed) {
            (false, _) => Self::Stopped,
            (true, true) => Self::Ours,
            (true, false) => Self::Foreign,
        }
    }
}

/// How KSM is to run.
fn decide(now: Ksm, is_wanted: bool) -> Ksm {
    match (now, is_wanted) {
        (Ksm::Foreign, _) => Ksm::Foreign,
        (Ksm::Stopped | Ksm::Ours, true) => Ksm::Ours,
        (Ksm::Stopped | Ksm::Ours, false) => Ksm::Stopped,
    }
}

/// Stops KSM where it is not to run. Returns how it is to run: what is [`Ksm::Ours`] is started once the object of this node says
/// so, so that a node agent that ends in between still knows that it is its own. Returns `None` where the kernel has no KSM. Pages
/// that are equal stay merged until they are written to, as with KubeVirt's node agent. Blocks.
pub(crate) fn apply(directory: &Path, is_managed: bool, is_selected: bool) -> io::Result<Option<Ksm>> {
    let run = directory.join("run");
    let runs = match std::fs::read_to_string(&run) {
        Ok(text) => text.trim() == "1",
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let memory = Meminfo::current().map_err(io::Error::other)?;
    let is_short = memory.mem_available.is_some_and(|available| is_short(memory.mem_total, available));
    let ksm = decide(Ksm::new(runs, is_managed), is_selected && is_short);
    if runs && ksm == Ksm::Stopped {
        std::fs::write(&run, "0")?;
    }
    Ok(Some(ksm))
}

/// Starts KSM, unless it runs. Blocks.
pub(crate) fn start(directory: &Path) -> io::Result<()> {
    std::fs::write(directory.join("run"), "1")
}

/// Whether a node with so much memory is short of it.
fn is_short(total: u64, available: u64) -> bool {
    available < total / 100 * SHORT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ksm_runs_on_selected_nodes_that_are_short_of_memory() {
        let decide = |(runs, is_managed), (is_selected, is_short)| {
            decide(Ksm::new(runs, is_managed), is_selected && is_short)
        };
        assert_eq!(decide((false, false), (true, true)), Ksm::Ours);
        assert_eq!(decide((false, false), (true, false)), Ksm::Stopped);
        assert_eq!(decide((true, true), (true, false)), Ksm::Stopped, "there is memory again");
        assert_eq!(decide((true, true), (false, true)), Ksm::Stopped, "it is not selected any more");
        assert_eq!(decide((true, false), (false, false)), Ksm::Foreign, "an administrator has started it");
        assert_eq!(decide((true, false), (true, true)), Ksm::Foreign);
        assert_eq!(decide((false, true), (false, true)), Ksm::Stopped);
    }

    #[test]
    fn memory_is_short_below_a_fifth() {
        assert_eq!([199, 200].map(|available| is_short(1000, available)), [true, false]);
        assert!(!is_short(0, 0));
    }

    #[test]
    fn what_was_started_is_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("run");
        assert_eq!(apply(directory.path(), false, true).unwrap(), None, "the kernel has none");
        start(directory.path()).unwrap();
        assert_eq!(apply(directory.path(), false, false).unwrap(), Some(Ksm::Foreign));
        assert_eq!(std::fs::read_to_string(&run).unwrap(), "1", "it is not the node agent's");
        assert_eq!(apply(directory.path(), true, false).unwrap(), Some(Ksm::Stopped));
        assert_eq!(std::fs::read_to_string(&run).unwrap(), "0");
    }
}
