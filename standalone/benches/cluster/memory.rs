//! Memory of the components' processes on this host (`Pss` of `proc(5)`).

use std::collections::BTreeMap;
use std::fs;

use super::Error;

const PROGRAMS: [&str; 5] = ["virt-api", "virt-controller", "virt-handler", "virt-operator", "virt-launcher"];

/// Prints the memory of the largest process of each program, while so many guests run.
pub(super) fn print_largest(guests: usize) -> Result<(), Error> {
    let mut largest: BTreeMap<String, u64> = BTreeMap::new();
    for process in fs::read_dir("/proc")? {
        let path = process?.path();
        // It may end meanwhile.
        let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
        // The kernel keeps 15 characters of a name.
        let Some(name) = PROGRAMS.into_iter().find(|program| program.starts_with(name.trim_end())) else {
            continue;
        };
        let Ok(rollup) = fs::read_to_string(path.join("smaps_rollup")) else { continue };
        let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kib = pss.and_then(|pss| pss.split_whitespace().next()?.parse().ok()).unwrap_or_default();
        let entry = largest.entry(name.to_owned()).or_default();
        *entry = (*entry).max(kib);
    }
    let all: Vec<String> = largest.iter().map(|(name, kib)| format!("{name} {kib} KiB")).collect();
    println!("{guests}: memory with so many guests: {}", all.join(", "));
    Ok(())
}
