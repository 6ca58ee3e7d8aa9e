//! Volumes that are plugged into a guest that runs, and out of it: `virtctl addvolume` and `removevolume`.

use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::media::{DRIVE, change_media};
use crate::scenarios::metrics::scrape;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo, vm_of};

const BOOT: Duration = Duration::from_secs(120);
/// How much of a disk is compared.
const WORDS: &str = "kept across VMs";

#[test]
fn volumes_are_plugged_into_a_guest_and_out() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let mut standalone = Standalone::start(&host)?;
    for name in ["data", "fast"] {
        standalone.provide(name, "1Mi")?;
    }
    let vmi = manifest(&host, "web").replace("      interfaces:\n", &format!("{DRIVE}      interfaces:\n"));
    let vm = vm_of(&vmi, "web", "Halted");
    standalone.kubectl("apply -f -", Some(&vm))?.ok();
    // A VM that does not run is changed, too.
    standalone.virtctl("addvolume web --volume-name=data --disk-name=more")?.ok();
    has_volumes(&standalone, "scratch second more")?;
    standalone.virtctl("removevolume web --volume-name=more")?.ok();
    has_volumes(&standalone, "scratch second")?;
    standalone.virtctl("start web")?.ok();
    standalone.becomes_ready("vm/web")?;
    let mut guest = Guest::over(standalone.console_process("web")?);
    guest.ready()?;
    guest.run("modprobe virtio_scsi && modprobe sd_mod", SOON)?;

    for (line, reported) in [
        ("addvolume web --volume-name=none", "Volume none is not a DataVolume or PersistentVolumeClaim"),
        ("addvolume none --volume-name=data", "\"none\" not found"),
        ("addvolume web --volume-name=data --disk-type=lun", "lun"),
        ("addvolume web --volume-name=data --serial=no/serial", "serial"),
        ("removevolume web --volume-name=data", "does not exist"),
        ("removevolume web --volume-name=scratch", "not hotpluggable"),
        ("addvolume web --volume-name=data --bus=sata", "invalid value"),
    ] {
        refused(&standalone, line, reported)?;
    }
    standalone.virtctl("addvolume web --volume-name=data --dry-run")?.ok();
    assert_eq!(plugged(&standalone, "web")?, Vec::<String>::new());
    change_media(&standalone, "web", &mut guest)?;
    assert_ne!(slots(&mut guest)?, "0");

    let reported = standalone.virtctl("addvolume web --volume-name=data --serial=D4TA --cache=none")?.ok();
    assert_eq!(reported, "Successfully submitted add volume request to VM web for volume data\n");
    refused(&standalone, "addvolume web --volume-name=data", "already")?;
    is_ready(&standalone, "data", "sdb")?;
    on_scsi(&standalone, &mut guest)?;
    standalone.lose()?;
    is_ready(&standalone, "data", "sdb")?;
    let mut guest = Guest::over(standalone.console_process("web")?);
    goes(&standalone, &mut guest)?;
    stays_with_its_vm(&standalone, &mut guest)?;
    is_sealed(&host, &standalone)
}

#[test]
fn nested_volumes_are_plugged_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "hotplug under vireo",
        || host_with_vireo(scratch.path()),
        |host, monitor| come_and_go(host, monitor.hypervisor()),
    );
}

/// Disks on both buses are attached, used, kept across a reboot of the guest, and detached; one of them twice.
fn come_and_go(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, hypervisor)?;
    for name in ["data", "fast"] {
        standalone.provide(name, "1Mi")?;
    }
    standalone.kubectl("apply -f -", Some(&vm_of(&manifest(host, "web"), "web", "Always")))?.ok();
    standalone.becomes_ready("vm/web")?;
    let mut guest = Guest::over(standalone.console_process("web")?);
    let first = guest.ready()?;
    standalone.virtctl("addvolume web --volume-name=data --serial=D4TA")?.ok();
    standalone.virtctl("addvolume web --volume-name=fast --bus=virtio")?.ok();
    is_ready(&standalone, "data", "sdb")?;
    is_ready(&standalone, "fast", "vdb")?;
    has_disks(&mut guest)?;
    guest.run(&format!("for disk in $(cat /tmp/scsi) /dev/vdb; do echo {WORDS} >$disk; done; sync"), SOON)?;
    guest.run("grep -x fast /sys/block/vdb/serial", SOON)?;
    standalone.runs_on("web", hypervisor)?;
    are_counted(&standalone, &["data", "fast"])?;

    guest.send("reboot -f")?;
    let second = guest.ready()?;
    assert_ne!(first.boot_id, second.boot_id, "it did not reboot");
    has_disks(&mut guest)?;
    let kept = guest.run("for disk in $(cat /tmp/scsi) /dev/vdb; do head -n1 $disk; done", SOON)?;
    assert_eq!(kept.lines().map(str::trim).collect::<Vec<_>>(), [WORDS, WORDS]);
    for volume in ["data", "fast"] {
        standalone.virtctl(&format!("removevolume web --volume-name={volume}"))?.ok();
    }
    none_is_left(&standalone)?;
    guest.run("! [ -e $(cat /tmp/scsi) ] && ! [ -e /sys/block/vdb ]", SOON)?;

    standalone.virtctl("addvolume web --volume-name=fast --bus=virtio")?.ok();
    is_ready(&standalone, "fast", "vdb")?;
    sees(&mut guest, "vdb", true)?;
    assert_eq!(guest.run("head -n1 /dev/vdb", SOON)?.trim(), WORDS);
    is_given_back(&standalone, &mut guest)?;
    standalone.virtctl("removevolume web --volume-name=fast")?.ok();
    sees(&mut guest, "vdb", false)?;
    none_is_left(&standalone)?;
    assert_ne!(slots(&mut guest)?, "0");
    is_sealed(host, &standalone)
}

