//! What a guest flushed is on its disks, whenever its monitor is killed and whenever the host loses its power.

use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::RangeInclusive;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use vireo_tests::guest::{Guest, GuestConfig, Monitor};
use vireo_tests::{Host, HostError, Status, scenario};

use crate::{SOON, host_for_guests, power_off};

const LONG: Duration = Duration::from_secs(240);
const SIGKILL: i32 = 9;
/// For one boot of the guest, and what is verified.
const PER_BOOT: Duration = Duration::from_secs(60);
/// For one boot of the host, beside the guest's.
const PER_HOST: Duration = Duration::from_secs(180);
/// How often a monitor is killed; default 3.
const KILLS: &str = "VIREO_MONITOR_KILLS";
/// How often the power of a host is cut; default 1.
const POWER_CUTS: &str = "VIREO_POWER_CUTS";
/// The most records that are written between two kills.
const MOST: u64 = 40;
/// The first block of 64 KiB that is no record's.
const END: u64 = 8192;
/// The disk that outlives a host has room for both images, whole.
const DISK_OF_HOST: u64 = 3 << 30;

/// The guest's disks by the formats of their images.
const DISKS: [(&str, &str); 2] = [("raw", "/dev/vda"), ("qcow2", "/dev/vdb")];

/// Records from a number on, each a block with its number and a checksum, in a cluster of its own, and flushed, on both
/// disks; beside them writes that are not flushed.
const WRITE: &str = "(m=0; while :; do for disk in /dev/vda /dev/vdb; do \
    dd if=/dev/urandom of=$disk bs=64k seek=$((8192 + m % 4096)) count=8 oflag=direct 2>/dev/null; done; m=$((m + 8)); done) & \
    while :; do record=\"$n $(echo $n | sha256sum)\"; for disk in /dev/vda /dev/vdb; do \
    echo \"$record\" | dd of=$disk bs=4096 seek=$((n * 16)) conv=sync,fsync 2>/dev/null || exit 1; done; \
    echo flushed $n; n=$((n + 1)); done";
/// Prints a digest of the lines of the records from one number on, as many as are asked for.
const VERIFY: &str = "dd if=$disk bs=64k skip=$first count=$count 2>/dev/null | tr -d '\\0' | sha256sum";
/// Names the records that are not as they were written.
const EXPLAIN: &str = "n=$first; while [ $n -lt $((first + count)) ]; do \
    read=$(dd if=$disk bs=4096 skip=$((n * 16)) count=1 2>/dev/null | head -n1); \
    [ \"$read\" = \"$n $(echo $n | sha256sum)\" ] || echo lost $n: $read; n=$((n + 1)); done";

#[test]
fn nested_no_flushed_record_is_lost_when_a_monitor_is_killed() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "kills of a monitor whose guest flushes";
    let kills = times(KILLS, 3);
    let host = || Ok(host_for_guests(scratch.path())?.memory_mib(2048).deadline(PER_BOOT * (kills + 2)));
    scenario::run(name, host, |host, monitor| {
        make_images(host, "/tmp")?;
        let mut last = 0;
        for kill in 1..=kills {
            let (mut guest, wanted) = writing(host, monitor, ("/tmp", last))?;
            guest.monitor().signal(SIGKILL)?;
            let output = guest.wait(SOON)?;
            assert_eq!(output.status, Status::Signal(SIGKILL));
            last = flushed(&output.stdout).max(wanted);
            eprintln!("kill {kill}: after {last} records");
            check_images(host, "/tmp")?;
        }
        all_is_there(host, monitor, ("/tmp", last))
    });
}

