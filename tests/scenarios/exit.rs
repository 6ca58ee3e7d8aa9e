//! How a guest's end shows in the monitor's exit code: 0 it switched itself off, 1 the monitor failed, and one each
//! for a guest that crashes and for one that only ever resets.

use std::time::Duration;

use vireo_tests::guest::{Guest, GuestConfig, Monitor};
use vireo_tests::terminal::{LEAVE, Terminal};
use vireo_tests::{Host, HostError, Status, scenario};

use crate::{SOON, host_for_guests};

const LONG: Duration = Duration::from_secs(120);

const FAILED: i32 = 1;
const CRASHED: i32 = 3;
const RESET_LOOP: i32 = 4;
const LEFT: i32 = 5;

fn in_a_host(name: &str, load: impl Fn(&Host, Monitor) -> Result<(), HostError>) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(1024)), load);
}

#[test]
fn nested_a_triple_fault_resets_the_guest_or_ends_it() {
    in_a_host("a triple fault", |host, monitor| {
        let config = GuestConfig { command_line: "reboot=triple".into(), ..GuestConfig::default() };
        let mut guest = config.start(host, monitor)?;
        guest.ready()?;
        guest.send("reboot -f")?;
        guest.ready()?;
        if monitor == Monitor::Qemu {
            return Ok(());
        }
        drop(guest);
        let arguments = vec!["--exit-on-triple-fault".into()];
        let mut guest = GuestConfig { arguments, ..config }.start(host, monitor)?;
        guest.ready()?;
        guest.send("reboot -f")?;
        let output = guest.wait(SOON)?;
        assert_eq!(output.status, Status::Code(CRASHED), "{}", output.stderr);
        Ok(())
    });
}

#[test]
fn nested_a_kernel_that_panics_at_every_boot_ends() {
    in_a_host("a reset loop", |host, monitor| {
        if monitor == Monitor::Qemu {
            // QEMU would loop for ever: that a sound kernel boots is what can be compared.
            return GuestConfig::default().start(host, monitor)?.ready().map(drop);
        }
        // panic=-1, which every test guest has, reboots at once.
        let config = GuestConfig { command_line: "rdinit=/absent".into(), ..GuestConfig::default() };
        let output = config.start(host, monitor)?.wait(LONG)?;
        assert_eq!(output.status, Status::Code(RESET_LOOP), "{}\n{}", output.stdout, output.stderr);
        Ok(())
    });
}

#[test]
fn nested_a_terminal_is_the_guests_until_ctrl_bracket() {
    in_a_host("a terminal", |host, monitor| {
        if monitor == Monitor::Qemu {
            return GuestConfig::default().start(host, monitor)?.ready().map(drop);
        }
        let terminal = Terminal::new(host, "terminal");
        let line =
            "/in/vmm --kernel /in/cloud/vmlinuz --initrd /in/cloud/initrd --cmdline 'console=ttyS0 quiet'";
        let mut guest = Guest::over(terminal.shell(line).spawn()?);
        guest.ready()?;
        assert_eq!(guest.run("echo $((6 * 7))", SOON)?, "42\n");
        let settings = terminal.settings("vmm")?;
        assert!(settings.contains("-isig") && settings.contains("-icanon"), "not raw: {settings}");
        guest.monitor().write(LEAVE)?;
        let output = guest.wait(SOON)?;
        assert_eq!(output.status, Status::Code(LEFT), "{}", output.stdout);
        terminal.assert_restored()
    });
}

#[test]
fn nested_failed_starts_have_a_reason() {
    let cases = [
        ("no such kernel", "/in/vmm --kernel /in/absent", "/in/absent"),
        ("no kernel", "/in/vmm --kernel /bin/bash", "kernel"),
        ("too little memory", "/in/vmm --kernel /in/cloud/vmlinuz --memory 1M", "memory"),
        ("no such disk", "/in/vmm --kernel /in/cloud/vmlinuz --disk path=/in/absent", "/in/absent"),
        ("no such tap", "/in/vmm --kernel /in/cloud/vmlinuz --net tap=a-name-too-long-for-a-tap", "tap"),
        (
            "an initrd that does not fit",
            "truncate -s 200M /tmp/big; /in/vmm --kernel /in/cloud/vmlinuz --initrd /tmp/big --memory 128M",
            "initrd",
        ),
        (
            "no KVM",
            "mv /dev/kvm /dev/away; trap 'mv /dev/away /dev/kvm' EXIT; /in/vmm --kernel /in/cloud/vmlinuz",
            "/dev/kvm",
        ),
    ];
    in_a_host("what cannot start", |host, monitor| {
        if monitor == Monitor::Qemu {
            return Ok(());
        }
        for (name, line, word) in cases {
            let output = host.shell(line).deadline(SOON).run()?;
            let Status::Code(code) = output.status else { panic!("{name}: {:?}", output.status) };
            // 2 is how a command line that cannot be read ends.
            assert!(code == FAILED || code == 2, "{name}: exit code {code}\n{}", output.stderr);
            assert!(output.stderr.contains(word), "{name}: {word:?} is not in:\n{}", output.stderr);
            assert!(!output.stderr.contains("panicked"), "{name}:\n{}", output.stderr);
        }
        Ok(())
    });
}
