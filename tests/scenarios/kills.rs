//! What a guest flushed is on its disk, whenever its monitor is killed.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use vireo_tests::guest::{Guest, GuestConfig, Monitor};
use vireo_tests::{Host, HostError, Status, scenario};

use crate::{SOON, host_for_guests, power_off};

const LONG: Duration = Duration::from_secs(240);
const SIGKILL: i32 = 9;
/// For one boot of the guest, and what is verified.
const PER_BOOT: Duration = Duration::from_secs(60);
/// How often a monitor is killed.
const KILLS: &str = "VIREO_MONITOR_KILLS";
/// The most records that are written between two kills.
const MOST: u64 = 40;
/// The first block of 64 KiB that is no record's.
const END: u64 = 8192;

/// Records from a number on, each a block with its number and a checksum, in a cluster of its own, and flushed; beside
/// them writes that are not flushed.
const WRITE: &str = "(m=0; while :; do dd if=/dev/urandom of=/dev/vda bs=64k seek=$((8192 + m % 4096)) count=8 \
    oflag=direct 2>/dev/null; m=$((m + 8)); done) & \
    while :; do echo \"$n $(echo $n | sha256sum)\" | dd of=/dev/vda bs=4096 seek=$((n * 16)) conv=sync,fsync 2>/dev/null && \
    echo flushed $n; n=$((n + 1)); done";
/// Names the records up to a number that are not as they were written.
const VERIFY: &str = "n=1; while [ $n -le $last ]; do \
    read=$(dd if=/dev/vda bs=4096 skip=$((n * 16)) count=1 2>/dev/null | head -n1); \
    [ \"$read\" = \"$n $(echo $n | sha256sum)\" ] || echo lost $n: $read; n=$((n + 1)); done";

#[test]
fn nested_no_flushed_record_is_lost_when_a_monitor_is_killed() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "kills of a monitor whose guest flushes";
    let deadline = PER_BOOT * (2 * (kills() + 1));
    let host = || Ok(host_for_guests(scratch.path())?.memory_mib(2048).deadline(deadline));
    scenario::run(name, host, both_formats);
}

fn both_formats(host: &Host, monitor: Monitor) -> Result<(), HostError> {
    if monitor == Monitor::Qemu {
        return Ok(());
    }
    let kills = kills();
    for format in ["raw", "qcow2"] {
        killed(host, monitor, (format, kills))?;
    }
    Ok(())
}

/// How often a monitor is killed with each format.
fn kills() -> u32 {
    std::env::var(KILLS).map_or(3, |kills| kills.parse().expect("VIREO_MONITOR_KILLS is a number"))
}

fn killed(host: &Host, monitor: Monitor, (format, kills): (&str, u32)) -> Result<(), HostError> {
    host.shell(&format!("rm -f /tmp/disk; qemu-img create -q -f {format} /tmp/disk 1G")).run()?.ok();
    let config = GuestConfig {
        cpus: 2,
        disks: vec![format!("/tmp/disk,format={format}")],
        disk_queues: 2,
        ..GuestConfig::default()
    };
    let mut last = 0;
    for round in 1..=kills {
        let mut guest = config.start(host, monitor)?;
        guest.ready()?;
        verify(&mut guest, last)?;
        let wanted = last + 1 + random() % MOST;
        guest.send(&format!("n={}; {WRITE}", last + 1))?;
        guest.monitor().wait_for(&format!("flushed {wanted}"), LONG)?;
        guest.monitor().signal(SIGKILL)?;
        let output = guest.wait(SOON)?;
        assert_eq!(output.status, Status::Signal(SIGKILL));
        last = flushed(&output.stdout).max(wanted - 1);
        assert!(last < END, "there is room for {END} records: {KILLS} is too large");
        eprintln!("{format}, kill {round}: after {last} records");
        check(host, format)?;
    }
    let mut guest = config.start(host, monitor)?;
    guest.ready()?;
    verify(&mut guest, last)?;
    power_off(guest)?;
    check(host, format)
}

fn verify(guest: &mut Guest<'_>, last: u64) -> Result<(), HostError> {
    assert_eq!(guest.run(&format!("last={last}; {VERIFY}"), LONG)?, "", "records of {last}");
    Ok(())
}

fn check(host: &Host, format: &str) -> Result<(), HostError> {
    if format == "qcow2" {
        host.shell("qemu-img check -f qcow2 /tmp/disk").deadline(LONG).run()?.ok();
    }
    Ok(())
}

/// The last number that a guest printed whole.
fn flushed(console: &str) -> u64 {
    let lines = console.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let numbers = lines.filter_map(|line| line.trim().strip_prefix("flushed ")?.parse().ok());
    numbers.max().unwrap_or(0)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[test]
fn half_a_number_is_none() {
    assert_eq!(flushed("x\r\nflushed 7\r\nflushed 12\r\nflushed 13"), 12);
    assert_eq!(flushed(""), 0);
}
