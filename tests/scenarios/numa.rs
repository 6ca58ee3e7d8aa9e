//! Guests with the NUMA nodes of their host, and vCPUs that are scheduled in real time.

use std::path::Path;
use std::time::Duration;

use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostBuilder, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// One guest starts twice and another one once, and their host has two CPUs to be emulated.
const DEADLINE: Duration = Duration::from_secs(600);
/// Huge pages of half of the guest.
const HALF: u32 = 64;

#[test]
fn nested_guests_have_the_nodes_of_their_host_on_qemu() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = || host_with_nodes(scratch.path());
    scenario::run("NUMA nodes on QEMU", host, |host, _| has_nodes_of_its_host(host, "qemu"));
}

#[test]
fn nested_guests_have_the_nodes_of_their_host_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = || host_with_nodes(scratch.path());
    scenario::run("NUMA nodes under vireo", host, |host, monitor| {
        has_nodes_of_its_host(host, monitor.hypervisor())
    });
}

/// Each of its two CPUs is of a node of its own.
fn host_with_nodes(scratch: &Path) -> Result<HostBuilder, HostError> {
    Ok(host_with_vireo(scratch)?.cpus(2).numa_nodes().deadline(DEADLINE))
}

/// A guest with these settings of its CPUs, and its memory in huge pages.
fn vmi(host: &Host, name: &str, cpu: &str) -> String {
    let cpu = format!(
        "    cpu:\n      dedicatedCpuPlacement: true\n      numa: {{guestMappingPassthrough: {{}}}}\n{cpu}"
    );
    manifest(host, name)
        .replace("    cpu:\n      cores: 1\n", &cpu)
        .replace("      guest: 256Mi\n", "      guest: 256Mi\n      hugepages: {pageSize: 2Mi}\n")
}

/// Two vCPUs, and so both nodes.
const BOTH_NODES: &str = "      cores: 2\n";
/// One vCPU in real time; the hypervisor's other threads have the second CPU.
const REAL_TIME: &str = "      cores: 1\n      isolateEmulatorThread: true\n      realtime: {}\n";

/// Reserves huge pages of a node.
fn reserve(host: &Host, node: u32, pages: u32) -> Result<(), HostError> {
    let setting = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
    let line = format!("echo 1 >/proc/sys/vm/compact_memory; echo {pages} >{setting}; cat {setting}");
    assert_eq!(host.shell(&line).run()?.ok().trim(), pages.to_string());
    Ok(())
}

fn has_nodes_of_its_host(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    // As the label of nodes promises it, before `vireo` looks.
    host.shell("echo -1 >/proc/sys/kernel/sched_rt_runtime_us").run()?.ok();
    reserve(host, 0, 2 * HALF)?;
    reserve(host, 1, HALF - 1)?;
    let standalone = Standalone::start_on(host, hypervisor)?;
    standalone.kubectl("apply -f -", Some(&vmi(host, "more", BOTH_NODES)))?.ok();
    standalone.kubectl("wait --for=jsonpath='{.status.phase}'=Failed --timeout=60s vmi/more", None)?.ok();
    let status = standalone.json("get vmi more")?["status"].to_string();
    let expected = "spec.domain.memory.hugepages.pageSize requests 64 huge pages of 2Mi of NUMA node 1, where 63 are free";
    assert!(status.contains(expected), "{status}");
    standalone.kubectl("delete vmi more --timeout=60s", None)?.ok();
    reserve(host, 1, HALF)?;

    standalone.kubectl("apply -f -", Some(&vmi(host, "nodes", BOTH_NODES)))?.ok();
    let mut guest = standalone.console("nodes")?;
    guest.ready()?;
    has_nodes(&mut guest)?;
    let uid = standalone.uid("nodes")?;
    is_bound(&standalone, &uid)?;
    // A guest that starts again has its memory where it was.
    standalone.virtctl("reset nodes")?.ok();
    guest.ready()?;
    has_nodes(&mut guest)?;
    is_bound(&standalone, &uid)?;
    standalone.kubectl("delete vmi nodes --grace-period=0 --timeout=90s", None)?.ok();
    let free =
        standalone.shell("cat /sys/devices/system/node/node*/hugepages/hugepages-2048kB/free_hugepages")?;
    assert_eq!(free.split_whitespace().collect::<Vec<_>>(), ["128", "64"], "they are the host's again");

    standalone.kubectl("apply -f -", Some(&vmi(host, "realtime", REAL_TIME)))?.ok();
    let mut guest = standalone.console("realtime")?;
    guest.ready()?;
    is_scheduled(&standalone, &standalone.uid("realtime")?)
}

