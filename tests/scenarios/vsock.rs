//! Guests that talk with their host by VSOCK, also through the subresource, and one on a host without it.

use std::path::Path;
use std::time::Duration;

use vireo_tests::guest::{Guest, Monitor};
use vireo_tests::{Host, HostError, Output, programs, scenario};

use crate::SOON;
use crate::scenarios::node::{host_for_a_node_with, manifest};
use crate::scenarios::standalone::{Standalone, host_with_vireo};

const DRIVER: &str = "modprobe vmw_vsock_virtio_transport";
const BOOT: Duration = Duration::from_secs(240);

fn vmi(host: &Host, name: &str) -> String {
    manifest(host, name).replace("      rng: {}\n", "      rng: {}\n      autoattachVSOCK: true\n")
}

#[test]
fn nested_guests_and_host_talk_by_vsock() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = || {
        let program = Path::new(env!("CARGO_BIN_EXE_vsock"));
        let vireo = programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
        let host = host_for_a_node_with(scratch.path(), &[program])?;
        Ok(host.file(vireo).file(program))
    };
    scenario::run("VSOCK under vireo", host, |host, monitor| match monitor {
        Monitor::Vmm => talk(host, "auto", "native"),
        Monitor::Qemu => talk(host, "qemu", "qemu"),
    });
}

fn starts<'h>(standalone: &Standalone<'h>, host: &Host, name: &str) -> Result<(Guest<'h>, u64), HostError> {
    standalone.kubectl("apply -f -", Some(&vmi(host, name)))?.ok();
    standalone.kubectl(&format!("wait --for=condition=Ready --timeout=120s vmi/{name}"), None)?.ok();
    let mut guest = standalone.console(name)?;
    guest.ready()?;
    guest.run(DRIVER, SOON)?;
    let cid = standalone.json(&format!("get vmi {name}"))?["status"]["VSOCKCID"].as_u64().unwrap_or_default();
    assert!(cid >= 3, "{cid}");
    Ok((guest, cid))
}

fn listen(guest: &mut Guest<'_>, port: u32) -> Result<(), HostError> {
    let line =
        format!("vsock listen {port} >/tmp/log & until grep -q listening /tmp/log; do sleep 0.1; done");
    guest.run(&line, SOON).map(drop)
}

/// The host says something to a guest that listens.
fn answers(host: &Host, cid: u64, port: u32) -> Result<(), HostError> {
    let send = ["send", &cid.to_string(), &port.to_string(), "hi"];
    let answer = host.command(&host.input("vsock")).args(send).run()?;
    assert_eq!(answer.ok().trim(), "HI");
    Ok(())
}

/// The subresource of the VMI `one`, by the socket of the node agent.
fn stream(host: &Host, query: &str) -> Result<Output, HostError> {
    let path = format!("/v1/namespaces/default/virtualmachineinstances/one/vsock{query}");
    let socket = host.work("state/handler.sock");
    host.command(&host.input("vsock")).args(["stream", &socket, &path, "hi"]).run()
}

fn talk(host: &Host, chosen: &'static str, runs: &str) -> Result<(), HostError> {
    host.shell("modprobe vhost_vsock").run()?.ok();
    let standalone = Standalone::start_on(host, chosen)?;
    let (mut one, first) = starts(&standalone, host, "one")?;
    standalone.runs_on("one", runs)?;
    let (mut two, second) = starts(&standalone, host, "two")?;
    assert_ne!(first, second, "each guest has an ID of its own");

    let program = host.input("vsock");
    let mut server = host.command(&program).args(["listen", "7000"]).spawn()?;
    server.wait_for("listening", SOON)?;
    assert_eq!(one.run("vsock send 2 7000 from-one", SOON)?.trim(), "FROM-ONE");
    assert_eq!(two.run("vsock send 2 7000 from-two", SOON)?.trim(), "FROM-TWO");

    for (guest, cid, port) in [(&mut one, first, 7001), (&mut two, second, 7002)] {
        listen(guest, port)?;
        answers(host, cid, port)?;
    }
    assert_eq!(stream(host, "?port=7001&tls=false")?.ok(), "HI\n");
    for (query, why) in [
        ("?port=7001", "tls: Unsupported value"),
        ("?port=0&tls=false", "port: Invalid value"),
        ("?port=7002&tls=false", "cannot connect to VSOCK port 7002 of the guest: "),
    ] {
        let refused = stream(host, query)?;
        assert!(refused.stderr.contains(why), "{query}: {}", refused.stderr);
    }
    // What one guest listens at is not the other's.
    let refused = host.command(&program).args(["send", &second.to_string(), "7001", "hi"]).run()?;
    assert!(refused.stderr.contains("vsock: "), "{}", refused.stderr);
    // Neither a pause nor a reset takes the device from its guest.
    for command in ["pause", "unpause"] {
        standalone.virtctl(&format!("{command} vmi one"))?.ok();
    }
    answers(host, first, 7001)?;
    assert_eq!(one.run("vsock send 2 7000 after-a-pause", SOON)?.trim(), "AFTER-A-PAUSE");
    standalone.virtctl("reset vmi one")?.ok();
    one.ready()?;
    one.run(DRIVER, SOON)?;
    assert_eq!(one.run("vsock send 2 7000 after-a-reset", SOON)?.trim(), "AFTER-A-RESET");
    listen(&mut one, 7003)?;
    answers(host, first, 7003)?;
    server.signal(15)?;
    server.wait(SOON)?;
    standalone.kubectl("delete vmi one two --timeout=90s", None)?.ok();
    Ok(())
}

#[test]
fn a_guest_with_vsock_does_not_start_on_a_host_without_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.deadline(BOOT).here()?;
    if Path::new("/dev/vhost-vsock").exists() {
        eprintln!("skipped: this host has /dev/vhost-vsock");
        return Ok(());
    }
    let standalone = Standalone::start(&host)?;
    standalone.kubectl("apply -f -", Some(&vmi(&host, "one")))?.ok();
    standalone.kubectl("wait --for=jsonpath='{.status.phase}'=Failed --timeout=60s vmi/one", None)?.ok();
    let status = standalone.json("get vmi one")?["status"].to_string();
    let reason = "spec.domain.devices.autoattachVSOCK requests a VSOCK device: cannot open /dev/vhost-vsock";
    assert!(status.contains(reason), "{status}");
    Ok(())
}
