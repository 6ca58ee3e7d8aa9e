//! What a kernel expects of a PC beside its disks and NICs: the clock, the power button, the reset vector, its name.

use vireo_tests::guest::{Flavour, Guest, GuestConfig, Monitor};
use vireo_tests::{Host, HostError, Status, scenario};

use crate::{SOON, host_for_guests};

fn in_a_host(name: &str, load: impl Fn(&Host, Monitor) -> Result<(), HostError>) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(1024)), load);
}

/// The guest sleeps, and says so.
fn fall_asleep(guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.run("dmesg -n 8; echo 1 >/sys/power/pm_debug_messages", SOON)?;
    guest.send("echo freeze >/sys/power/state; dmesg -n 1")?;
    guest.monitor().wait_for("suspend-to-idle", SOON).map(drop)
}

#[test]
fn nested_the_alarm_and_the_power_button_wake_a_guest() {
    in_a_host("waking a guest", |host, monitor| {
        // The cloud kernel does not tell when it sleeps.
        let kernel = Flavour::Full;
        let config =
            GuestConfig { kernel, command_line: "no_console_suspend".into(), ..GuestConfig::default() };
        let mut guest = config.start(host, monitor)?;
        guest.ready()?;
        guest.run("echo +5 >/sys/class/rtc/rtc0/wakealarm; echo freeze >/sys/power/state", SOON)?;
        assert_eq!(guest.run("cat /sys/power/suspend_stats/success", SOON)?, "1\n");
        assert!(guest.run("cat /proc/interrupts", SOON)?.contains("rtc0"), "the clock has a line");
        if monitor == Monitor::Qemu {
            // Its button is on another socket.
            return Ok(());
        }
        fall_asleep(&mut guest)?;
        host.shell("killall -USR1 vmm").run()?.ok();
        assert_eq!(guest.run("cat /sys/power/suspend_stats/success", SOON)?, "2\n");
        host.shell("killall -USR1 vmm").run()?.ok();
        let output = guest.wait(SOON)?;
        assert_eq!(output.status, Status::Code(0), "{}\n{}", output.stdout, output.stderr);
        Ok(())
    });
}

#[test]
fn nested_a_guest_knows_what_it_runs_on_and_resets_through_the_bios() {
    in_a_host("reset through the BIOS", |host, monitor| {
        let config = GuestConfig { command_line: "reboot=bios".into(), ..GuestConfig::default() };
        let mut guest = config.start(host, monitor)?;
        let first = guest.ready()?;
        let name = "grep -m 1 'model name' /proc/cpuinfo";
        assert_eq!(guest.run(name, SOON)?, host.shell(name).run()?.ok(), "the CPU");
        if monitor == Monitor::Vmm {
            assert_eq!(guest.run("cat /sys/class/dmi/id/sys_vendor", SOON)?, "Vireo\n");
        }
        guest.send("reboot -f")?;
        let second = guest.ready()?;
        assert_ne!(first.boot_id, second.boot_id);
        Ok(())
    });
}
