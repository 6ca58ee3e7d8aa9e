//! What a guest writes to its disk is there after it rebooted, and in the image.

use std::time::Duration;

use vireo_tests::guest::{GuestConfig, Monitor};
use vireo_tests::{Host, HostError, scenario};

use crate::{SOON, host_for_guests, power_off};

const LONG: Duration = Duration::from_secs(60);
/// The cache mode that the device has, by its configuration space.
const CACHE: &str = "cat /sys/block/vda/cache_type";

#[test]
fn nested_a_file_survives_a_reboot() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "a checksummed file on virtio-blk across a reboot";
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(1024)), across_a_reboot);
}

fn across_a_reboot(host: &Host, monitor: Monitor) -> Result<(), HostError> {
    host.shell("rm -f /tmp/disk; truncate -s 96M /tmp/disk; mke2fs -q -t ext4 /tmp/disk").run()?.ok();
    let config = GuestConfig { disks: vec!["/tmp/disk".into()], ..GuestConfig::default() };
    let mut guest = config.start(host, monitor)?;
    let first = guest.ready()?;
    assert_eq!(guest.run("cat /sys/block/vda/size", SOON)?.trim(), (96 * 2048).to_string(), "sectors");
    // The driver switches the cache off, until the reboot.
    assert_eq!(guest.run(CACHE, SOON)?.trim(), "write back");
    guest.run("echo write through >/sys/block/vda/cache_type", SOON)?;
    assert_eq!(guest.run(CACHE, SOON)?.trim(), "write through");
    guest.run("mount -t ext4 /dev/vda /mnt", LONG)?;
    guest.run("dd if=/dev/urandom of=/mnt/file bs=64k count=512 2>/dev/null", LONG)?;
    let written = guest.run("sha256sum /mnt/file", LONG)?;
    guest.run("sha256sum /mnt/file >/mnt/sum; sync; umount /mnt", LONG)?;

    guest.send("reboot -f")?;
    let second = guest.ready()?;
    assert_ne!(first.boot_id, second.boot_id, "it did not reboot");
    assert_eq!(guest.run(CACHE, SOON)?.trim(), "write back");
    guest.run("mount -t ext4 /dev/vda /mnt && cd /mnt && sha256sum -c sum", LONG)?;
    assert_eq!(guest.run("sha256sum /mnt/file", LONG)?, written);
    guest.run("umount /mnt", LONG)?;
    power_off(guest)?;

    // The host's kernel reads the image as the guest left it.
    let read = "e2fsck -fn /tmp/disk >&2; mkdir -p /tmp/mnt; mount -o ro,loop /tmp/disk /tmp/mnt; \
        sha256sum /tmp/mnt/file; umount /tmp/mnt";
    let read = host.shell(read).deadline(LONG).run()?.ok();
    assert_eq!(read.split_whitespace().next(), written.split_whitespace().next());
    Ok(())
}

#[test]
fn nested_interrupt_lines_do_where_messages_are_off() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "virtio-blk by interrupt lines, through the IOAPIC and through the PICs";
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(1024)), by_lines);
}

fn by_lines(host: &Host, monitor: Monitor) -> Result<(), HostError> {
    host.shell("rm -f /tmp/disk; truncate -s 16M /tmp/disk").run()?.ok();
    for (line, controller) in [("pci=nomsi", "IO-APIC"), ("pci=nomsi noapic", "XT-PIC")] {
        let config = GuestConfig {
            disks: vec!["/tmp/disk".into()],
            command_line: line.to_owned(),
            ..GuestConfig::default()
        };
        let mut guest = config.start(host, monitor)?;
        guest.ready()?;
        guest.run("dd if=/dev/zero of=/dev/vda bs=4k count=200 oflag=direct 2>/dev/null", LONG)?;
        let lines = guest.run("grep virtio /proc/interrupts", SOON)?;
        let disk = lines.lines().find(|line| line.contains("virtio0")).expect("a line of the disk");
        assert!(disk.contains(controller), "{line}: {disk}");
        let count: u32 = disk.split_whitespace().nth(1).and_then(|count| count.parse().ok()).unwrap_or(0);
        assert!((200..5000).contains(&count), "neither lost nor stuck: {line}: {lines}");
        let log = guest.run("dmesg | grep -c 'nobody cared' || true", SOON)?;
        assert_eq!(log.trim(), "0");
        power_off(guest)?;
    }
    Ok(())
}
