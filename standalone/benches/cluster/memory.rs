//! Memory of the components' Pods on this node, as their cgroups count it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use vireo_tests::memory::{Ram, Resident};

use super::Error;

const PROGRAMS: [&str; 5] = ["virt-api", "virt-controller", "virt-handler", "virt-operator", "virt-launcher"];
const MIB: f64 = 1024.0 * 1024.0;

/// The files of a hierarchy of cgroups.
struct Hierarchy {
    root: &'static str,
    /// What a process is in, in `/proc/PID/cgroup`, follows this.
    prefix: &'static str,
    usage: &'static str,
    inactive: &'static str,
}

/// Version 1 has a hierarchy for memory alone; version 2 has one for all.
const HIERARCHIES: [Hierarchy; 2] = [
    Hierarchy {
        root: "/sys/fs/cgroup/memory",
        prefix: "memory:",
        usage: "memory.usage_in_bytes",
        inactive: "total_inactive_file ",
    },
    Hierarchy { root: "/sys/fs/cgroup", prefix: "0::", usage: "memory.current", inactive: "inactive_file " },
];

/// A Pod's bytes.
#[derive(Clone, Copy)]
struct Usage {
    /// All that its cgroup is charged for.
    total: u64,
    /// Of it, pages of files that the kernel takes first when memory is short. The kubelet's working set is without them.
    inactive: u64,
    /// Of it, the guest's memory.
    guest: u64,
}

/// What is known of a Pod's cgroup by the processes in it.
#[derive(Default)]
struct Members {
    program: Option<&'static str>,
    guest: u64,
}

/// Prints the memory of the Pods of each program, that of launchers less the memory of their guests, while so many guests
/// of `guest_memory` bytes run.
pub(super) fn print(guests: usize, guest_memory: u64) -> Result<(), Error> {
    let hierarchy = HIERARCHIES
        .into_iter()
        .find(|hierarchy| Path::new(hierarchy.root).join("kubepods").join(hierarchy.usage).exists())
        .ok_or("no hierarchy of cgroups has Pods that are counted: this runs on the node, with the driver cgroupfs")?;
    for (program, usages) in by_program(&hierarchy, guest_memory)? {
        let beside = spread(usages.iter().map(|usage| usage.total - usage.guest));
        let working_set = spread(usages.iter().map(|usage| usage.total - usage.guest - usage.inactive));
        let pods = usages.len();
        println!("{guests}: memory of {program} in {pods} Pods: {beside}; working set {working_set}");
    }
    Ok(())
}

fn by_program(hierarchy: &Hierarchy, guest_memory: u64) -> Result<BTreeMap<&'static str, Vec<Usage>>, Error> {
    let mut pods: BTreeMap<PathBuf, Members> = BTreeMap::new();
    for process in fs::read_dir("/proc")? {
        let path = process?.path();
        let pid = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let Some(pid) = pid else { continue };
        // It may end meanwhile.
        let Ok(cgroups) = fs::read_to_string(path.join("cgroup")) else { continue };
        let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
        let Some(pod) = pod_cgroup(hierarchy, &cgroups) else { continue };
        let members = pods.entry(pod).or_default();
        // The kernel keeps 15 characters of a name.
        if let Some(program) = PROGRAMS.into_iter().find(|program| program.starts_with(name.trim_end())) {
            members.program = Some(program);
        }
        let resident = Resident::of(pid, Ram::Anonymous { bytes: guest_memory });
        members.guest += resident.ok().and_then(|resident| resident.ram).unwrap_or_default() * 1024;
    }
    let mut programs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (pod, members) in pods {
        let Some(program) = members.program else { continue };
        if program == "virt-launcher" && members.guest == 0 {
            return Err(format!("no process in {} has a guest of {guest_memory} bytes", pod.display()).into());
        }
        programs.entry(program).or_default().push(usage(hierarchy, &pod, members.guest)?);
    }
    Ok(programs)
}

/// The cgroup of the Pod that a process belongs to.
fn pod_cgroup(hierarchy: &Hierarchy, cgroups: &str) -> Option<PathBuf> {
    let path = cgroups
        .lines()
        .filter_map(|line| line.split_once(hierarchy.prefix))
        .find_map(|(_, path)| path.strip_prefix("/kubepods/"))?;
    // Guaranteed Pods have no cgroup of their class above.
    let until = path.split('/').position(|part| part.starts_with("pod"))?;
    let pod: PathBuf = path.split('/').take(until + 1).collect();
    Some(Path::new(hierarchy.root).join("kubepods").join(pod))
}

fn usage(hierarchy: &Hierarchy, pod: &Path, guest: u64) -> Result<Usage, Error> {
    let read = |name| {
        let path = pod.join(name);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let total: u64 = read(hierarchy.usage)?.trim().parse()?;
    let stat = read("memory.stat")?;
    let inactive = stat.lines().find_map(|line| line.strip_prefix(hierarchy.inactive));
    let inactive =
        inactive.ok_or_else(|| format!("{}: memory.stat has no {}", pod.display(), hierarchy.inactive))?;
    // Memory is charged in batches: what is read at different times need not add up.
    let guest = guest.min(total);
    Ok(Usage { total, inactive: inactive.trim().parse::<u64>()?.min(total - guest), guest })
}

/// Smallest, median and largest.
fn spread(all: impl Iterator<Item = u64>) -> String {
    let mut all: Vec<u64> = all.collect();
    all.sort_unstable();
    let mib = |at: usize| f64::from(u32::try_from(all[at] / 1024).unwrap_or(u32::MAX)) * 1024.0 / MIB;
    let [smallest, median, largest] = [0, (all.len() - 1) / 2, all.len() - 1].map(mib);
    format!("median {median:.1} MiB, {smallest:.1} to {largest:.1} MiB")
}
