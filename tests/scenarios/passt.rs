//! The binding `passtBinding`: a guest has the addresses of its Pod, and reaches and is reached through sockets of a process.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostBuilder, HostError, Image, Status, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

const BINDING: &str = "passtBinding: {}
        ports:
        - {name: web, port: 8080}
        - {name: names, port: 5353, protocol: UDP}";
const PROBE: &str = "spec:
  readinessProbe:
    httpGet: {path: /file, port: web}
    periodSeconds: 1";
const BOOT: Duration = Duration::from_secs(120);
/// A nested host with all that happens in it.
const HOST: Duration = Duration::from_secs(540);
/// Where Debian has it.
const PASST: &str = "/usr/bin/passt";
/// More bytes than sockets and queues hold.
const LARGE: &str = "seq 300000";
/// A host beyond this one, which serves a file.
const OUTSIDE: &str = "192.0.2.2";

#[test]
fn a_guest_uses_the_network_by_passt_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    use_passt(&host(scratch.path())?.here()?, "qemu")
}

#[test]
fn nested_a_guest_uses_the_network_by_passt_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "passt under vireo",
        || Ok(host(scratch.path())?.file(PASST).deadline(HOST)),
        |host, monitor| {
            // Where the node agent looks for it.
            host.shell(&format!("install -D {} {PASST}", host.input("passt"))).run()?.ok();
            use_passt(host, monitor.hypervisor())
        },
    );
}

fn host(scratch: &Path) -> Result<HostBuilder, HostError> {
    Ok(host_with_vireo(scratch)?.file(Image::get()?.busybox()))
}

fn use_passt(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let mut standalone = Standalone::start_on(host, hypervisor)?;
    let one = manifest(host, "one").replace("masquerade: {}", BINDING).replacen("spec:", PROBE, 1);
    standalone.kubectl("apply -f -", Some(&one))?.ok();
    let mut vmi = Value::Null;
    let runs = eventually("the VMI runs", BOOT, || {
        vmi = standalone.json("get vmi one")?;
        Ok(vmi["status"]["phase"] == "Running")
    });
    assert!(runs.is_ok(), "{:#}\n{}", vmi["status"], standalone.log());
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    standalone.runs_on("one", hypervisor)?;
    let vmi = standalone.json("get vmi one")?;
    let address = vmi["status"]["interfaces"][0]["ipAddress"].as_str().unwrap_or_default().to_owned();
    assert!(!is_ready(&vmi), "nothing serves in the guest: {vmi}");

    guest.run("udhcpc -i eth0 -n -q -f >/tmp/udhcpc 2>&1 || { cat /tmp/udhcpc; false; }", SOON)?;
    let lease = guest.run("cat /tmp/lease", SOON)?;
    assert!(lease.contains(&format!("ip={address}/30 router=")), "the guest has the VMI's address: {lease}");
    reaches_what_is_outside(host, &mut guest)?;
    guest.run("mkdir -p /tmp/www; echo from the guest >/tmp/www/file; httpd -p 8080 -h /tmp/www", SOON)?;
    guest.run(&format!("httpd -p 8081 -h /tmp/www; {LARGE} >/tmp/www/large"), SOON)?;
    eventually("the probe finds the server", SOON, || Ok(is_ready(&standalone.json("get vmi one")?)))?;
    is_reached(host, &address)?;
    is_of_its_vm(host, &vmi)?;

    // The guest does not notice that the node agent is another one.
    standalone.lose()?;
    let get = format!("curl -sS --fail --max-time 20 http://{address}:8080/file");
    assert_eq!(host.shell(&get).run()?.ok(), "from the guest\n");

    // Without it the guest has no network, and runs.
    host.shell("kill -9 $(pidof passt)").run()?.ok();
    eventually("the guest is not reached", SOON, || Ok(host.shell(&get).run()?.status != Status::Code(0)))?;
    guest.run("true", SOON)?;
    if hypervisor == "native" {
        assert_eq!(guest.run("cat /sys/class/net/eth0/carrier", SOON)?.trim(), "0", "the link of its NIC");
    }
    standalone.kubectl("delete vmi one --timeout=60s", None)?.ok();

    let two = manifest(host, "two").replace("masquerade: {}", BINDING);
    standalone.kubectl("apply -f -", Some(&two))?.ok();
    standalone.becomes_ready("vmi/two")?;
    assert_ne!(host.shell("pidof passt").run()?.stdout, "");
    standalone.kubectl("delete vmi two --timeout=60s", None)?.ok();
    eventually("passt ends with its VM", SOON, || Ok(host.shell("pidof passt").run()?.stdout.is_empty()))
}

