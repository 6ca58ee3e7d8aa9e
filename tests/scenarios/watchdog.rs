//! Guests that hang, and whose watchdog notices.

use std::time::{Duration, Instant};

use vireo_tests::eventually::eventually;
use vireo_tests::guest::{Guest, Monitor};
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo_and_the_full_kernel};

/// Of a guest that answers its watchdog every second.
const HEARTBEAT: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(90);
/// Four boots of guests, and what they wait for.
const HOST: Duration = Duration::from_secs(600);

#[test]
fn nested_a_watchdog_acts_where_a_guest_hangs() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "watchdogs under vireo",
        // Only that kernel has the driver.
        || {
            let host = host_with_vireo_and_the_full_kernel(scratch.path())?;
            Ok(host.deadline(HOST))
        },
        |host, monitor| match monitor {
            Monitor::Vmm => watched(host, "auto", "native"),
            Monitor::Qemu => watched(host, "qemu", "qemu"),
        },
    );
}

#[test]
fn a_watchdog_acts_where_a_guest_hangs_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo_and_the_full_kernel(scratch.path())?.deadline(HOST).here()?;
    watched(&host, "qemu", "qemu")
}

fn watched(host: &Host, chosen: &'static str, runs: &str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, chosen)?;
    let mut guest = start(&standalone, host, "reset")?;
    standalone.runs_on("reset", runs)?;
    resets(&standalone, &mut guest)?;
    standalone.kubectl("delete vmi reset --timeout=60s", None)?.ok();

    for (action, phase) in [("poweroff", "Failed"), ("shutdown", "Succeeded")] {
        let mut guest = start(&standalone, host, action)?;
        guest.run("modprobe i6300esb heartbeat=4; echo x >/dev/watchdog", SOON)?;
        let ends = format!("wait --for=jsonpath='{{.status.phase}}'={phase} --timeout=60s vmi/{action}");
        if phase == "Succeeded" {
            guest.monitor().wait_for("Power down", LONG)?;
        }
        standalone.kubectl(&ends, None)?.ok();
        let status = &standalone.json(&format!("get vmi {action}"))?["status"];
        let expired = status.to_string().contains("the guest's watchdog expired");
        assert_eq!(expired, phase == "Failed", "{status:#}");
        standalone.kubectl(&format!("delete vmi {action} --timeout=60s"), None)?.ok();
    }
    Ok(())
}

fn start<'h>(standalone: &Standalone<'h>, host: &Host, action: &str) -> Result<Guest<'h>, HostError> {
    let watchdog = format!("    devices:\n      watchdog: {{name: dog, i6300esb: {{action: {action}}}}}\n");
    // A kernel that panics hangs.
    let vmi = manifest(host, action).replace("panic=-1", "panic=0").replace("    devices:\n", &watchdog);
    standalone.kubectl("apply -f -", Some(&vmi))?.ok();
    standalone.becomes_ready(&format!("vmi/{action}"))?;
    let mut guest = standalone.console(action)?;
    guest.ready()?;
    Ok(guest)
}

fn resets(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    const BOOT: &str = "cat /proc/sys/kernel/random/boot_id";
    const WHY: &str = "cat /sys/class/watchdog/watchdog0/bootstatus";
    let load = format!("modprobe i6300esb heartbeat={}", HEARTBEAT.as_secs());
    guest.run(&load, SOON)?;
    assert_eq!(guest.run(WHY, SOON)?.trim(), "0");
    guest.run("(while :; do echo x; sleep 1; done >/dev/watchdog) &", SOON)?;
    let boot = guest.run(BOOT, SOON)?;
    standalone.virtctl("pause vmi reset")?.ok();
    let paused = Instant::now();
    eventually("the guest has been paused for longer than its watchdog waits", LONG, || {
        Ok(paused.elapsed() > HEARTBEAT * 3 / 2)
    })?;
    standalone.virtctl("unpause vmi reset")?.ok();
    assert_eq!(guest.run(BOOT, SOON)?, boot, "a watchdog stands still with its VM");

    guest.send("echo c >/proc/sysrq-trigger")?;
    assert_ne!(guest.ready()?.boot_id, boot.trim(), "it has started again");
    guest.run(&load, SOON)?;
    assert_eq!(guest.run(WHY, SOON)?.trim(), "32", "the driver learns why");
    Ok(())
}
