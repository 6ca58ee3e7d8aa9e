//! Guests that look at the clock, the board, the CPU and the disks that their manifests chose.

use vireo_tests::HostError;

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::probes::condition;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// Below `spec.domain`.
const DOMAIN: &str = "    clock:
      utc: {offsetSeconds: 86400}
      timer:
        hpet: {present: false}
        kvm: {present: false}
        rtc: {tickPolicy: catchup, track: guest}
    features:
      smm: {enabled: false}
      kvm: {hidden: true}
      pvspinlock: {enabled: false}
      apic: {endOfInterrupt: false}
    ioThreadsPolicy: supplementalPool
    ioThreads: {supplementalPoolThreadCount: 2}
";
/// A disk of its own.
const DISK: &str = "      - name: tuned
        dedicatedIOThread: true
        blockSize: {custom: {logical: 4096, physical: 8192, discardGranularity: 16384}}
        disk: {bus: virtio, pciAddress: '0000:00:0b.0'}
      - name: matched
        blockSize: {matchVolume: {}}
        disk: {bus: scsi}
";
const VOLUMES: &str = "  - {name: tuned, emptyDisk: {capacity: 64Mi}}
  - {name: matched, emptyDisk: {capacity: 64Mi}}
";

#[test]
fn a_guest_has_the_platform_that_its_manifest_chooses_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start(&host)?;
    let vmi = manifest(&host, "one")
        .replace("      cores: 1\n", "      cores: 2\n")
        .replace("    devices:\n", &format!("{DOMAIN}    devices:\n      sound: {{name: card, model: ich9}}\n      blockMultiQueue: true\n"))
        .replace("      interfaces:\n", &format!("{DISK}      interfaces:\n"))
        .replace(
            "        masquerade: {}\n",
            "        masquerade: {}\n        pciAddress: '0000:00:0c.0'\n        acpiIndex: 7\n",
        )
        + VOLUMES;
    standalone.apply_without_warnings(&vmi)?;
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    let ahead = guest.run("date +%s", SOON)?.trim().parse::<i64>().expect("a time") - now();
    assert!((86_400 - 300..86_400 + 300).contains(&ahead), "the clock is {ahead} s ahead");
    for (line, expected) in [
        ("readlink -f /sys/block/vdb/device | cut -d/ -f5", "0000:00:0b.0"),
        ("cat /sys/block/vdb/queue/logical_block_size", "4096"),
        ("cat /sys/block/vdb/queue/physical_block_size", "8192"),
        ("cat /sys/block/vdb/queue/discard_granularity", "16384"),
        ("ls /sys/block/vdb/mq | wc -l", "2"),
        ("cat /sys/block/vda/queue/logical_block_size", "512"),
        ("ls /sys/block/vda/mq | wc -l", "2"),
        ("readlink -f /sys/class/net/eth0/device | cut -d/ -f5", "0000:00:0c.0"),
        ("cat /sys/bus/pci/devices/0000:00:0c.0/acpi_index", "7"),
        ("grep -c hpet /sys/devices/system/clocksource/clocksource0/available_clocksource || :", "0"),
        // The class of audio devices (High Definition Audio).
        ("grep -l 0x0403 /sys/bus/pci/devices/*/class | wc -l", "1"),
        ("ls /sys/firmware/acpi/tables | grep -c HPET || :", "0"),
        ("dd if=/dev/zero of=/dev/vda bs=64k count=16 conv=fsync 2>/dev/null && echo written", "written"),
        ("dd if=/dev/zero of=/dev/vdb bs=64k count=16 conv=fsync 2>/dev/null && echo written", "written"),
    ] {
        assert_eq!(guest.run(line, SOON)?.trim(), expected, "{line}");
    }
    Ok(())
}

/// On this host, the hypervisor `qemu` has no KVM.
#[test]
fn an_enlightenment_needs_kvm_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start(&host)?;
    let features = "    features: {hyperv: {relaxed: {}}}\n    devices:\n";
    let vmi = manifest(&host, "one").replace("    devices:\n", features);
    standalone.kubectl("apply -f -", Some(&vmi))?.ok();
    standalone.kubectl("wait --for=jsonpath='{.status.phase}'=Failed --timeout=60s vmi/one", None)?.ok();
    let vmi = standalone.json("get vmi one")?;
    let why = condition(&vmi, "Synchronized")["message"].to_string();
    let expected =
        "spec.domain.features.hyperv.relaxed requests the Hyper-V enlightenment relaxed, which needs KVM";
    assert!(why.contains(expected), "{:#}", vmi["status"]);
    Ok(())
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.expect("a time after 1970").as_secs()).expect("a time of this age")
}
