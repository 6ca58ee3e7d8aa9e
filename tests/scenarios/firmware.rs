//! Disks that firmware starts: to the login prompt, and again after a reboot.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::guest::Monitor;
use vireo_tests::installed::{self, Firmware, Installed, Login};
use vireo_tests::{Host, HostBuilder, HostError, Status, programs, scenario};

use crate::SOON;
use crate::scenarios::boot::{kernel_errors, kernel_errors_command};

const LONG: Duration = Duration::from_secs(120);
/// A variable of the test.
const VARIABLE: &str = "/sys/firmware/efi/efivars/Vireo-6a3c1f0e-52c4-4f0e-9b0e-4e6f3d2a1b00";

fn in_a_host(name: &str, host_mib: u32, load: impl Fn(&Host, Monitor) -> Result<(), HostError>) {
    let host = || {
        let nested = env!("CARGO_BIN_EXE_nested");
        let builder = HostBuilder::new(nested).file(programs::directory(nested).join("vmm"));
        let builder = installed::provide(builder).map_err(HostError::Start)?;
        Ok(builder.memory_mib(host_mib))
    };
    scenario::run(name, host, load);
}

/// The same guest twice: what firmware changed of the VM is as before after a reset.
fn boots_and_reboots(host: &Host, monitor: Monitor, config: &Installed) -> Result<(), HostError> {
    let mut guest = config.start(host, monitor)?;
    guest.log_in()?;
    check(&mut guest, config)?;
    if config.firmware == Firmware::Efi {
        guest.run(&format!("printf '\\7\\0\\0\\0kept' >{VARIABLE}"))?;
    }
    let first = boot_id(&mut guest)?;
    guest.run("echo kept >/root/kept; sync")?;
    guest.send("reboot")?;
    guest.log_in()?;
    assert_ne!(boot_id(&mut guest)?, first, "it did not reboot");
    check(&mut guest, config)?;
    assert_eq!(guest.run("cat /root/kept")?, "kept\n");
    if config.firmware == Firmware::Efi {
        // A program that opens it would see the attributes first.
        assert_eq!(guest.run(&format!("tail -c 4 {VARIABLE}; echo"))?, "kept\n");
    }
    guest.send("poweroff")?;
    let output = guest.monitor().wait(LONG)?;
    assert_eq!(output.status, Status::Code(0), "{}", output.stderr);
    Ok(())
}

fn boot_id(guest: &mut Login<'_>) -> Result<String, HostError> {
    guest.run("cat /proc/sys/kernel/random/boot_id")
}

fn check(guest: &mut Login<'_>, config: &Installed) -> Result<(), HostError> {
    let cpus = guest.run("grep -c ^processor /proc/cpuinfo")?;
    assert_eq!(cpus.trim(), config.cpus.to_string(), "CPUs");
    let total = guest.run("awk '/^MemTotal/ { print $2 }' /proc/meminfo")?;
    let (total, whole) = (total.trim().parse().unwrap_or(0), u64::from(config.memory_mib) << 10);
    assert!((whole - whole / 20 - (70 << 10)..=whole).contains(&total), "{total} KiB of {whole}");
    let log = guest.run(&kernel_errors_command())?;
    let wrong = kernel_errors(&log);
    assert!(wrong.is_empty(), "the guest's kernel has errors:\n{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn nested_a_disk_boots_by_bios() {
    in_a_host("a disk by BIOS", 2048, |host, monitor| {
        boots_and_reboots(host, monitor, &Installed::fresh(host, Firmware::Bios)?)
    });
}

#[test]
fn nested_a_disk_boots_by_bios_on_four_cpus_with_ram_above_4_gib() {
    in_a_host("a disk by BIOS, 4 CPUs, 6 GiB", 8 << 10, |host, monitor| {
        let config = Installed { cpus: 4, memory_mib: 6 << 10, ..Installed::fresh(host, Firmware::Bios)? };
        boots_and_reboots(host, monitor, &config)
    });
}

#[test]
fn nested_a_disk_boots_by_efi_and_keeps_a_variable() {
    in_a_host("a disk by EFI", 2048, |host, monitor| {
        boots_and_reboots(host, monitor, &Installed::fresh(host, Firmware::Efi)?)
    });
}

/// Both kinds of firmware find the disk, and so does the guest's kernel.
fn a_disk_on(bus: &'static str) {
    let host = || {
        let nested = env!("CARGO_BIN_EXE_nested");
        let builder = HostBuilder::new(nested).file(programs::directory(nested).join("vmm"));
        let builder = installed::provide_full(builder).map_err(HostError::Start)?;
        Ok(builder.memory_mib(2048).deadline(Duration::from_secs(500)))
    };
    scenario::run(&format!("a disk on {bus}"), host, |host, monitor| {
        for firmware in [Firmware::Bios, Firmware::Efi] {
            // By EFI, GRUB has no room for a display and this kernel in 256 MiB.
            let config = Installed { memory_mib: 512, ..Installed::fresh(host, firmware)? };
            let mut guest = config.on(bus).start(host, monitor)?;
            guest.log_in()?;
            assert_eq!(guest.run("awk '$2 == \"/\" { print $1 }' /proc/mounts")?.trim(), "/dev/sda3");
            let efi = guest.run("test -d /sys/firmware/efi && echo yes || echo no")?;
            assert_eq!(efi.trim(), if firmware == Firmware::Efi { "yes" } else { "no" });
            guest.send("poweroff")?;
            let output = guest.monitor().wait(LONG)?;
            assert_eq!(output.status, Status::Code(0), "{}", output.stderr);
        }
        Ok(())
    });
}

#[test]
fn nested_a_disk_on_sata_boots_by_bios_and_efi() {
    a_disk_on("sata");
}

#[test]
fn nested_a_disk_on_scsi_boots_by_bios_and_efi() {
    a_disk_on("scsi");
}

#[test]
fn nested_a_bios_without_a_bootable_disk_reports_it() {
    in_a_host("no bootable disk", 1024, |host, monitor| {
        host.shell("rm -f /tmp/empty; truncate -s 16M /tmp/empty").run()?.ok();
        let disks = vec!["/tmp/empty".to_owned()];
        let config =
            Installed { firmware: Firmware::Bios, cpus: 1, memory_mib: 256, disks, drives: Vec::new() };
        let mut guest = config.start(host, monitor)?;
        guest.monitor().wait_for("No bootable device", LONG)?;
        if monitor == Monitor::Vmm {
            eventually("the monitor says so", SOON, || {
                assert_eq!(guest.monitor().ended()?, None);
                Ok(guest.monitor().stderr().contains("no bootable device"))
            })?;
        }
        Ok(())
    });
}
