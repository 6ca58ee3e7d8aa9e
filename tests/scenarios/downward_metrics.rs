//! Metrics of the host and of the VM, which the guest reads: from a disk, and on QEMU at a port.

use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

#[test]
fn a_guest_reads_metrics_of_its_host_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    are_read(&host, "qemu")
}

#[test]
fn nested_a_guest_reads_metrics_of_its_host_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "metrics for a guest under vireo",
        || host_with_vireo(scratch.path()),
        |host, monitor| are_read(host, monitor.hypervisor()),
    );
}

fn are_read(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, hypervisor)?;
    let mut vmi = manifest(host, "one")
        .replace("      interfaces:\n", "      - {name: metrics, disk: {bus: virtio}}\n      interfaces:\n")
        + "  - {name: metrics, downwardMetrics: {}}\n";
    if hypervisor == "qemu" {
        vmi = vmi.replace("      rng: {}\n", "      rng: {}\n      downwardMetrics: {}\n");
    }
    standalone.kubectl("apply -f -", Some(&vmi))?.ok();
    standalone.becomes_ready("vmi/one")?;
    standalone.runs_on("one", hypervisor)?;
    let mut guest = Guest::over(standalone.console_process("one")?);
    guest.ready()?;
    let size = guest.run("cat /sys/block/vdb/size /sys/block/vdb/ro", SOON)?;
    assert_eq!(size.split_whitespace().collect::<Vec<_>>(), ["512", "1"]);
    let node = standalone.json("get vmi one")?["status"]["nodeName"].as_str().unwrap_or_default().to_owned();
    let name = format!("<value><![CDATA[{node}]]></value>");
    // Past what the guest has cached.
    let read = "echo 1 >/proc/sys/vm/drop_caches; head -c 8192 /dev/vdb | tail -c +17 | tr -d '\\0'";
    let mut first = String::new();
    eventually("the disk has metrics", SOON, || {
        first = guest.run(read, SOON)?;
        Ok(first.contains(&name))
    })
    .inspect_err(|_| eprintln!("the disk has {first}"))?;
    for metric in ["HostName", "FreePhysicalMemory", "ResourceMemoryLimit", "NumberOfPhysicalCPUs"] {
        assert!(first.contains(&format!("<name>{metric}</name>")), "{metric} is not in {first}");
    }
    let time = time_of(&first);
    assert!(time.is_some(), "no time in {first}");
    eventually("the metrics follow", SOON, || {
        let now = time_of(&guest.run(read, SOON)?);
        Ok(now.is_some() && now != time)
    })?;
    if hypervisor == "qemu" {
        at_the_port(&mut guest, &name)?;
    }
    standalone.kubectl("delete vmi one --timeout=90s", None)?.ok();
    Ok(())
}

/// The value of the metric `Time`.
fn time_of(document: &str) -> Option<String> {
    let (_, after) = document.split_once("<name>Time</name>")?;
    Some(after.split_once("CDATA[")?.1.split_once(']')?.0.to_owned())
}

/// The document ends with an empty line.
fn at_the_port(guest: &mut Guest<'_>, name: &str) -> Result<(), HostError> {
    let find = "port=$(grep -lx org.github.vhostmd.1 /sys/class/virtio-ports/*/name | cut -d/ -f5)";
    guest.run("modprobe virtio_console", SOON)?;
    let ask = |request: &str| {
        format!(
            "{find}; test -n \"$port\" && exec 3<>/dev/$port && printf '{request}\\n\\n' >&3 && while read -r line <&3 && \
             [ -n \"$line\" ]; do echo \"$line\"; done; exec 3>&-"
        )
    };
    let document = guest.run(&ask("GET /metrics/XML"), SOON)?;
    assert!(document.contains(name) && document.contains("</metrics>"), "{document}");
    let invalid = guest.run(&ask("GET /metrics/JSON"), SOON)?;
    assert_eq!(invalid.trim(), "INVALID REQUEST");
    Ok(())
}
