//! Secure Boot: a guest that Debian has signed starts and knows that it is protected; one that was changed does not.

use std::fs;
use std::time::Duration;

use vireo_tests::guest::{self, Guest};
use vireo_tests::{HostError, Image, oci, signed};

use crate::SOON;
use crate::scenarios::node::{Node, host_with_programs};

/// Firmware with system management mode, on an emulated CPU.
const BOOT: Duration = Duration::from_secs(240);
/// How variables of EFI's own are called.
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// A text of the program that the firmware verifies.
const SIGNED: &[u8] = b"UEFI SHIM";

fn manifest(image: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: signed}}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory: {{guest: 512Mi}}
    features: {{smm: {{enabled: true}}}}
    firmware: {{bootloader: {{efi: {{}}}}}}
    devices:
      autoattachGraphicsDevice: false
      autoattachPodInterface: false
      disks: [{{name: root, disk: {{bus: virtio}}}}]
  volumes: [{{name: root, containerDisk: {{image: 'oci:{image}'}}}}]
"
    )
}

#[test]
fn a_signed_guest_starts_with_secure_boot_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (initrd, disk, layout) =
        (scratch.path().join("initrd"), scratch.path().join("disk.img"), scratch.path().join("oci"));
    let image = Image::get()?;
    let kernel = image.cloud_kernel().map_err(HostError::Start)?;
    guest::write_initrd(&image, &kernel, &[], &initrd).map_err(HostError::Start)?;
    let line = "console=ttyS0 quiet panic=-1 no_timer_check";
    signed::write_disk(&kernel, &initrd, line, &disk).map_err(HostError::Start)?;
    oci::write_layout(&layout, &[("disk/disk.img", &disk)]).map_err(HostError::Start)?;
    let content = fs::read(&disk).map_err(HostError::Start)?;
    let changed = content.windows(SIGNED.len()).position(|text| text == SIGNED);
    let changed = changed.expect("the program is on the disk");

    let host = host_with_programs().tree(&layout, "signed-oci")?.deadline(2 * BOOT).here()?;
    let node = Node::start(&host, "qemu")?;
    node.apply("signed.yaml", &manifest(&host.input("signed-oci")))?;
    node.wait_for_phase("signed", "Running", BOOT)?;
    let mut guest = Guest::over(node.attach("signed")?);
    guest.ready()?;
    guest.run("modprobe efivarfs && mount -t efivarfs efivarfs /sys/firmware/efi/efivars", SOON)?;
    // The keys of its template count: it is not set up.
    for (variable, expected) in [("SecureBoot", "01"), ("SetupMode", "00")] {
        let read = format!("tail -c 1 /sys/firmware/efi/efivars/{variable}-{GLOBAL} | od -An -tx1");
        assert_eq!(guest.run(&read, SOON)?.trim(), expected, "{variable}");
    }
    let lockdown = "mount -t securityfs securityfs /sys/kernel/security; cat /sys/kernel/security/lockdown";
    assert_eq!(guest.run(lockdown, SOON)?.trim(), "none [integrity] confidentiality");

    // One byte, where the disk has it.
    let line = format!("dd if=/dev/zero of=/dev/vda bs=1 count=1 seek={changed} conv=notrunc,fsync");
    guest.run(&line, SOON)?;
    guest.send("reboot -f")?;
    guest.monitor().wait_for("BdsDxe: failed to load Boot", BOOT)?;
    guest.monitor().wait_for("Access Denied", SOON)?;
    drop(guest);
    node.delete("signed.yaml")?;
    node.wait_until_gone("signed")
}
