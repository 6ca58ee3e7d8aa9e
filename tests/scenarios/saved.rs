//! A paused VM rests, and a saved one goes on in a fresh process.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::guest::{Drive, Flavour, Guest, GuestConfig, Monitor, Video};
use vireo_tests::{Host, HostError, Status, scenario};

use crate::scenarios::display::{self, SOCKET};
use crate::{SOON, host_for_guests, power_off};

const LONG: Duration = Duration::from_secs(180);
const SIGUSR2: i32 = 12;
const SIGCONT: i32 = 18;
const SIGTSTP: i32 = 20;
const SAVED: i32 = 6;
const FAILED: i32 = 1;

const NETWORK: &str = "ip link del tap0 2>/dev/null || true; ip tuntap add tap0 mode tap vnet_hdr; \
    ip addr add 10.0.2.1/24 dev tap0; ip link set tap0 up; \
    mkdir -p /tmp/www; head -c 1048576 /dev/urandom >/tmp/www/sent; sha256sum </tmp/www/sent";

/// Sets a counter.
const COUNT: &str = "count() { echo $2 >/tmp/$1.new; mv /tmp/$1.new /tmp/$1; }";
/// Loops that count: files with their checksums, a SCSI disk, fetches over the network, timers, computation, the entropy
/// device, and lines on the console.
const LOADS: [&str; 7] = [
    "n=0; while [ ! -e /tmp/stop ]; do n=$((n+1)); f=$((n % 64)); rm -f /tmp/sums/$f; \
        dd if=/dev/urandom of=/mnt/$f bs=4k count=$((n % 32 + 1)) conv=fsync 2>/dev/null; \
        sha256sum /mnt/$f >/tmp/sum && mv /tmp/sum /tmp/sums/$f; count disk $n; done",
    "n=0; while [ ! -e /tmp/stop ]; do n=$((n+1)); at=$((n % 1000)); \
        echo $n | dd of=/dev/sda bs=512 seek=$at conv=sync,fsync 2>/dev/null; echo 1 >/proc/sys/vm/drop_caches; \
        [ \"$(dd if=/dev/sda bs=512 skip=$at count=1 2>/dev/null | head -n 1)\" = $n ] || break; count scsi $n; done",
    "n=0; while [ ! -e /tmp/stop ]; do [ \"$(wget -q -O - http://10.0.2.1:8000/sent | sha256sum)\" = \"$(cat /tmp/sent)\" ] && \
        n=$((n+1)) && count net $n; done",
    "n=0; while sleep 0.05 && [ ! -e /tmp/stop ]; do n=$((n+1)); count timer $n; done",
    "n=0; while [ ! -e /tmp/stop ]; do n=$((n+1)); [ $((n % 1000)) = 0 ] && count cpu $n; done",
    "n=0; while [ ! -e /tmp/stop ] && dd if=/dev/hwrng of=/dev/null bs=64 count=4 2>/dev/null; do n=$((n+1)); count rng $n; sleep 0.1; done",
    "n=0; while sleep 0.2 && [ ! -e /tmp/stop ]; do n=$((n+1)); echo \"noise $n\"; done",
];
const COUNTERS: [&str; 6] = ["disk", "net", "timer", "cpu", "rng", "scsi"];

/// The RAM of the VM in `/proc/PID/mem`, which is the mapping that asked for huge pages.
const RAM: &str = "pid=$(pidof vmm); \
    range=$(awk '/^[0-9a-f]+-[0-9a-f]+ /{range=$1} /^VmFlags:.* hg/{print range}' /proc/$pid/smaps); \
    [ $(echo $range | wc -w) = 1 ]; start=$((0x${range%-*})); end=$((0x${range#*-})); \
    dd if=/proc/$pid/mem bs=2M skip=$((start / 2097152)) count=$(((end - start) / 2097152)) 2>/dev/null | md5sum";

fn hashes(host: &Host) -> Result<String, HostError> {
    let line = format!("({RAM}); md5sum /tmp/disk /tmp/scsi");
    Ok(host.shell(&line).deadline(LONG).run()?.ok())
}

