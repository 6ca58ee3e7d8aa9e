//! What guests have with QEMU on KVM alone: Hyper-V enlightenments, a hidden KVM, and a KVM without its paravirtual features, which
//! they read with the instruction CPUID; and with it VSOCK.

use std::path::Path;

use serde_json::{Value, json};
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, programs, scenario};

use crate::SOON;
use crate::scenarios::node::{host_for_a_node_with, manifest};
use crate::scenarios::standalone::Standalone;

/// All that the nested host has: `evmcs` is Intel's, and its kernel is older than `direct` and `extended` of `tlbflush`.
fn enlightened() -> Value {
    json!({
        "kvm": {"hidden": true},
        "hyperv": {
            "frequencies": {},
            "ipi": {},
            "reenlightenment": {},
            "relaxed": {},
            "reset": {},
            "runtime": {},
            "spinlocks": {"spinlocks": 8191},
            "synic": {},
            "synictimer": {"direct": {}},
            "tlbflush": {},
            "vapic": {},
            "vendorid": {"vendorid": "Example Inc"},
            "vpindex": {},
        },
    })
}

#[test]
fn nested_guests_on_qemu_have_enlightenments_and_choose_what_kvm_shows() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "interfaces of KVM and Hyper-V on QEMU",
        || {
            let vsock = Path::new(env!("CARGO_BIN_EXE_vsock"));
            let vireo = programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
            let host = host_for_a_node_with(scratch.path(), &[vsock])?;
            Ok(host.file(vireo).file(vsock))
        },
        |host, _| are_shown(host),
    );
}

fn are_shown(host: &Host) -> Result<(), HostError> {
    host.shell("modprobe vhost_vsock").run()?.ok();
    for unused in ["evmcs: of Intel", "tlbflush.direct, tlbflush.extended: of newer kernels"] {
        eprintln!("enlightenments: not used: {unused}");
    }
    let standalone = Standalone::start_on(host, "qemu")?;
    let devices = "panicDevices: [{model: hyperv}]";
    let mut guest = starts(&standalone, "windows", &enlightened(), Some("hyperv: {}"), devices)?;
    assert_eq!(signature(&mut guest, 0x4000_0000)?, "Example Inc");
    assert!(!signature(&mut guest, 0x4000_0100)?.contains("KVM"), "KVM is hidden");
    // Leaves, registers and bits of the Hypervisor Top Level Functional Specification, "Feature and Interface Discovery".
    let [privileges, _, _, features] = cpuid(&mut guest, 0x4000_0003)?;
    for (name, bit) in [
        ("runtime", 0),
        ("the reference clock", 1),
        ("synic", 2),
        ("synictimer", 3),
        ("vapic", 4),
        ("vpindex", 6),
        ("reset", 7),
        ("the reference clock's page", 9),
        ("frequencies", 11),
        ("reenlightenment", 13),
    ] {
        assert_eq!(privileges >> bit & 1, 1, "{name}: {privileges:#x}");
    }
    for (name, bit) in [("frequencies", 8), ("the panic device", 10), ("direct synthetic timers", 19)] {
        assert_eq!(features >> bit & 1, 1, "{name}: {features:#x}");
    }
    let [hints, retries, ..] = cpuid(&mut guest, 0x4000_0004)?;
    for (name, bit) in [("tlbflush", 2), ("vapic", 3), ("relaxed", 5), ("ipi", 10)] {
        assert_eq!(hints >> bit & 1, 1, "{name}: {hints:#x}");
    }
    assert_eq!(retries, 8191, "spinlocks");
    standalone.kubectl("delete vmi windows --timeout=90s", None)?.ok();

    let features = json!({"pvspinlock": {"enabled": false}, "apic": {"endOfInterrupt": false}});
    let timer = Some("kvm: {present: false}");
    let mut guest = starts(&standalone, "plain", &features, timer, "autoattachVSOCK: true")?;
    assert_eq!(signature(&mut guest, 0x4000_0000)?, "KVMKVMKVM");
    // Bits of KVM's CPUID leaf, in the kernel's documentation: both clocks, the end of interrupts, spinlocks.
    let [shown, ..] = cpuid(&mut guest, 0x4000_0001)?;
    for (name, bit) in [("clocksource", 0), ("clocksource2", 3), ("pv_eoi", 6), ("pv_unhalt", 7)] {
        assert_eq!(shown >> bit & 1, 0, "{name}: {shown:#x}");
    }
    let mut server = host.command(&host.input("vsock")).args(["listen", "7000"]).spawn()?;
    server.wait_for("listening", SOON)?;
    guest.run("modprobe vmw_vsock_virtio_transport", SOON)?;
    assert_eq!(guest.run("vsock send 2 7000 hello", SOON)?.trim(), "HELLO");
    standalone.kubectl("delete vmi plain --timeout=90s", None)?.ok();

    let features = json!({"hypervPassthrough": {"enabled": true}});
    let mut guest = starts(&standalone, "all", &features, None, "rng: {}")?;
    // KVM's own name for its enlightenments.
    assert_eq!(signature(&mut guest, 0x4000_0000)?, "Linux KVM Hv");
    let [all, ..] = cpuid(&mut guest, 0x4000_0003)?;
    assert_eq!(all & privileges, privileges, "{all:#x}");
    standalone.kubectl("delete vmi all --timeout=90s", None)?.ok();
    Ok(())
}

/// A guest with these features and devices and, where it chooses one, this timer.
fn starts<'h>(
    standalone: &Standalone<'h>,
    name: &str,
    features: &Value,
    timer: Option<&str>,
    devices: &str,
) -> Result<Guest<'h>, HostError> {
    let timer = timer.map(|timer| format!("    clock: {{timer: {{{timer}}}}}\n")).unwrap_or_default();
    let domain = format!("{timer}    features: {features}\n    devices:\n      {devices}\n");
    let vmi =
        manifest(standalone.host(), name).replace("      rng: {}\n", "").replace("    devices:\n", &domain);
    standalone.apply_without_warnings(&vmi)?;
    standalone.becomes_ready(&format!("vmi/{name}"))?;
    standalone.runs_on(name, "qemu")?;
    let mut guest = standalone.console(name)?;
    guest.ready()?;
    guest.run("modprobe cpuid", SOON)?;
    Ok(guest)
}

/// EAX, EBX, ECX and EDX of a leaf.
fn cpuid(guest: &mut Guest<'_>, leaf: u32) -> Result<[u32; 4], HostError> {
    let line = format!(
        "dd if=/dev/cpu/0/cpuid bs=16 count=1 skip={leaf} iflag=skip_bytes 2>/dev/null | hexdump -v -e '4/4 \"%08x \"'"
    );
    let printed = guest.run(&line, SOON)?;
    let registers: Vec<u32> =
        printed.split_whitespace().filter_map(|word| u32::from_str_radix(word, 16).ok()).collect();
    Ok(registers.try_into().unwrap_or_else(|_| panic!("leaf {leaf:#x}: {printed}")))
}

/// The name in the registers of a leaf.
fn signature(guest: &mut Guest<'_>, leaf: u32) -> Result<String, HostError> {
    let [_, registers @ ..] = cpuid(guest, leaf)?;
    let bytes = registers.map(u32::to_le_bytes).concat();
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
}
