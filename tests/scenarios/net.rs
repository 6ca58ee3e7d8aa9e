//! A guest on a tap: it answers, and bytes arrive as they were sent.

use std::time::Duration;

use vireo_tests::guest::{GuestConfig, Monitor};
use vireo_tests::{Host, HostError, scenario};

use crate::{SOON, host_for_guests, power_off};

const LONG: Duration = Duration::from_secs(120);

#[test]
fn nested_ping_and_100_mb_both_ways() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "ping and 100 MB both ways through virtio-net";
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(2048)), both_ways);
}

fn both_ways(host: &Host, monitor: Monitor) -> Result<(), HostError> {
    let setup = "ip link del tap0 2>/dev/null || true; ip tuntap add tap0 mode tap vnet_hdr; \
        ip addr add 10.0.2.1/24 dev tap0; ip link set tap0 up; \
        mkdir -p /tmp/www; cd /tmp/www; head -c 104857600 /dev/urandom >sent; sha256sum <sent >sum; cat sum";
    let sent = host.shell(setup).deadline(LONG).run()?.ok();
    let mut server =
        host.command("busybox").args(["httpd", "-f", "-p", "10.0.2.1:8000", "-h", "/tmp/www"]).spawn()?;

    let config = GuestConfig { memory_mib: 512, tap: Some("tap0".into()), ..GuestConfig::default() };
    let mut guest = config.start(host, monitor)?;
    guest.ready()?;
    guest.run("ip addr add 10.0.2.2/24 dev eth0; ip link set eth0 up", SOON)?;
    guest.run("ping -c 5 -i 0.2 -w 10 10.0.2.1", SOON)?;
    host.shell("ping -c 5 -i 0.2 -w 10 10.0.2.2").run()?.ok();
    // Fragments and padding: sizes around what one frame holds.
    guest.run("for size in 1 17 1472 1473 8000; do ping -c 1 -w 10 -s $size 10.0.2.1 || exit; done", SOON)?;

    guest.run("cd /tmp && wget -q -O got http://10.0.2.1:8000/sent", LONG)?;
    assert_eq!(guest.run("sha256sum </tmp/got", LONG)?, sent, "host to guest");
    guest.run("cd /tmp && httpd -p 8000 -h /tmp", SOON)?;
    let fetch = "curl -sS --fail --max-time 110 http://10.0.2.2:8000/got | sha256sum";
    assert_eq!(host.shell(fetch).deadline(LONG).run()?.ok(), sent, "guest to host");

    let errors = guest
        .run("cat /sys/class/net/eth0/statistics/rx_errors /sys/class/net/eth0/statistics/tx_errors", SOON)?;
    assert_eq!(errors, "0\n0\n", "errors on the NIC");
    server.signal(15)?;
    server.wait(SOON)?;
    power_off(guest)
}

#[test]
fn nested_queue_pairs_carry_traffic() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "two vCPUs with a queue pair each";
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(2048)), queue_pairs);
}

/// Interrupts of each queue's messages so far, by its name: `input.0`, `output.0`, …
const INTERRUPTS: &str = "awk '/virtio[0-9]+-(in|out)put/ { n = $2 + $3; sub(/.*virtio[0-9]+-/, \"\"); print $0, n }' /proc/interrupts";