/// The output of a line in a guest whose console is noisy.
#[track_caller]
fn quiet(guest: &mut Guest<'_>, line: &str) -> Result<String, HostError> {
    let text = guest.run(line, LONG)?;
    let lines = text.lines().filter(|line| !line.starts_with("noise "));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

fn counters(guest: &mut Guest<'_>) -> Result<Vec<u64>, HostError> {
    let names = COUNTERS.map(|name| format!("/tmp/{name}")).join(" ");
    let text = quiet(guest, &format!("cat {names}"))?;
    let values: Vec<_> = text.lines().map(|line| line.parse().expect("a count")).collect();
    assert_eq!(values.len(), COUNTERS.len(), "{text}");
    Ok(values)
}

/// Waits until every counter is beyond what it was.
fn wait_for_progress(guest: &mut Guest<'_>, before: &[u64]) -> Result<Vec<u64>, HostError> {
    for (name, count) in COUNTERS.iter().zip(before) {
        let wait =
            format!("until [ -e /tmp/{name} ] && [ $(cat /tmp/{name}) -gt {count} ]; do sleep 0.1; done");
        quiet(guest, &wait)?;
    }
    counters(guest)
}

fn start_load(guest: &mut Guest<'_>, sent: &str) -> Result<(), HostError> {
    guest.run("mount -t ext4 /dev/vda /mnt; ip addr add 10.0.2.2/24 dev eth0; ip link set eth0 up", LONG)?;
    guest.run(&format!("mkdir /tmp/sums; echo '{}' >/tmp/sent", sent.trim_end()), SOON)?;
    guest.run(
        "modprobe -a virtio_scsi sd_mod virtio_balloon; until [ -b /dev/sda ]; do sleep 0.1; done",
        LONG,
    )?;
    for load in LOADS {
        guest.run(&format!("{COUNT}; ({load}) &"), SOON)?;
    }
    Ok(())
}

#[test]
fn nested_a_busy_guest_is_paused_saved_and_loaded() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "pause, save and load of a busy guest";
    scenario::run(
        name,
        || Ok(host_for_guests(scratch.path())?.memory_mib(2048)),
        |host, monitor| save_and_load(host, monitor, 1),
    );
}

#[test]
fn nested_a_busy_guest_with_two_vcpus_is_paused_saved_and_loaded() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "pause, save and load of a busy guest with two vCPUs";
    scenario::run(
        name,
        || Ok(host_for_guests(scratch.path())?.memory_mib(2048)),
        |host, monitor| save_and_load(host, monitor, 2),
    );
}

fn save_and_load(host: &Host, monitor: Monitor, cpus: u32) -> Result<(), HostError> {
    let sent = host.shell(NETWORK).deadline(LONG).run()?.ok();
    host.shell(
        "rm -rf /tmp/saved /tmp/disk /tmp/scsi; truncate -s 32M /tmp/disk; truncate -s 1M /tmp/scsi; mke2fs -q -t ext4 /tmp/disk",
    )
    .run()?
    .ok();
    let mut server =
        host.command("busybox").args(["httpd", "-f", "-p", "10.0.2.1:8000", "-h", "/tmp/www"]).spawn()?;
    let config = GuestConfig {
        cpus,
        memory_mib: 128,
        disks: vec!["/tmp/disk".into()],
        disk_queues: cpus,
        drives: vec![Drive { path: "/tmp/scsi".into(), bus: "scsi", cdrom: false }],
        balloon: true,
        tap: Some("tap0".into()),
        arguments: vec!["--save".into(), "/tmp/saved".into()],
        ..GuestConfig::default()
    };
    let mut guest = config.start(host, monitor)?;
    guest.ready()?;
    start_load(&mut guest, &sent)?;
    let mut before = wait_for_progress(&mut guest, &[1, 1, 10, 1, 1, 1])?;
    let queues = quiet(&mut guest, "ls /sys/block/vda/mq | wc -l; grep -c virtio.*-req[.] /proc/interrupts")?;
    assert_eq!(queues, format!("{cpus}\n{cpus}\n"), "queues of the disk, and their interrupts");
    if monitor == Monitor::Qemu {
        return Ok(());
    }
    let boot = quiet(&mut guest, "cat /proc/sys/kernel/random/boot_id")?;

    // Running, it changes.
    assert_ne!(hashes(host)?, hashes(host)?);
    guest.monitor().signal(SIGTSTP)?;
    guest.monitor().wait_for_stderr("the VM is paused", LONG)?;
    let first = hashes(host)?;
    for _ in 0..2 {
        assert_eq!(hashes(host)?, first, "a paused VM changes");
    }
    guest.monitor().signal(SIGCONT)?;
    guest.monitor().wait_for_stderr("the VM is resumed", SOON)?;
    before = wait_for_progress(&mut guest, &before)?;

    quiet(&mut guest, "echo write through >/sys/block/vda/cache_type")?;
    let uptime = uptime(&mut guest)?;
    guest.monitor().signal(SIGUSR2)?;
    let output = guest.wait(LONG)?;
    assert_eq!(output.status, Status::Code(SAVED), "{}\n{}", output.stdout, output.stderr);
    eprintln!(
        "saved: {}",
        host.shell("cd /tmp/saved; stat -c '%n %s bytes, %b blocks;' ram state").run()?.ok()
    );
    let load = GuestConfig { arguments: vec!["--load".into(), "/tmp/saved".into()], ..config };
    let started = std::time::Instant::now();
    guest = load.start(host, monitor)?;
    // What is typed before the VM is there is lost.
    guest.monitor().wait_for("noise ", LONG)?;
    eprintln!("loaded: went on after {:.2} s", started.elapsed().as_secs_f32());
    assert_eq!(quiet(&mut guest, "cat /proc/sys/kernel/random/boot_id")?, boot, "it has booted");
    let cache = quiet(&mut guest, "cat /sys/block/vda/cache_type")?;
    assert_eq!(cache.trim(), "write through", "the cache mode that the driver has set");
    wait_for_progress(&mut guest, &before)?;
    let later = self::uptime(&mut guest)?;
    assert!((uptime..uptime + 600.0).contains(&later), "the clock went from {uptime} to {later}");
    host.shell("ping -c 3 -i 0.2 -w 10 10.0.2.2").run()?.ok();
    check_files(&mut guest)?;
    server.signal(15)?;
    server.wait(SOON)?;
    power_off(guest)?;
    // The host's kernel finds the file system as it should be.
    host.shell("e2fsck -fn /tmp/disk >&2").deadline(LONG).run()?.ok();
    Ok(())
}

