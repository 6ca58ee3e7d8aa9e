//! Kernel same-page merging of a node: `ksmConfiguration` of the KubeVirt object.
//!
//! As KubeVirt's node agent, this one has the kernel merge equal pages on the nodes that are selected, while they are short of
//! memory, and stops what it has started. KSM that was started otherwise stays as it is.

use std::io;
use std::path::Path;

use serde_json::{Value, json};

/// The kernel's directory with the settings of KSM.
pub(crate) const DIRECTORY: &str = "/sys/kernel/mm/ksm";
/// Whether KSM runs on a node; KubeVirt's label.
const ENABLED_LABEL: &str = "kubevirt.io/ksm-enabled";
/// Whether the node agent has started it; KubeVirt's annotation.
const MANAGED_ANNOTATION: &str = "kubevirt.io/ksm-handler-managed";
/// A node is short of memory while less than this many percent of it are available; KubeVirt's.
const SHORT: u64 = 20;

/// Whether KSM is to run, and whether by the node agent: by whether it runs, and has been started by the node agent, and by
/// whether the node is selected, and short of memory.
fn decide((runs, is_managed): (bool, bool), (is_selected, is_short): (bool, bool)) -> (bool, bool) {
    match (is_selected, runs) {
        // It was started otherwise.
        (_, true) if !is_managed => (true, false),
        (true, _) => (is_short, is_short),
        (false, _) => (false, false),
    }
}

/// Has the object of this node say how KSM is to run, and stops it where it is not to. Whether it is to be started, once the object
/// is written: a node agent that ends in between still knows that it is its own. Blocks for as long as the kernel takes.
/// Nothing is done where the kernel has no KSM.
pub(crate) fn apply(node: &mut Value, is_selected: bool, directory: &Path) -> io::Result<bool> {
    let run = directory.join("run");
    let runs = match std::fs::read_to_string(&run) {
        Ok(text) => text.trim() == "1",
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let is_managed = node["metadata"]["annotations"][MANAGED_ANNOTATION] == "true";
    let is_short = is_short(&std::fs::read_to_string("/proc/meminfo")?);
    let (is_to_run, is_ours) = decide((runs, is_managed), (is_selected, is_short));
    if runs && !is_to_run {
        std::fs::write(&run, "0")?;
    }
    node["metadata"]["labels"][ENABLED_LABEL] = json!(is_to_run.to_string());
    node["metadata"]["annotations"][MANAGED_ANNOTATION] = json!(is_ours.to_string());
    Ok(is_to_run && !runs)
}

/// Starts KSM.
pub(crate) fn start(directory: &Path) -> io::Result<()> {
    std::fs::write(directory.join("run"), "1")
}

/// Whether a node is short of memory, by its `/proc/meminfo`.
fn is_short(memory: &str) -> bool {
    let of = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    match (of("MemTotal:"), of("MemAvailable:")) {
        (Some(total), Some(available)) => available < total / 100 * SHORT,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ksm_runs_on_selected_nodes_that_are_short_of_memory() {
        assert_eq!(decide((false, false), (true, true)), (true, true));
        assert_eq!(decide((false, false), (true, false)), (false, false));
        assert_eq!(decide((true, true), (true, false)), (false, false), "there is memory again");
        assert_eq!(decide((true, true), (false, true)), (false, false), "it is not selected any more");
        assert_eq!(decide((true, false), (false, false)), (true, false), "an administrator has started it");
        assert_eq!(decide((true, false), (true, true)), (true, false));
        assert_eq!(decide((false, true), (false, true)), (false, false));
    }

    #[test]
    fn memory_is_short_below_a_fifth() {
        let memory =
            |available: u64| format!("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  {available} kB\n");
        assert_eq!([199, 200].map(|available| is_short(&memory(available))), [true, false]);
        assert!(!is_short(""));
    }

    #[test]
    fn what_was_started_is_stopped_and_shown() {
        let directory = tempfile::tempdir().unwrap();
        let mut node = json!({"metadata": {}});
        assert!(!apply(&mut node, true, directory.path()).unwrap());
        assert_eq!(node, json!({"metadata": {}}), "the kernel has none");
        std::fs::write(directory.path().join("run"), "1\n").unwrap();
        node["metadata"]["annotations"][MANAGED_ANNOTATION] = json!("true");
        assert!(!apply(&mut node, false, directory.path()).unwrap());
        assert_eq!(std::fs::read_to_string(directory.path().join("run")).unwrap(), "0");
        assert_eq!(node["metadata"]["labels"][ENABLED_LABEL], "false");
        assert_eq!(node["metadata"]["annotations"][MANAGED_ANNOTATION], "false");
    }
}