/// How many slots for hotplug the guest has.
fn slots(guest: &mut Guest<'_>) -> Result<String, HostError> {
    Ok(guest.run("ls /sys/bus/pci/slots | wc -l", SOON)?.trim().to_owned())
}

/// A VM into which nothing can be plugged, and which ends when its guest reboots.
fn is_sealed(host: &Host, standalone: &Standalone<'_>) -> Result<(), HostError> {
    let vmi = manifest(host, "sealed")
        .replace("  domain:\n", "  domain:\n    rebootPolicy: Terminate\n")
        .replace("    devices:\n", "    devices:\n      disableHotplug: true\n");
    standalone.kubectl("apply -f -", Some(&vm_of(&vmi, "sealed", "Once")))?.ok();
    standalone.becomes_ready("vm/sealed")?;
    let mut guest = standalone.console("sealed")?;
    guest.ready()?;
    assert_eq!(slots(&mut guest)?, "0");
    for bus in ["scsi", "virtio"] {
        let line = format!("addvolume sealed --volume-name=fast --bus={bus}");
        refused(standalone, &line, "spec.domain.devices.disableHotplug")?;
    }
    guest.send("reboot -f")?;
    standalone.kubectl("wait --for=jsonpath={.status.phase}=Succeeded --timeout=60s vmi/sealed", None)?.ok();
    assert_eq!(guest.output().matches("GUEST READY").count(), 1, "it has rebooted");
    standalone.kubectl("delete vm sealed --timeout=60s", None)?.ok();
    Ok(())
}

/// The guest releases a disk by itself whenever it has it: it gets it again, but not as often as that.
fn is_given_back(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    let find = "address=$(basename $(readlink -f /sys/block/vdb/device/..))";
    let slot = "slot=$(dirname $(grep -lx ${address%.*} /sys/bus/pci/slots/*/address))";
    eventually("the guest has to wait for a disk", BOOT, || {
        sees(guest, "vdb", true)?;
        guest.run(&format!("{find}; {slot}; echo 0 >$slot/power; ! [ -e /sys/block/vdb ]"), SOON)?;
        let events = standalone.kubectl("get events", None)?.ok();
        Ok(events.contains("the guest releases fast by itself"))
    })?;
    sees(guest, "vdb", true)?;
    is_ready(standalone, "fast", "vdb")
}

/// The guest has drivers of SCSI disks and both disks; `/tmp/scsi` has the name of one. Which name that has depends on the order in
/// which its driver finds two controllers.
fn has_disks(guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.run("modprobe virtio_scsi && modprobe sd_mod", SOON)?;
    sees(guest, "sdb", true)?;
    sees(guest, "vdb", true)?;
    let find = "scsi=/dev/$(grep -l D4TA /sys/block/sd*/device/vpd_pg80 | cut -d/ -f4)";
    guest.run(&format!("{find}; echo $scsi >/tmp/scsi; [ -b $scsi ]"), SOON).map(drop)
}

/// What was written to these disks is among the metrics.
fn are_counted(standalone: &Standalone<'_>, drives: &[&str]) -> Result<(), HostError> {
    let used = scrape(standalone)?;
    for drive in drives {
        let written = used.known("kubevirt_vmi_storage_write_traffic_bytes_total", &[("drive", drive)]);
        assert!(written > 0.0, "{drive}");
    }
    Ok(())
}

/// Tries something; the volumes stay as they are.
fn refused(standalone: &Standalone<'_>, line: &str, why: &str) -> Result<(), HostError> {
    let reported = standalone.virtctl(line)?;
    assert!(
        reported.status != vireo_tests::Status::Code(0) && reported.stderr.contains(why),
        "{line}: {reported:?}"
    );
    Ok(())
}

/// Waits until these are the volumes in the VM's template.
fn has_volumes(standalone: &Standalone<'_>, names: &str) -> Result<(), HostError> {
    let kept = "get vm web -o jsonpath={.spec.template.spec.volumes[*].name}";
    eventually(names, SOON, || Ok(standalone.kubectl(kept, None)?.ok() == names))
}

/// The volumes of an instance that were plugged in, with their phases.
fn plugged(standalone: &Standalone<'_>, name: &str) -> Result<Vec<String>, HostError> {
    let vmis = standalone.items("vmi")?;
    let vmi = vmis.iter().find(|vmi| vmi["metadata"]["name"] == name).cloned().unwrap_or_default();
    let volumes = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
    let words = |volume: &Value, field: &str| volume[field].as_str().unwrap_or_default().to_owned();
    let reported = |volume: &Value| {
        ["name", "phase", "target"].map(|field| words(volume, field)).join(" ").trim().to_owned()
    };
    Ok(volumes.iter().filter(|volume| volume.get("hotplugVolume").is_some()).map(reported).collect())
}