fn uptime(guest: &mut Guest<'_>) -> Result<f64, HostError> {
    let text = quiet(guest, "cat /proc/uptime")?;
    Ok(text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("an uptime"))
}

/// Every file whose checksum was noted has it, also when it is read from the disk.
fn check_files(guest: &mut Guest<'_>) -> Result<(), HostError> {
    quiet(guest, "touch /tmp/stop; sync; until umount /mnt 2>/dev/null; do sleep 0.1; done")?;
    quiet(guest, "mount -t ext4 /dev/vda /mnt")?;
    let checked = quiet(
        guest,
        "cat /tmp/sums/* >/tmp/all && sha256sum -c /tmp/all >/tmp/checked; tail -n 3 /tmp/checked; \
        wc -l </tmp/all; grep -c OK /tmp/checked",
    )?;
    let counts: Vec<_> = checked.lines().rev().take(2).map(str::trim).collect();
    assert!(counts[0] == counts[1] && counts[0] != "0", "{checked}");
    quiet(guest, "umount /mnt; dmesg | grep -iE 'error|stall|lockup|hung' || true").map(|log| {
        assert!(log.trim().is_empty(), "{log}");
    })
}

#[test]
fn nested_a_guest_with_a_display_and_sata_drives_is_saved_and_loaded() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "save and load of displays, input and SATA drives";
    scenario::run(
        name,
        || display::host(scratch.path()),
        |host, monitor| {
            [Video::Bochs, Video::Virtio]
                .into_iter()
                .try_for_each(|video| display_and_drives(host, monitor, video))
        },
    );
}

