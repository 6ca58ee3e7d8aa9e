//! Memory that a guest does not use any more is the host's again.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::guest::{Guest, GuestConfig, Monitor};
use vireo_tests::{Host, HostError, scenario};

use crate::{SOON, host_for_guests};

const LONG: Duration = Duration::from_secs(90);
/// MiB that the guest uses for a while.
const USED: u64 = 160;

#[test]
fn nested_free_memory_of_a_guest_is_the_hosts() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "free page reporting",
        || Ok(host_for_guests(scratch.path())?.memory_mib(1536)),
        |host, monitor| {
            let config = GuestConfig { balloon: true, memory_mib: 384, ..GuestConfig::default() };
            let mut guest = config.start(host, monitor)?;
            guest.ready()?;
            guest.run("modprobe virtio_balloon; mkdir /m; mount -t tmpfs none /m", SOON)?;
            for _ in 0..2 {
                uses_and_frees(host, monitor, &mut guest)?;
            }
            Ok(())
        },
    );
}

fn uses_and_frees(host: &Host, monitor: Monitor, guest: &mut Guest<'_>) -> Result<(), HostError> {
    let before = resident(host, monitor)?;
    guest.run(&format!("dd if=/dev/zero of=/m/file bs=1M count={USED} 2>/dev/null"), LONG)?;
    let used = resident(host, monitor)?;
    guest.run("rm /m/file", SOON)?;
    let mut last = used;
    let freed = eventually("the guest's free memory is the host's", LONG, || {
        last = resident(host, monitor)?;
        // Blocks that are in part in use are not reported.
        Ok(last + USED * 3 / 4 < used)
    });
    freed.inspect_err(|_| eprintln!("{before} MiB before, {used} MiB in use, {last} MiB at last"))?;
    // It is whole: what it uses again has its own content.
    guest.run(
        "dd if=/dev/urandom of=/m/a bs=1M count=32 2>/dev/null; cp /m/a /m/b; cmp /m/a /m/b; rm /m/a /m/b",
        LONG,
    )?;
    Ok(())
}

/// MiB that the monitor has in RAM.
fn resident(host: &Host, monitor: Monitor) -> Result<u64, HostError> {
    let program = match monitor {
        Monitor::Vmm => "/in/vmm",
        Monitor::Qemu => "qemu-system-x86_64",
    };
    let line =
        format!("awk '/^Rss:/ {{ print int($2 / 1024) }}' /proc/$(pgrep -of '^{program}')/smaps_rollup");
    let read = host.shell(&line).run()?.ok();
    Ok(read.trim().parse().unwrap_or_else(|error| panic!("{error}: {read:?}")))
}
