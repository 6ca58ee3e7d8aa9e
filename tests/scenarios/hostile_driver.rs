//! A guest whose driver is hostile to every device ends its own launcher at most: its neighbour runs on, and so does the node.
//!
//! `VIREO_HOSTILE_SECONDS` is how long it does that, `VIREO_HOSTILE_SEED` its first seed. Each launcher gets a seed of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostBuilder, HostError, kernel, oci, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// Of all launchers together.
const SECONDS: u64 = 40;
/// Of one.
const ROUND: u64 = 15;
/// A guest that is not over by then hangs: it is deleted.
const HANG: Duration = Duration::from_secs(60);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn host(scratch: &Path, seconds: u64) -> Result<HostBuilder, HostError> {
    let hostile = kernel::hostile(scratch).map_err(HostError::Start)?;
    let layout = scratch.join("hostile-oci");
    oci::write_layout(&layout, &[("boot/vmlinuz", hostile.as_path())]).map_err(HostError::Start)?;
    let builder = host_with_vireo(scratch)?.tree(&layout, "hostile-oci")?;
    Ok(builder.memory_mib(2560).deadline(Duration::from_secs(2 * seconds + 400)))
}

/// A VM with every device that the native monitor has. What resets it ends it: the same seed would do the same again.
fn hostile(host: &Host, seed: u64) -> String {
    let image = host.input("hostile-oci");
    let disks = [
        ("one", "disk", "virtio"),
        ("two", "disk", "sata"),
        ("three", "cdrom", "sata"),
        ("four", "disk", "scsi"),
    ];
    let devices: String = disks
        .iter()
        .map(|(name, kind, bus)| format!("      - {{name: {name}, {kind}: {{bus: {bus}}}}}\n"))
        .collect();
    let volumes: String = disks
        .iter()
        .map(|(name, ..)| format!("  - {{name: {name}, emptyDisk: {{capacity: 16Mi}}}}\n"))
        .collect();
    let video = if seed.is_multiple_of(2) { "virtio" } else { "bochs" };
    format!(
        r#"apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: hostile
spec:
  terminationGracePeriodSeconds: 0
  domain:
    rebootPolicy: Terminate
    cpu: {{cores: 2}}
    memory: {{guest: 64Mi}}
    firmware:
      kernelBoot:
        kernelArgs: seed={seed} seconds={ROUND}
        container: {{image: "oci:{image}", kernelPath: /boot/vmlinuz}}
    devices:
      rng: {{}}
      networkInterfaceMultiqueue: true
      video: {{type: {video}}}
      inputs:
      - {{name: tablet, type: tablet, bus: virtio}}
      disks:
{devices}      interfaces:
      - {{name: default, masquerade: {{}}}}
  networks:
  - {{name: default, pod: {{}}}}
  volumes:
{volumes}"#
    )
}

#[test]
fn nested_a_hostile_driver_ends_its_own_launcher_at_most() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let seconds = number("VIREO_HOSTILE_SECONDS", SECONDS);
    scenario::run(
        "a hostile driver",
        || host(scratch.path(), seconds),
        |host, monitor| all_rounds(host, monitor.hypervisor(), seconds),
    );
}

fn all_rounds(host: &Host, hypervisor: &'static str, seconds: u64) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, hypervisor)?;
    standalone.kubectl("apply -f -", Some(&manifest(host, "one")))?.ok();
    let mut neighbour = standalone.console("one")?;
    let boot = neighbour.ready()?.boot_id;
    let before = standalone.json("get vmi one")?["metadata"]["uid"].clone();

    let end = Instant::now() + Duration::from_secs(seconds);
    let mut outcomes = Vec::new();
    for seed in number("VIREO_HOSTILE_SEED", 1).. {
        outcomes.push((seed, round(&standalone, hypervisor, seed)?));
        // The neighbour computes, and reads its disk.
        neighbour.run("dd if=/dev/vda of=/dev/null bs=64k count=4 iflag=direct 2>/dev/null", SOON)?;
        if Instant::now() >= end {
            break;
        }
    }
    eprintln!("hostile driver: {outcomes:#?}");
    assert!(
        outcomes.iter().any(|(_, outcome)| outcome.contains("HOSTILE DONE")),
        "none came to its end: {outcomes:#?}"
    );
    let same = neighbour.run("cat /proc/sys/kernel/random/boot_id", SOON)?;
    assert_eq!(same.trim(), boot, "the neighbour has started again");
    assert_eq!(standalone.json("get vmi one")?["metadata"]["uid"], before);
    assert_eq!(standalone.launchers()?, "1", "what the hostile guests had is gone");
    assert!(!standalone.log().contains("panicked"), "{}", standalone.log());
    Ok(())
}

/// One launcher, to its end. How it ended.
fn round(standalone: &Standalone<'_>, hypervisor: &str, seed: u64) -> Result<String, HostError> {
    standalone.kubectl("apply -f -", Some(&hostile(standalone.host(), seed)))?.ok();
    let mut phase = String::new();
    let over = eventually("the hostile guest is over", HANG, || {
        phase = standalone.kubectl("get vmi hostile -o jsonpath={.status.phase}", None)?.stdout;
        Ok(phase == "Succeeded" || phase == "Failed")
    });
    match over {
        // It hangs; its launcher has to end all the same.
        Ok(()) | Err(HostError::Deadline { .. }) => {}
        Err(other) => return Err(other),
    }
    let vmi = standalone.json("get vmi hostile")?;
    standalone.runs_on("hostile", hypervisor)?;
    let directory = standalone.file("vmis");
    let uid = vmi["metadata"]["uid"].as_str().unwrap_or_default();
    let shown = format!("cat {directory}/{uid}/launcher.log; ls {directory}/{uid}");
    let log = standalone.on_node(&shown)?;
    for wrong in ["panicked", "does not allow", "stack overflow"] {
        assert!(!log.contains(wrong) && !vmi.to_string().contains(wrong), "seed {seed}: {vmi:#}\n{log}");
    }
    let printable =
        format!("tr -cd '\\12\\40-\\176' <{directory}/{uid}/console.log | grep -o 'HOSTILE .*' || true");
    let console = standalone.on_node(&printable)?;
    standalone.kubectl("delete vmi hostile --timeout=60s", None)?.ok();
    Ok(format!("{phase} {} {}", vmi["status"]["conditions"], console.trim()))
}