/// What is on the display is there again, and what is typed, pointed at, written and read arrives.
fn display_and_drives(host: &Host, monitor: Monitor, video: Video) -> Result<(), HostError> {
    host.shell(&format!("rm -rf /tmp/saved /tmp/disk {SOCKET}; truncate -s 8M /tmp/disk")).run()?.ok();
    let drive = |cdrom| Drive { path: "/tmp/disk".into(), bus: "sata", cdrom };
    let config = GuestConfig {
        kernel: Flavour::Full,
        vnc: Some(SOCKET.into()),
        video,
        drives: vec![drive(false)],
        command_line: "vt.global_cursor_default=0".into(),
        arguments: vec!["--save".into(), "/tmp/saved".into()],
        ..GuestConfig::default()
    };
    let mut guest = config.start(host, monitor)?;
    guest.ready()?;
    guest.run("modprobe -a ahci sd_mod; until [ -b /dev/sda ]; do sleep 0.1; done", LONG)?;
    if video == Video::Virtio {
        guest.run("modprobe virtio_gpu", LONG)?;
    }
    guest.run(&display::stripes(), LONG)?;
    display::check_stripes(&display::look(host, "before-save", &[])?);
    let write = "echo kept | dd of=/dev/sda bs=512 conv=sync,fsync 2>/dev/null";
    guest.run(&format!("(head -n 1 /dev/tty1 >/tmp/typed) & {write}"), SOON)?;
    if monitor == Monitor::Qemu {
        return power_off(guest);
    }
    guest.monitor().signal(SIGUSR2)?;
    let output = guest.wait(LONG)?;
    assert_eq!(output.status, Status::Code(SAVED), "{}\n{}", output.stdout, output.stderr);
    host.shell(&format!("rm -f {SOCKET}; grep -q kept /tmp/disk")).run()?.ok();

    let load = GuestConfig { arguments: vec!["--load".into(), "/tmp/saved".into()], ..config };
    let mut guest = load.start(host, monitor)?;
    host.shell(&format!("until [ -S {SOCKET} ]; do sleep 0.1; done")).deadline(LONG).run()?.ok();
    let mut picture = display::look(host, "after-load", &[])?;
    // A display of virtio has this size before its state is loaded, too, but is black.
    eventually("its state is loaded", LONG, || {
        picture = display::look(host, "after-load", &[])?;
        Ok(picture.width == 1024 && picture.lit(0..1) > 0)
    })?;
    display::check_stripes(&picture);
    display::look(host, "typed-after-load", &["type", "Hello, World_7!\\n"])?;
    let typed = "until [ -s /tmp/typed ]; do sleep 0.1; done; cat /tmp/typed";
    assert_eq!(guest.run(typed, SOON)?.trim(), "Hello, World_7!");
    guest.run("echo 3 >/proc/sys/vm/drop_caches", SOON)?;
    assert_eq!(guest.run("head -c 4 /dev/sda", SOON)?.trim(), "kept");
    guest.run("echo more | dd of=/dev/sda bs=512 seek=9 conv=sync,fsync 2>/dev/null", SOON)?;
    host.shell("grep -q more /tmp/disk").run()?.ok();
    guest.run(&display::stripes(), LONG)?;
    display::check_stripes(&display::look(host, "drawn-after-load", &[])?);
    let log =
        guest.run("dmesg | grep -iE 'ata.*(error|failed|exception)|stall|lockup|hung' || true", SOON)?;
    assert_eq!(log.trim(), "");
    power_off(guest)
}

#[test]
fn nested_what_cannot_be_loaded_or_saved_has_a_reason() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "what cannot be loaded or saved";
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(1024)), reasons);
}

fn reasons(host: &Host, monitor: Monitor) -> Result<(), HostError> {
    host.shell("rm -rf /tmp/saved; rm -f /tmp/disk; truncate -s 16M /tmp/disk").run()?.ok();
    let config = GuestConfig { disks: vec!["/tmp/disk".into()], ..GuestConfig::default() };
    let save = GuestConfig { arguments: vec!["--save".into(), "/tmp/saved".into()], ..config.clone() };
    let mut guest = save.start(host, monitor)?;
    guest.ready()?;
    if monitor == Monitor::Qemu {
        return Ok(());
    }
    guest.monitor().signal(SIGUSR2)?;
    let output = guest.wait(LONG)?;
    assert_eq!(output.status, Status::Code(SAVED), "{}\n{}", output.stdout, output.stderr);

    let load = |config: GuestConfig, prepare: &str, word: &str| -> Result<(), HostError> {
        host.shell(prepare).run()?.ok();
        let config = GuestConfig { arguments: vec!["--load".into(), "/tmp/saved".into()], ..config };
        let output = config.start(host, monitor)?.wait(SOON)?;
        assert_eq!(output.status, Status::Code(FAILED), "{word}: {}", output.stderr);
        assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
        Ok(())
    };
    load(GuestConfig { cpus: 2, ..config.clone() }, "true", "vCPUs differs")?;
    load(GuestConfig { memory_mib: 512, ..config.clone() }, "true", "RAM differs")?;
    load(GuestConfig { disks: Vec::new(), ..config.clone() }, "true", "disk 1 differs")?;
    load(config.clone(), "truncate -s 15M /tmp/disk", "smaller than it was")?;
    load(
        config.clone(),
        "truncate -s 16M /tmp/disk; printf x | dd of=/tmp/saved/state bs=1 seek=999 conv=notrunc 2>/dev/null",
        "checksum",
    )?;
    load(config.clone(), "truncate -s 20 /tmp/saved/state", "not one of a VM")?;
    load(config, "rm /tmp/saved/state", "/tmp/saved/state")
}
