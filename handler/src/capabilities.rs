//! What the node agent of a cluster may do, of all that its Pod's `privileged` gives it.

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// The capabilities that it and the programs that it starts need, with their names and what for. docs/cluster.md has this table.
const NEEDED: [(CapabilitySet, &str, &str); 14] = [
    (
        CapabilitySet::CHOWN,
        "CHOWN",
        "disks and devices become those of the user of a launcher or of what reads an image",
    ),
    (
        CapabilitySet::DAC_OVERRIDE,
        "DAC_OVERRIDE",
        "the kubelet's directories, sockets of launchers, files that guests own",
    ),
    (CapabilitySet::FOWNER, "FOWNER", "modes of files that guests and launchers own"),
    (CapabilitySet::KILL, "KILL", "to end launchers and what they leave"),
    (
        CapabilitySet::NET_ADMIN,
        "NET_ADMIN",
        "taps, bridges, addresses, routes and nftables in the network namespaces of launcher Pods",
    ),
    (
        CapabilitySet::NET_BIND_SERVICE,
        "NET_BIND_SERVICE",
        "the sockets of the DHCP servers, which it passes to launchers, and ports of passt",
    ),
    (CapabilitySet::NET_RAW, "NET_RAW", "the sockets of router advertisements"),
    (CapabilitySet::SETGID, "SETGID", "what reads images, and passt, are of another group"),
    (CapabilitySet::SETPCAP, "SETPCAP", "what reads images gives up its bounding set"),
    (CapabilitySet::SETUID, "SETUID", "what reads images, and passt, are another user"),
    (
        CapabilitySet::SYS_ADMIN,
        "SYS_ADMIN",
        "to enter the network namespaces of launcher Pods, and to give what reads images namespaces and mounts of its own",
    ),
    (CapabilitySet::SYS_CHROOT, "SYS_CHROOT", "what reads images is in a root directory of its own"),
    (
        CapabilitySet::SYS_PTRACE,
        "SYS_PTRACE",
        "`/proc/PID/root` and `/proc/PID/ns/net` of launchers, which are another user's: disks of claims and images are opened there",
    ),
    (
        CapabilitySet::SYS_RESOURCE,
        "SYS_RESOURCE",
        "more locked memory for launchers with host devices, real time for vCPUs, and open files of passt",
    ),
];

/// Gives up all others, before the process has further threads.
///
/// # Errors
/// Errors of the system calls.
pub fn keep_needed() -> Result<(), Errno> {
    let needed = NEEDED.iter().fold(CapabilitySet::empty(), |all, (capability, ..)| all | *capability);
    vireo_privileges::keep_capabilities(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the test write the table.
    const WRITE: &str = "VIREO_WRITE_PAGES";
    const MARKS: [&str; 2] = ["<!-- capabilities: begin -->\n", "<!-- capabilities: end -->"];

    #[test]
    fn the_documentation_has_the_capabilities() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cluster.md");
        let written = std::fs::read_to_string(path).unwrap();
        let (before, rest) = written.split_once(MARKS[0]).unwrap();
        let (_, after) = rest.split_once(MARKS[1]).unwrap();
        let rows = NEEDED.map(|(_, name, what_for)| format!("| `{name}` | {what_for} |\n")).concat();
        let table = format!("| Capability | What for |\n| --- | --- |\n{rows}");
        let expected = [before, MARKS[0], &table, MARKS[1], after].concat();
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(path, &expected).unwrap();
        } else {
            assert!(
                written == expected,
                "docs/cluster.md has other capabilities: {WRITE}=1 makes this test write them"
            );
        }
    }
}
