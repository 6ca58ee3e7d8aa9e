//! Guests that do what no driver does. Whatever becomes of the guest, its monitor must not fail.

use std::time::Duration;

use vireo_tests::guest::{Flavour, Guest, GuestConfig, Monitor};
use vireo_tests::{Host, HostError, Status, scenario};

use crate::{host_for_guests, power_off};

const LONG: Duration = Duration::from_secs(120);
/// A guest that does not come back by then has killed itself.
const HANG: Duration = Duration::from_secs(40);

fn config() -> GuestConfig {
    GuestConfig {
        kernel: Flavour::Full,
        disks: vec!["/tmp/disk".into()],
        tap: Some("tap0".into()),
        // Lets root map what drivers hold.
        command_line: "iomem=relaxed".into(),
        ..GuestConfig::default()
    }
}

fn poked(name: &str, load: impl Fn(&Host, Monitor) -> Result<(), HostError>) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        name,
        || Ok(host_for_guests(scratch.path())?.memory_mib(1024)),
        |host, monitor| {
            let setup = "truncate -s 16M /tmp/disk; ip tuntap add tap0 mode tap vnet_hdr || true; ip link set tap0 up";
            host.shell(setup).run()?.ok();
            load(host, monitor)
        },
    );
}

/// The guest may be dead, reset or at work after this; the monitor is not, or ended as a guest ends it.
fn outlives(guest: &mut Guest<'_>, line: &str) -> Result<(), HostError> {
    guest.send(&format!("{line}; echo POKED"))?;
    match guest.monitor().wait_for("POKED", HANG) {
        Ok(_) => Ok(()),
        Err(HostError::Ended { status, .. }) => {
            let stderr = guest.monitor().stderr();
            assert!(matches!(status, Status::Code(code) if code != 1 && code != 101), "{status:?}\n{stderr}");
            Ok(())
        }
        // Killed at the deadline: it was alive, and what hung was the guest.
        Err(HostError::Deadline { .. }) => Ok(()),
        Err(other) => Err(other),
    }
}

#[test]
fn nested_wild_mmio_does_no_harm() {
    poked("wild MMIO where no device is", |host, monitor| {
        let mut guest = config().start(host, monitor)?;
        guest.ready()?;
        guest.run("poke holes 1 200", LONG)?;
        // Nothing a guest may touch there does anything: it goes on.
        guest.run("dd if=/dev/vda of=/dev/null bs=64k count=16 iflag=direct 2>/dev/null", LONG)?;
        power_off(guest)
    });
}

#[test]
fn nested_wild_device_registers_are_survived() {
    poked("wild writes to BARs, configuration space and ports", |host, monitor| {
        for seed in 1..=2 {
            for what in ["bars", "config", "ports"] {
                let mut guest = config().start(host, monitor)?;
                guest.ready()?;
                outlives(&mut guest, &format!("poke {what} {seed} 1000"))?;
                let stderr = guest.monitor().stderr();
                assert!(!stderr.contains("panicked"), "poke {what} {seed}:\n{stderr}");
            }
        }
        // Another guest in the same host: nothing leaked out of the others.
        let mut guest = config().start(host, monitor)?;
        guest.ready()?;
        power_off(guest)
    });
}
