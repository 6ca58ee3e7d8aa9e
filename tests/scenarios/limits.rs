//! A launcher takes of its node what its VMI may have, and no more.

use std::time::Duration;

use vireo_tests::guest::{Guest, Monitor};
use vireo_tests::{Host, HostError, Status, scenario};

use crate::scenarios::node::{Node, host_for_a_node, manifest};

const BOOT: Duration = Duration::from_secs(120);
/// In MiB: the guest's 256 as `resources.limits` has them, and what a launcher may take beside them and its hypervisor for a
/// vCPU, two disks, a NIC, and page tables.
const MEMORY: u64 = 256 + 2 + 3 + 1;
/// The launcher with the native monitor.
const NATIVE: u64 = 32;
/// The launcher and QEMU.
const QEMU: u64 = 160;
/// What is added where QEMU translates the guest's code.
const TRANSLATED: u64 = 1024;

#[test]
fn nested_limits_are_real_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "limits are real",
        || Ok(host_for_a_node(scratch.path())?.memory_mib(2048)),
        |host, monitor| {
            let mount = "mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup";
            host.shell(mount).run()?.ok();
            limits_are_real(host, if monitor == Monitor::Vmm { "native" } else { "qemu" })
        },
    );
}

#[test]
fn limits_are_real_with_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_for_a_node(scratch.path())?.here()?;
    if host.shell("test $(id -u) = 0 && test -d /sys/fs/cgroup").run()?.status != Status::Code(0) {
        eprintln!("SKIPPED: this test may not make cgroups");
        return Ok(());
    }
    limits_are_real(&host, "qemu")
}

/// The only file of a launcher's cgroups with one of these names, for version 2 and version 1.
fn file(host: &Host, uid: &str, names: [&str; 2]) -> Result<String, HostError> {
    let find = format!(
        "find /sys/fs/cgroup -path '*/vireo/{uid}/*' '(' -name {} -o -name {} ')'",
        names[0], names[1]
    );
    let found = host.shell(&find).run()?.ok();
    assert_eq!(found.lines().count(), 1, "{names:?}: {found}");
    Ok(found.trim().to_owned())
}

fn read(host: &Host, path: &str) -> Result<String, HostError> {
    Ok(host.command("cat").arg(path).run()?.ok().trim().to_owned())
}

fn limits_are_real(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let node = Node::start(host, hypervisor)?;
    let limited = "guest: 256Mi\n    resources:\n      limits: {memory: 256Mi, cpu: 1}\n";
    node.apply("one.yaml", &manifest(host, "one").replace("guest: 256Mi\n", limited))?;
    let vmi = node.wait_for_phase("one", "Running", BOOT)?;
    assert!(!vmi.to_string().contains("limits-not-in-force"), "{vmi:#}\n{}", node.log());
    let uid = vmi["metadata"]["uid"].as_str().expect("a UID");

    let memory = file(host, uid, ["memory.max", "memory.limit_in_bytes"])?;
    let kvm = host.shell("grep -Eq 'vmx|svm' /proc/cpuinfo && : <>/dev/kvm").run()?.status;
    let beside = match (hypervisor, kvm == Status::Code(0)) {
        ("native", _) => NATIVE,
        (_, true) => QEMU,
        (_, false) => QEMU + TRANSLATED,
    };
    let limit = MEMORY + beside;
    assert_eq!(read(host, &memory)?, (limit << 20).to_string());
    assert_eq!(read(host, &file(host, uid, ["pids.max", "none"])?)?, "4096");
    let cpu = read(host, &file(host, uid, ["cpu.max", "cpu.cfs_quota_us"])?)?;
    assert!(["100000", "100000 100000"].contains(&cpu.as_str()), "{cpu}");
    let procs =
        memory.rsplit_once('/').map(|(cgroup, _)| format!("{cgroup}/cgroup.procs")).unwrap_or_default();
    // The kernel's own threads for KVM and vhost are there, too: they have no arguments.
    let processes =
        format!("for pid in $(cat {procs}); do grep -q . /proc/$pid/cmdline && echo $pid; done; true");
    let processes = host.shell(&processes).run()?.ok();
    assert_eq!(processes.lines().count(), if hypervisor == "qemu" { 2 } else { 1 }, "{processes}");
    for pid in processes.lines() {
        let score: i32 = read(host, &format!("/proc/{pid}/oom_score_adj"))?.parse().expect("a number");
        assert!((3..1000).contains(&score), "{score}");
    }

    // The guest has booted, and is about to touch memory that it was given and has not used.
    let mut guest = Guest::over(node.attach("one")?);
    guest.ready()?;
    let used = file(host, uid, ["memory.current", "memory.usage_in_bytes"])?;
    let used: u64 = read(host, &used)?.parse().expect("a number");
    eprintln!("{hypervisor}: the launcher of a guest of 256 MiB takes {} MiB", used >> 20);
    host.shell(&format!("echo {} >{memory}", used + (8 << 20))).run()?.ok();
    guest.send("dd if=/dev/zero of=/dev/null bs=150M count=1")?;
    let ended = node.wait_for_phase("one", "Failed", BOOT)?;
    assert_eq!(ended["status"]["reason"], "OOMKilled", "{ended:#}");
    let message = format!("the memory limit of its launcher, {limit} MiB, was reached");
    assert!(ended.to_string().contains(&message), "{ended:#}");
    node.delete("one.yaml")?;
    node.wait_until_gone("one")?;
    let left = host.shell(&format!("find /sys/fs/cgroup -name {uid}")).run()?.ok();
    assert_eq!(left, "");
    Ok(())
}
