//! Disks and CD-ROMs on SATA and SCSI buses, under Debian's full kernel (the cloud kernel has no AHCI).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use vireo_tests::guest::{Drive, Flavour, Guest, GuestConfig, Monitor};
use vireo_tests::{Host, HostError, scenario};

use crate::scenarios::boot;
use crate::{SOON, host_for_guests, power_off};

const LONG: Duration = Duration::from_secs(90);
/// What the CD-ROM holds, in a file.
const TEXT: &str = "read from a CD-ROM";

#[test]
fn nested_sata_disk_and_cdrom() {
    drives("sata", "ahci");
}

#[test]
fn nested_scsi_disk_and_cdrom() {
    drives("scsi", "virtio_scsi");
}

fn drives(bus: &'static str, driver: &'static str) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let iso = scratch.path().join("cd.iso");
    write_iso(scratch.path(), &iso);
    let name = format!("a disk and a CD-ROM on {bus}");
    let host = || Ok(host_for_guests(scratch.path())?.memory_mib(1280).file(&iso));
    scenario::run(&name, host, |host, monitor| disk_and_cdrom(host, monitor, bus, driver));
}

fn write_iso(scratch: &Path, iso: &Path) {
    let tree = scratch.join("tree");
    std::fs::create_dir_all(&tree).expect("a directory");
    std::fs::write(tree.join("text"), TEXT).expect("a file");
    std::fs::write(tree.join("large"), vec![0x5a; 3 << 20]).expect("a file");
    let status = Command::new("genisoimage")
        .args(["-quiet", "-R", "-V", "VIREO", "-o"])
        .args([iso, &tree])
        .status()
        .expect("genisoimage (hack/setup installs it)");
    assert!(status.success(), "genisoimage failed");
}

fn disk_and_cdrom(host: &Host, monitor: Monitor, bus: &'static str, driver: &str) -> Result<(), HostError> {
    host.shell("rm -f /tmp/disk; truncate -s 64M /tmp/disk").run()?.ok();
    let drive = |path: &str, cdrom| Drive { path: path.into(), bus, cdrom };
    let config = GuestConfig {
        kernel: Flavour::Full,
        memory_mib: 384,
        drives: vec![drive("/tmp/disk", false), drive("/in/cd.iso", true)],
        ..GuestConfig::default()
    };
    let mut guest = config.start(host, monitor)?;
    guest.ready()?;
    let modules = "scsi_common scsi_mod sd_mod cdrom sr_mod isofs libata libahci ahci virtio_scsi";
    guest.run(&format!("for module in {modules}; do modprobe $module || exit 1; done"), LONG)?;
    guest.run(
        "for i in $(seq 100); do test -b /dev/sda && test -b /dev/sr0 && break; sleep 0.1; done",
        LONG,
    )?;
    let link = guest.run("readlink -f /sys/block/sda/device", SOON)?;
    let bound =
        guest.run(&format!("ls /sys/bus/*/drivers/{driver} | grep -c -E '^(0000:|virtio[0-9])'"), SOON)?;
    assert_eq!(bound.trim(), "1", "{link}");
    assert_eq!(guest.run("cat /sys/block/sda/size", SOON)?.trim(), (64 * 2048).to_string(), "sectors");

    check_disk(&mut guest)?;
    check_cdrom(&mut guest)?;
    boot::no_kernel_errors(&mut guest)?;
    power_off(guest)?;
    // The host's kernel reads the partition as the guest left it.
    let read = "e2fsck -fn '/tmp/disk?offset=1048576' >&2; mkdir -p /tmp/mnt; \
        mount -o ro,loop,offset=1048576 /tmp/disk /tmp/mnt; cd /tmp/mnt; sha256sum -c sum; cd /; umount /tmp/mnt";
    let read = host.shell(read).deadline(LONG).run()?.ok();
    assert!(read.contains("OK"), "{read}");
    Ok(())
}

/// A partition, a file system, a file with its sum; trimmed space; and errors that stay away.
fn check_disk(guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.run(
        "printf 'n\\np\\n1\\n2048\\n\\nw\\n' | fdisk -u /dev/sda >/tmp/fdisk 2>&1; test -b /dev/sda1",
        LONG,
    )?;
    guest.run("mke2fs /dev/sda1 >/dev/null 2>&1 && mount -t ext4 /dev/sda1 /mnt", LONG)?;
    guest.run("dd if=/dev/urandom of=/mnt/file bs=64k count=400 2>/dev/null", LONG)?;
    guest.run("cd /mnt && sha256sum file >sum && cd / && sync && umount /mnt", LONG)?;
    guest.run("echo 3 >/proc/sys/vm/drop_caches; mount -t ext4 /dev/sda1 /mnt", LONG)?;
    guest.run("cd /mnt && sha256sum -c sum", LONG)?;
    guest.run("fstrim /mnt && umount /mnt && mount -t ext4 /dev/sda1 /mnt", LONG)?;
    guest.run("cd /mnt && sha256sum -c sum && cd / && umount /mnt", LONG)?;
    Ok(())
}

/// Mounted read-only, read whole, ejected and loaded again.
fn check_cdrom(guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.run("mount -t iso9660 -o ro /dev/sr0 /mnt", LONG)?;
    assert_eq!(guest.run("cat /mnt/text", SOON)?.trim(), TEXT);
    let sum = guest.run("sha256sum /mnt/large | cut -c1-64", LONG)?;
    let want = guest.run("head -c 3145728 /dev/zero | tr '\\000' Z | sha256sum | cut -c1-64", LONG)?;
    assert_eq!(sum, want);
    guest.run("umount /mnt", SOON)?;
    let refused = guest.run("dd if=/dev/zero of=/dev/sr0 bs=2048 count=1 2>/dev/null; echo $?", SOON)?;
    assert_ne!(refused.trim(), "0", "it is read-only");
    // The kernel ejects on the last close, and loads on open, as configured.
    guest.run("cd /proc/sys/dev/cdrom && echo 0 >autoclose && echo 1 >autoeject", SOON)?;
    guest.run("dd if=/dev/sr0 of=/dev/null bs=2048 count=1 2>/dev/null", SOON)?;
    let gone = guest.run("dd if=/dev/sr0 of=/dev/null bs=2048 count=1 2>/dev/null; echo $?", SOON)?;
    assert_ne!(gone.trim(), "0", "it is ejected");
    guest.run("cd /proc/sys/dev/cdrom && echo 0 >autoeject && echo 1 >autoclose", SOON)?;
    guest.run("mount -t iso9660 -o ro /dev/sr0 /mnt && cat /mnt/text && umount /mnt", LONG)?;
    Ok(())
}
