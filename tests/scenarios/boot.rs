//! Debian's kernels as packaged, on machines small and large.

use vireo_tests::guest::{Flavour, Guest, Machine, Monitor};
use vireo_tests::{Host, HostError, scenario};

use crate::{SOON, host_for_guests, power_off};

/// What `dmesg` may say at level "warning" and above on a sound machine, under QEMU as under ours.
const EXPECTED: &[&str] = &[
    // No firmware that knows better.
    "RETBleed",
    "Spectre",
    "spectre",
    "MDS CPU bug",
    "TAA CPU bug",
    "MMIO Stale Data",
    "Speculative Return Stack Overflow",
    "SRSO",
    "TSA",
    "VMSCAPE",
    // The emulated processor of the host.
    "AMD64 EDAC",
    "unchecked MSR access",
    "TSC",
    "tsc",
    "clocksource",
    "kvm: ",
    "APIC calibration",
    "Kernel lockdown",
    "loglevel",
    "legacy",
    "ENERGY_PERF_BIAS",
    "cpu feature",
    "PMU",
    "perf",
    "core perfctr",
    "module verification",
    "taints kernel",
    "acpi PNP0A08:00: fail to add MMCONFIG",
    "acpi PNP0A03:00: fail to add MMCONFIG",
    "extended PCI configuration space",
];

fn check(guest: &mut Guest<'_>, machine: &Machine) -> Result<(), HostError> {
    let cpus = guest.run("grep -c ^processor /proc/cpuinfo", SOON)?;
    assert_eq!(cpus.trim(), machine.cpus.to_string(), "processors");

    let total = guest.run("awk '/^MemTotal/ { print $2 }' /proc/meminfo", SOON)?;
    let total: u64 = total.trim().parse().expect("a number of KiB");
    let whole = u64::from(machine.memory_mib) << 10;
    // The kernel keeps its own image, page structures and the first megabyte.
    let least = whole - whole / 20 - (60 << 10);
    assert!((least..=whole).contains(&total), "{total} KiB of {whole}");

    let complaints = guest.run("dmesg -r | sed -n 's/^<[0-4]>//p'", SOON)?;
    let unexpected: Vec<_> =
        complaints.lines().filter(|line| !EXPECTED.iter().any(|known| line.contains(known))).collect();
    assert!(unexpected.is_empty(), "the guest's kernel complains:\n{}", unexpected.join("\n"));
    Ok(())
}

fn boots(name: &str, host_mib: u32, machine: &Machine) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let load = |host: &Host, monitor: Monitor| {
        let mut guest = machine.start(host, monitor)?;
        let ready = guest.ready()?;
        eprintln!("{name}: {monitor}: guest up, boot id {}", ready.boot_id);
        check(&mut guest, machine)?;
        power_off(guest)
    };
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(host_mib)), load);
}

#[test]
fn nested_cloud_kernel_one_cpu_128_mib() {
    let machine = Machine { memory_mib: 128, ..Machine::default() };
    boots("cloud kernel, 1 CPU, 128 MiB", 1024, &machine);
}

#[test]
fn nested_cloud_kernel_four_cpus_6_gib() {
    let machine = Machine { cpus: 4, memory_mib: 6 << 10, ..Machine::default() };
    boots("cloud kernel, 4 CPUs, 6 GiB", 8 << 10, &machine);
}

#[test]
fn nested_full_kernel_one_cpu_6_gib() {
    let machine = Machine { kernel: Flavour::Full, memory_mib: 6 << 10, ..Machine::default() };
    boots("full kernel, 1 CPU, 6 GiB", 8 << 10, &machine);
}

#[test]
fn nested_full_kernel_four_cpus_128_mib() {
    let machine = Machine { kernel: Flavour::Full, cpus: 4, memory_mib: 128, ..Machine::default() };
    boots("full kernel, 4 CPUs, 128 MiB", 1024, &machine);
}