fn is_ready(vmi: &Value) -> bool {
    let mut conditions = vmi["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// By ICMP, and by TCP over the host.
fn reaches_what_is_outside(host: &Host, guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.run("ping -c 3 -i 0.2 -w 10 $(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p')", SOON)?;
    let lines = [
        "ip netns add outside",
        "ip link add outside0 type veth peer name eth0 netns outside",
        "ip addr add 192.0.2.1/30 dev outside0 && ip link set outside0 up",
        &format!("ip -n outside addr add {OUTSIDE}/30 dev eth0 && ip -n outside link set eth0 up"),
    ];
    host.shell(&lines.join(" && ")).run()?.ok();
    let directory = host.work("outside");
    host.shell(&format!("mkdir {directory} && echo from outside >{directory}/file")).run()?.ok();
    let serve = format!("{} httpd -f -p 8000 -h {directory}", host.input("busybox"));
    let mut server = host.shell(&format!("exec ip netns exec outside {serve}")).spawn()?;
    // Debian's wget of busybox crashes on the address, and passt of Debian 12 may not end a connection whose guest has ended its side
    // before the server does.
    let get = format!("{{ printf 'GET /file HTTP/1.0\\r\\n\\r\\n'; sleep 1; }} | nc -w 5 {OUTSIDE} 8000");
    let here = format!("curl -sS --fail --max-time 5 http://{OUTSIDE}:8000/file");
    eventually("the host outside serves", SOON, || Ok(host.shell(&here).run()?.status == Status::Code(0)))?;
    guest.run(&format!("{get} | grep 'from outside'"), SOON)?;
    server.signal(9)?;
    server.wait(SOON)?;
    host.shell("ip netns delete outside").run()?.ok();
    Ok(())
}

/// The digest of what [`LARGE`] prints, as `sha256sum` has it.
fn large(host: &Host) -> Result<String, HostError> {
    Ok(host.shell(&format!("{LARGE} | sha256sum")).run()?.ok())
}

/// At the ports that are listed, and at no others.
fn is_reached(host: &Host, address: &str) -> Result<(), HostError> {
    let get =
        |port: u16| host.shell(&format!("curl -sS --fail --max-time 20 http://{address}:{port}/file")).run();
    assert_eq!(get(8080)?.ok(), "from the guest\n");
    assert_ne!(get(8081)?.status, Status::Code(0), "a port that is not listed");
    let fetch = format!("curl -sS --fail --max-time 50 http://{address}:8080/large | sha256sum");
    assert_eq!(host.shell(&fetch).run()?.ok(), large(host)?, "from the guest");
    // Guests here have no program that waits for datagrams.
    let sockets = host.shell("nsenter -t $(pidof passt) -n ss -lunH").run()?.ok();
    assert!(sockets.contains(":5353 "), "{sockets}");
    Ok(())
}

/// It has the user of the launcher, and counts in its cgroup.
fn is_of_its_vm(host: &Host, vmi: &Value) -> Result<(), HostError> {
    let user = |program: &str| -> Result<String, HostError> {
        let line =
            format!("sed -n 's/^Uid:\\t[0-9]*\\t\\([0-9]*\\)\\t.*/\\1/p' /proc/$(pidof {program})/status");
        Ok(host.shell(&line).run()?.ok().trim().to_owned())
    };
    let (passt, launcher) = (user("passt")?, user("virt-launcher")?);
    assert_eq!(passt, launcher, "the user of passt");
    assert_ne!(passt, "0");
    let uid = vmi["metadata"]["uid"].as_str().unwrap_or_default();
    let cgroups = host.shell("cat /proc/$(pidof passt)/cgroup").run()?.ok();
    assert!(cgroups.contains(uid), "{cgroups}");
    Ok(())
}