/// A host loses what it has not written to its own disk: QEMU, which is the host, is killed.
#[test]
fn nested_no_flushed_record_is_lost_when_the_power_of_a_host_is_cut() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "power cuts of a host whose guest flushes";
    let disk = scratch.path().join("disk-of-host");
    let start = || -> Result<Host, HostError> {
        let host = host_for_guests(scratch.path())?.memory_mib(2048).disk(&disk).deadline(PER_HOST);
        let host = host.start()?;
        host.shell("mkdir -p /mnt/images").run()?.ok();
        Ok(host)
    };
    scenario::run_in_hosts(name, |monitor| {
        File::create(&disk).and_then(|file| file.set_len(DISK_OF_HOST)).expect("a sparse file");
        let mut host = start()?;
        host.shell("mkfs.ext4 -q /dev/vdb; mount /dev/vdb /mnt/images").run()?.ok();
        make_images(&host, "/mnt/images")?;
        let mut last = 0;
        for cut in 1..=times(POWER_CUTS, 1) {
            let (guest, wanted) = writing(&host, monitor, ("/mnt/images", last))?;
            host.cut_power();
            last = flushed(&guest.output()).max(wanted);
            eprintln!("power cut {cut}: after {last} records");
            drop(guest);
            host = start()?;
            host.shell("mount /dev/vdb /mnt/images").run()?.ok();
            check_images(&host, "/mnt/images")?;
        }
        all_is_there(&host, monitor, ("/mnt/images", last))
    });
}

/// How often something is to be done.
fn times(variable: &str, default: u32) -> u32 {
    std::env::var(variable)
        .map_or(default, |times| times.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

fn make_images(host: &Host, directory: &str) -> Result<(), HostError> {
    for (format, _) in DISKS {
        let line =
            format!("rm -f {directory}/{format}; qemu-img create -q -f {format} {directory}/{format} 1G");
        // The image itself is not what is tested.
        host.shell(&format!("{line}; sync -f {directory}/{format}")).run()?.ok();
    }
    Ok(())
}

fn guest<'h>(host: &'h Host, monitor: Monitor, directory: &str) -> Result<Guest<'h>, HostError> {
    let disks = DISKS.map(|(format, _)| format!("{directory}/{format},format={format}"));
    let config = GuestConfig { cpus: 2, disks: disks.into(), disk_queues: 2, ..GuestConfig::default() };
    let mut guest = config.start(host, monitor)?;
    guest.ready()?;
    Ok(guest)
}

/// A guest with the disks of a directory that have `last` records, after it has written some more, and how many there are
/// now at least.
fn writing<'h>(
    host: &'h Host,
    monitor: Monitor,
    (directory, last): (&str, u64),
) -> Result<(Guest<'h>, u64), HostError> {
    let mut guest = guest(host, monitor, directory)?;
    // Those of long ago are verified at the end.
    verify(&mut guest, last.saturating_sub(MOST).max(1)..=last)?;
    let wanted = last + 1 + random() % MOST;
    assert!(wanted + MOST < END, "there is room for {END} records: {KILLS} or {POWER_CUTS} is too large");
    guest.send(&format!("n={}; {WRITE}", last + 1))?;
    guest.monitor().wait_for(&format!("flushed {wanted}\n"), LONG)?;
    Ok((guest, wanted))
}

fn all_is_there(host: &Host, monitor: Monitor, (directory, last): (&str, u64)) -> Result<(), HostError> {
    let mut guest = guest(host, monitor, directory)?;
    verify(&mut guest, 1..=last)?;
    power_off(guest)?;
    check_images(host, directory)
}

fn verify(guest: &mut Guest<'_>, records: RangeInclusive<u64>) -> Result<(), HostError> {
    if records.is_empty() {
        return Ok(());
    }
    let (first, count) = (*records.start(), records.end() - records.start() + 1);
    let expected = digest(&records.map(record).collect::<String>());
    for (format, disk) in DISKS {
        let which = format!("disk={disk}; first={first}; count={count}");
        let digest = guest.run(&format!("{which}; {VERIFY}"), LONG)?;
        if digest.split_whitespace().next() != Some(expected.as_str()) {
            let lost = guest.run(&format!("{which}; {EXPLAIN}"), LONG)?;
            panic!("{format}: of {count} records from {first} on:\n{lost}");
        }
    }
    Ok(())
}

/// A record's line, as [`WRITE`] writes it.
fn record(number: u64) -> String {
    format!("{number} {}  -\n", digest(&format!("{number}\n")))
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_images(host: &Host, directory: &str) -> Result<(), HostError> {
    host.shell(&format!("qemu-img check -f qcow2 {directory}/qcow2")).deadline(LONG).run()?.ok();
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