/// What the guest's kernel makes of the tables.
fn has_nodes(guest: &mut Guest<'_>) -> Result<(), HostError> {
    let line = "cd /sys/devices/system/node; cat online; for node in 0 1; do cat node$node/cpulist node$node/distance; \
                sed -n 's/.*MemTotal: *//p' node$node/meminfo; done; cd /";
    let reported = guest.run(line, SOON)?;
    let reported: Vec<&str> = reported.lines().map(str::trim).collect();
    let [online, first_cpus, first_distances, first_memory, second_cpus, second_distances, second_memory] =
        reported[..]
    else {
        panic!("{reported:?}");
    };
    assert_eq!((online, first_cpus, second_cpus), ("0-1", "0", "1"));
    assert_eq!((first_distances, second_distances), ("10 21", "21 10"), "those of the host");
    for memory in [first_memory, second_memory] {
        let kib: u32 = memory.trim_end_matches(" kB").parse().expect("a number of KiB");
        // The kernel has taken some of either.
        assert!((32 << 10..=128 << 10).contains(&kib), "{reported:?}");
    }
    Ok(())
}

/// A line for each process of the hypervisor of a VM, `$process`.
fn of_hypervisor(standalone: &Standalone<'_>, uid: &str, then: &str) -> Result<String, HostError> {
    standalone.shell(&format!(
        "for process in /proc/[0-9]*; do \
         grep -qE '^(virt-launcher|qemu-system-x86)' $process/comm 2>/dev/null || continue; \
         grep -qF {uid} $process/cgroup 2>/dev/null || continue; {then} || true; done"
    ))
}

/// Half of the guest's memory is of each node.
fn is_bound(standalone: &Standalone<'_>, uid: &str) -> Result<(), HostError> {
    let maps = of_hypervisor(standalone, uid, "grep -h 'bind:.* huge ' $process/numa_maps")?;
    let pages = |node: &str, from: &str| -> u32 {
        let own = maps.lines().filter(|line| line.contains(&format!(" bind:{node} ")));
        let counts = own
            .flat_map(str::split_whitespace)
            .filter_map(|part| part.strip_prefix(from)?.parse::<u32>().ok());
        counts.sum()
    };
    let counts = [pages("0", "N0="), pages("0", "N1="), pages("1", "N0="), pages("1", "N1=")];
    assert_eq!(counts, [HALF, 0, 0, HALF], "{maps}");
    Ok(())
}

/// The vCPU is scheduled by `SCHED_FIFO` with the priority 1, no other thread is, and memory is locked.
fn is_scheduled(standalone: &Standalone<'_>, uid: &str) -> Result<(), HostError> {
    // The fields 40 and 41 of proc(5), after the name.
    let threads = "for task in $process/task/*; do \
                   echo \"$(sed 's/ /_/g' $task/comm) $(sed 's/.*) //' $task/stat | cut -d ' ' -f 38,39)\"; done";
    let threads = of_hypervisor(standalone, uid, threads)?;
    let has_priority = |line: &&str| line.split(' ').nth(1) != Some("0");
    let real_time: Vec<&str> = threads.lines().filter(has_priority).collect();
    assert!(matches!(real_time[..], ["CPU_0/KVM 1 1" | "vcpu0 1 1"]), "{threads}");
    let locked = of_hypervisor(standalone, uid, "sed -n 's/^VmLck:[[:space:]]*//p' $process/status")?;
    let kib = locked.lines().filter_map(|line| line.trim_end_matches(" kB").parse::<u64>().ok()).max();
    assert!(kib > Some(1024), "{locked}");
    Ok(())
}