fn queue_pairs(host: &Host, monitor: Monitor) -> Result<(), HostError> {
    let setup = "ip link del tap0 2>/dev/null || true; ip tuntap add tap0 mode tap vnet_hdr multi_queue; \
        ip addr add 10.0.2.1/24 dev tap0; ip link set tap0 up; \
        mkdir -p /tmp/www; cd /tmp/www; head -c 4194304 /dev/urandom >sent; sha256sum <sent";
    let sent = host.shell(setup).deadline(LONG).run()?.ok();
    let mut server =
        host.command("busybox").args(["httpd", "-f", "-p", "10.0.2.1:8000", "-h", "/tmp/www"]).spawn()?;
    let config = GuestConfig {
        memory_mib: 512,
        cpus: 2,
        tap: Some("tap0".into()),
        queue_pairs: 2,
        ..GuestConfig::default()
    };
    let mut guest = config.start(host, monitor)?;
    guest.ready()?;
    guest.run("ip addr add 10.0.2.2/24 dev eth0; ip link set eth0 up", SOON)?;
    let queues = guest.run("ls -d /sys/class/net/eth0/queues/[rt]x-* | sort", SOON)?;
    let names: Vec<_> = queues.lines().filter_map(|line| line.rsplit('/').next()).collect();
    assert_eq!(names, ["rx-0", "rx-1", "tx-0", "tx-1"]);

    // A flow is on the queue that its hash, or the guest's vCPU, chooses: some of these are on each.
    let fetch = "for cpu in 1 2; do for n in 1 2 3 4 5 6 7 8; do \
        [ \"$(taskset $cpu wget -q -O - http://10.0.2.1:8000/sent | sha256sum)\" = \"$(cat /tmp/sum)\" ] || exit 1; \
        done; done";
    guest.run(&format!("printf '%s' '{}' >/tmp/sum", sent.trim_end()), SOON)?;
    guest.run(fetch, LONG)?;
    let interrupts = guest.run(INTERRUPTS, SOON)?;
    for queue in ["input.0", "input.1"] {
        let line = interrupts.lines().find(|line| line.starts_with(queue)).unwrap_or_default();
        let count: u64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
        assert!(count > 0, "{queue} carried nothing:\n{interrupts}");
    }
    server.signal(15)?;
    server.wait(SOON)?;
    power_off(guest)
}

#[test]
fn nested_the_kernel_moves_the_queues() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = "vhost-net through two queue pairs, across resets";
    scenario::run(name, || Ok(host_for_guests(scratch.path())?.memory_mib(2048)), offloaded);
}

/// The pairs of queues that the kernel moves.
fn vhost_threads(host: &Host) -> Result<String, HostError> {
    let count = "cat /proc/[0-9]*/task/[0-9]*/comm | grep -c ^vhost- || true";
    Ok(host.shell(count).run()?.ok().trim().to_owned())
}

fn offloaded(host: &Host, monitor: Monitor) -> Result<(), HostError> {
    let setup = "modprobe vhost_net; ip link del tap0 2>/dev/null || true; \
        ip tuntap add tap0 mode tap vnet_hdr multi_queue; \
        ip addr add 10.0.2.1/24 dev tap0; ip link set tap0 up; \
        mkdir -p /tmp/www; cd /tmp/www; head -c 16777216 /dev/urandom >sent; sha256sum <sent";
    let sent = host.shell(setup).deadline(LONG).run()?.ok();
    let mut server =
        host.command("busybox").args(["httpd", "-f", "-p", "10.0.2.1:8000", "-h", "/tmp/www"]).spawn()?;
    let config = GuestConfig {
        memory_mib: 512,
        cpus: 2,
        tap: Some("tap0".into()),
        queue_pairs: 2,
        vhost: true,
        ..GuestConfig::default()
    };
    let mut guest = config.start(host, monitor)?;
    for _ in 0..2 {
        guest.ready()?;
        for again in [false, true] {
            if again {
                // Resets the device, and starts it again.
                guest.run("cd /sys/bus/virtio/drivers/virtio_net; d=$(ls -d virtio*); echo $d >unbind; echo $d >bind", SOON)?;
            }
            guest.run("ip addr add 10.0.2.2/24 dev eth0; ip link set eth0 up", SOON)?;
            guest.run("ping -c 3 -i 0.2 -w 10 10.0.2.1", SOON)?;
            guest.run("cd /tmp && wget -q -O got http://10.0.2.1:8000/sent", LONG)?;
            assert_eq!(guest.run("sha256sum </tmp/got", LONG)?, sent, "host to guest");
        }
        guest.run("cd /tmp && httpd -p 8000 -h /tmp", SOON)?;
        let fetch = "curl -sS --fail --max-time 110 http://10.0.2.2:8000/got | sha256sum";
        assert_eq!(host.shell(fetch).deadline(LONG).run()?.ok(), sent, "guest to host");
        assert_eq!(vhost_threads(host)?, "2");
        guest.send("reboot -f")?;
    }
    guest.ready()?;
    server.signal(15)?;
    server.wait(SOON)?;
    power_off(guest)
}
