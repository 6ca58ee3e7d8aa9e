//! Guests whose kernel panics, and that report it.

use vireo_tests::guest::Monitor;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

#[test]
fn nested_a_panic_ends_a_guest_that_reports_it() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "pvpanic under vireo",
        || host_with_vireo(scratch.path()),
        |host, monitor| match monitor {
            Monitor::Vmm => panics(host, "auto", "native"),
            Monitor::Qemu => panics(host, "qemu", "qemu"),
        },
    );
}

#[test]
fn a_panic_ends_a_guest_that_reports_it_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    panics(&host_with_vireo(scratch.path())?.here()?, "qemu", "qemu")
}

fn panics(host: &Host, chosen: &'static str, runs: &str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, chosen)?;
    for (model, module) in [("pvpanic", "pvpanic_pci"), ("isa", "pvpanic_mmio")] {
        let devices = format!("    devices:\n      panicDevices: [{{model: {model}}}]\n");
        let vmi = manifest(host, model).replace("    devices:\n", &devices);
        standalone.kubectl("apply -f -", Some(&vmi))?.ok();
        standalone.becomes_ready(&format!("vmi/{model}"))?;
        standalone.runs_on(model, runs)?;
        let mut guest = standalone.console(model)?;
        guest.ready()?;
        guest.run(&format!("modprobe {module}"), SOON)?;
        let found = guest.run("cat /sys/bus/*/drivers/pvpanic*/*/events", SOON)?;
        assert_ne!(found.trim(), "0", "the driver has found it");
        // Without the device, a guest with `panic=-1` starts again.
        guest.send("echo c >/proc/sysrq-trigger")?;
        let failed = format!("wait --for=jsonpath='{{.status.phase}}'=Failed --timeout=60s vmi/{model}");
        standalone.kubectl(&failed, None)?.ok();
        let status = &standalone.json(&format!("get vmi {model}"))?["status"];
        assert!(status.to_string().contains("the guest's kernel panicked"), "{status:#}");
        standalone.kubectl(&format!("delete vmi {model} --timeout=60s"), None)?.ok();
    }
    Ok(())
}
