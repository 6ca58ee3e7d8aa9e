//! A guest with Debian's kernel for real machines starts from a SATA disk and uses what the one for clouds has no drivers of: disks,
//! a CD-ROM drive and a tablet on USB, a NIC of Intel, sound, and a transitional virtio device. Others use one NIC each, of all other
//! models.

use std::time::Duration;

use serde_json::json;
use vireo_tests::eventually::eventually;
use vireo_tests::installed::{self, Login};
use vireo_tests::{HostError, programs};

use crate::SOON;
use crate::scenarios::node::{host_with_programs, manifest};
use crate::scenarios::standalone::{Standalone, host_with_vireo_and_the_full_kernel};

/// A guest starts by firmware, on an emulated CPU.
const BOOT: Duration = Duration::from_secs(300);

#[test]
fn a_guest_uses_sata_usb_and_a_nic_of_intel_on_qemu_here() -> Result<(), HostError> {
    let images = installed::images("full-disk").map_err(HostError::Start)?;
    let vireo = programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
    let host = host_with_programs().file(vireo).tree(images.join("full/disk-oci"), "disk-oci")?;
    let host = host.deadline(BOOT).here()?;
    let standalone = Standalone::start(&host)?;
    let disk =
        |name: &str, bus: &str| json!({"name": name, "serial": name.to_uppercase(), "disk": {"bus": bus}});
    let cd = json!({"name": "cd", "cdrom": {"bus": "usb"}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"colour": "blue"}});
    standalone.kubectl("apply -f -", Some(&map.to_string()))?.ok();
    let vmi = json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "real"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {
                "memory": {"guest": "256Mi"},
                "devices": {
                    "autoattachGraphicsDevice": false,
                    "useVirtioTransitional": true,
                    "rng": {},
                    "sound": {"name": "card", "model": "ich9"},
                    "inputs": [{"name": "tablet", "type": "tablet", "bus": "usb"}],
                    "disks": [disk("root", "sata"), disk("spare", "sata"), disk("stick", "usb"), cd],
                    "interfaces": [{"name": "default", "model": "e1000e", "masquerade": {}}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "root", "containerDisk": {"image": format!("oci:{}", host.input("disk-oci"))}},
                {"name": "spare", "emptyDisk": {"capacity": "8Mi"}},
                {"name": "stick", "emptyDisk": {"capacity": "4Mi"}},
                {"name": "cd", "configMap": {"name": "app"}},
            ],
        },
    });
    standalone.kubectl("apply -f -", Some(&vmi.to_string()))?.ok();
    standalone.becomes_ready("vmi/real")?;
    let mut guest = Login::over(standalone.console_process("real")?);
    guest.log_in()?;
    // The kernel's messages stay out of what is compared.
    guest.run("dmesg -n 1")?;
    // The guest loads drivers of what is on PCI alone by itself.
    guest.run("modprobe -a usb-storage usbhid hid-generic sd_mod sr_mod")?;
    eventually("the guest has both drives on USB", BOOT, || {
        Ok(guest.run("for at in /sys/block/s*; do readlink -f $at; done | grep -c /usb || true")?.trim()
            == "2")
    })?;
    let write = |disk: &str| {
        format!("echo written >{disk} && sync && echo 3 >/proc/sys/vm/drop_caches && head -n1 {disk}")
    };
    // The disk behind a controller, and its size in sectors.
    let find = |bus: &str, size: u32| {
        format!(
            "disk=/dev/$(for at in $(grep -lx {size} /sys/block/sd*/size); do readlink -f $at; done | grep {bus} | sed 's,.*/block/,,; s,/.*,,')"
        )
    };
    for (line, expected) in [
        ("readlink -f /sys/block/sda | grep -c /ata".to_owned(), "1"),
        (format!("{}; {}", find("/ata", 8 << 11), write("$disk")), "written"),
        (format!("{}; {}", find("/usb", 4 << 11), write("$disk")), "written"),
        ("grep -c 'Name=.*USB Tablet' /proc/bus/input/devices".to_owned(), "1"),
        ("readlink -f /sys/block/sr0 | grep -c /usb".to_owned(), "1"),
        ("modprobe isofs && mount -t iso9660 -o ro /dev/sr0 /mnt && cat /mnt/colour; umount /mnt".to_owned(), "blue"),
        // The device ID of a transitional entropy source (virtio 1.2, section 4.1.2.1).
        ("cat /sys/bus/virtio/drivers/virtio_rng/virtio*/../device".to_owned(), "0x1005"),
        ("head -c 16 /dev/hwrng | wc -c".to_owned(), "16"),
        // The controller and its codec answer.
        ("modprobe -a snd-hda-intel snd-hda-codec-generic; cat /proc/asound/card0/id /proc/asound/card0/codec#0 | sed -n '1p; /^Vendor Id/p'".to_owned(), "Intel\nVendor Id: 0x1af40022"),
        ("basename $(readlink /sys/class/net/eth0/device/driver)".to_owned(), "e1000e"),
        ("ping -c 1 -W 10 -q 10.0.2.1 >/dev/null && echo answered".to_owned(), "answered"),
    ] {
        assert_eq!(guest.run(&line)?.trim(), expected, "{line}");
    }
    standalone.kubectl("delete vmi real --timeout=60s", None)?.ok();
    Ok(())
}

/// The models of NICs but virtio and `e1000e`, and the drivers that the guest's kernel has for them.
const NICS: [(&str, &str); 5] = [
    ("e1000", "e1000"),
    ("igb", "igb"),
    ("ne2k_pci", "ne2k-pci"),
    ("pcnet", "pcnet32"),
    ("rtl8139", "8139cp"),
];

/// A VMI has one NIC on a single host, so that these are several, which start at once.
#[test]
fn guests_use_all_other_models_of_nics_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo_and_the_full_kernel(scratch.path())?.deadline(BOOT).here()?;
    let standalone = Standalone::start(&host)?;
    let vmi = |(model, driver)| {
        manifest(&host, driver)
            .replace("terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 0")
            .replace("masquerade: {}", &format!("masquerade: {{}}\n        model: {model}"))
    };
    standalone.kubectl("apply -f -", Some(&NICS.map(vmi).join("---\n")))?.ok();
    for (_, driver) in NICS {
        standalone.becomes_ready(&format!("vmi/{driver}"))?;
    }
    for (model, driver) in NICS {
        let mut guest = standalone.console(driver)?;
        guest.ready()?;
        guest.run(&format!("modprobe {driver}"), SOON)?;
        let used = guest.run("basename $(readlink /sys/class/net/eth0/device/driver)", SOON)?;
        assert_eq!(used.trim(), driver, "{model}");
        guest.run("udhcpc -i eth0 -n -q -f", SOON)?;
        let lease = guest.run("cat /tmp/lease", SOON)?;
        assert!(lease.starts_with("ip=10.0.2.2/24 router=10.0.2.1 "), "{model}: {lease}");
        // Frames of the least size, and of the MTU that any network has.
        for size in [1, 1252] {
            guest.run(&format!("ping -q -c 3 -w 10 -s {size} 10.0.2.1"), SOON)?;
        }
        standalone.kubectl(&format!("delete vmi {driver} --timeout=60s"), None)?.ok();
    }
    Ok(())
}
