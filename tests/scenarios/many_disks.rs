//! More disks than the PCI bus has slots, and CD-ROM drives with nothing in them.

use serde_json::{Value, json};
use vireo_tests::HostError;

use crate::SOON;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// Virtio disks beside the others.
const DISKS: usize = 60;

/// A VMI with so many empty virtio disks and two empty drives.
fn manifest(image: &str, disks: usize) -> Value {
    let name = |index: usize| format!("disk-{index}");
    let mut devices: Vec<Value> = (0..disks)
        .map(|index| json!({"name": name(index), "disk": {"bus": "virtio"}, "serial": name(index)}))
        .collect();
    devices
        .extend(["sata", "scsi"].map(|bus| json!({"name": format!("{bus}-drive"), "cdrom": {"bus": bus}})));
    let volumes: Vec<Value> =
        (0..disks).map(|index| json!({"name": name(index), "emptyDisk": {"capacity": "1Mi"}})).collect();
    let container = json!({"image": image, "kernelPath": "/boot/vmlinuz/", "initrdPath": "/boot/initrd"});
    let kernel = json!({"kernelArgs": "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests", "container": container});
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "many"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {
                "memory": {"guest": "256Mi"},
                "firmware": {"kernelBoot": kernel},
                "devices": {"autoattachGraphicsDevice": false, "rng": {}, "disks": devices},
            },
            "volumes": volumes,
        },
    })
}

#[test]
fn sixty_disks_and_empty_drives_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start(&host)?;
    let image = format!("oci:{}", host.input("kernel-oci"));

    let refused = standalone.kubectl("create -f -", Some(&manifest(&image, 205).to_string()))?;
    let reported = "spec.domain.devices.disks: Too many: 205: must have at most 192 items on the bus virtio";
    assert!(refused.stderr.contains(reported), "{refused:?}");

    standalone.kubectl("create -f -", Some(&manifest(&image, DISKS).to_string()))?.ok();
    let phase = "wait --for=jsonpath={.status.phase}=Running --timeout=90s vmi/many";
    standalone.kubectl(phase, None)?.ok();
    let mut guest = standalone.console("many")?;
    guest.ready()?;
    // In the order of the manifest, whatever slots they share.
    let serials =
        guest.run("for i in /sys/block/vd?/serial /sys/block/vd??/serial; do cat $i; echo; done", SOON)?;
    let serials: Vec<&str> = serials.split_whitespace().collect();
    let expected: Vec<String> = (0..DISKS).map(|index| format!("disk-{index}")).collect();
    assert_eq!(serials, expected);
    // The last one is written to and read.
    guest.run("echo written >/dev/vdbh && sync && head -n1 /dev/vdbh | grep -x written", SOON)?;
    // The guest's kernel has a driver for the drive on SCSI.
    guest.run("modprobe virtio_scsi && modprobe sr_mod", SOON)?;
    let sees = "for i in $(seq 100); do [ -e /sys/block/sr0 ] && exit 0; sleep 0.1; done; exit 1";
    guest.run(sees, SOON)?;
    // An empty drive is there and cannot be read.
    guest.run("! head -c1 /dev/sr0 2>/dev/null", SOON)?;
    let vmi = standalone.json("get vmi many")?;
    let volumes = vmi["status"]["volumeStatus"].as_array().map(Vec::len);
    assert_eq!(volumes, Some(DISKS), "a drive without a volume has no volume status");
    standalone.kubectl("delete vmi many --timeout=90s", None)?.ok();
    Ok(())
}