fn is_ready(standalone: &Standalone<'_>, name: &str, target: &str) -> Result<(), HostError> {
    let wanted = format!("{name} Ready {target}");
    let mut last = Vec::new();
    let ready = eventually(&wanted, SOON, || {
        last = plugged(standalone, "web")?;
        Ok(last.contains(&wanted))
    });
    if ready.is_err() {
        let events = standalone.kubectl("get events", None)?.stdout;
        eprintln!("as last seen: {last:?}\n{events}");
    }
    ready
}

fn none_is_left(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let mut last = Vec::new();
    let gone = eventually("no volume is plugged in", SOON, || {
        last = plugged(standalone, "web")?;
        Ok(last.is_empty())
    });
    gone.inspect_err(|_| eprintln!("as last seen: {last:?}"))
}

/// Waits in the guest until a disk is there, or no longer is.
fn sees(guest: &mut Guest<'_>, disk: &str, there: bool) -> Result<(), HostError> {
    let not = if there { "" } else { "! " };
    let line =
        format!("for i in $(seq 600); do [ {not}-e /sys/block/{disk} ] && exit 0; sleep 0.1; done; exit 1");
    guest.run(&line, SOON * 3).map(drop)
}

fn on_scsi(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    sees(guest, "sdb", true)?;
    let serial =
        guest.run("tail -c 4 /sys/block/sdb/device/vpd_pg80; echo; cat /sys/block/sdb/size", SOON)?;
    assert_eq!(serial.split_whitespace().collect::<Vec<_>>(), ["D4TA", "2048"]);
    guest.run(&format!("echo {WORDS} >/dev/sdb; sync"), SOON)?;
    are_counted(standalone, &["data"])?;
    let expand = r#"'{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}'"#;
    standalone.kubectl(&format!("patch pvc data -p {expand}"), None)?.ok();
    // Linux looks at the size of a SCSI disk when a program has it do so.
    let rescan = "echo 1 >/sys/block/sdb/device/rescan";
    let wait = format!("until [ $(cat /sys/block/sdb/size) = 4096 ]; do {rescan}; sleep 0.1; done");
    guest.run(&wait, SOON)?;
    standalone.kubectl("delete pvc data --wait=false", None)?.ok();
    assert!(standalone.kubectl("get pvc data", None)?.ok().contains("Terminating"), "it is in use");
    Ok(())
}

/// The volume goes, and with it the claim that was deleted while it was in use.
fn goes(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    let file = standalone.file("claims/default/data/disk.img");
    assert_eq!(standalone.shell(&format!("head -n1 {file}"))?, format!("{WORDS}\n"));
    let reported = standalone.virtctl("removevolume web --volume-name=data")?.ok();
    assert_eq!(reported, "Successfully submitted remove volume request to VM web for volume data\n");
    sees(guest, "sdb", false)?;
    none_is_left(standalone)?;
    standalone.kubectl("wait pvc data --for=delete --timeout=60s", None)?.ok();
    let events = standalone.kubectl("get events", None)?.ok();
    for reason in ["VolumeReady", "VolumeUnplugged"] {
        assert!(events.contains(reason), "{reason} is not among {events}");
    }
    Ok(())
}

/// On virtio: there also after a restart, until it is removed.
fn stays_with_its_vm(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    standalone.virtctl("addvolume web --volume-name=fast --bus=virtio")?.ok();
    is_ready(standalone, "fast", "vdb")?;
    sees(guest, "vdb", true)?;
    guest.run(&format!("grep -x fast /sys/block/vdb/serial && echo {WORDS} >/dev/vdb && sync"), SOON)?;
    let first = standalone.uid("web")?;
    let conditions = standalone.kubectl("get vm web -o jsonpath={.status.conditions[*].type}", None)?.ok();
    assert!(!conditions.contains("RestartRequired"), "{conditions}");
    standalone.virtctl("restart web")?.ok();
    standalone.another_runs("web", &first)?;
    is_ready(standalone, "fast", "vdb")?;
    let mut guest = Guest::over(standalone.console_process("web")?);
    guest.ready()?;
    sees(&mut guest, "vdb", true)?;
    assert_eq!(guest.run("head -n1 /dev/vdb", SOON)?.trim(), WORDS);
    standalone.virtctl("removevolume web --volume-name=fast")?.ok();
    sees(&mut guest, "vdb", false)?;
    none_is_left(standalone)?;
    has_volumes(standalone, "scratch second")?;
    let file = standalone.file("claims/default/fast/disk.img");
    assert_eq!(standalone.shell(&format!("head -n1 {file}"))?, format!("{WORDS}\n"));
    standalone.virtctl("stop web --grace-period 0 --force")?.ok();
    eventually("it has stopped", BOOT, || Ok(standalone.items("vmi")?.is_empty()))
}
