//! A VirtualMachine under `vireo` with the native hypervisor: what `standalone` shows on QEMU, and what only a reset does.

use serde_json::Value;
use vireo_tests::guest::{Guest, Monitor};
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{CLAIM, DATA, Standalone, host_with_vireo, vm_with_a_claim};

#[test]
fn nested_a_vm_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "a VirtualMachine under vireo",
        || Ok(host_with_vireo(scratch.path())?.file("/usr/bin/kubectl")),
        |host, monitor| match monitor {
            Monitor::Vmm => a_vm(host, "native"),
            Monitor::Qemu => a_vm(host, "qemu"),
        },
    );
}

fn a_vm(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let mut standalone = Standalone::start_on(host, hypervisor)?;
    let both = format!("{CLAIM}---\n{}", vm_with_a_claim(host));
    standalone.kubectl("apply -f -", Some(&both))?.ok();
    standalone.virtctl("start two --paused")?.ok();
    standalone.printable("two", "Paused")?;
    let vmi = standalone.json("get vmi two")?;
    assert!(vmi.to_string().contains(&format!("\"{hypervisor}\"")), "not on {hypervisor}: {vmi:#}");
    standalone.virtctl("unpause vm two")?.ok();

    let mut guest = standalone.console("two")?;
    let mut boot = guest.ready()?.boot_id;
    guest.run(&format!("{DATA}; echo kept >$data; sync"), SOON)?;
    grows(&standalone, &mut guest)?;
    for command in ["reset vmi two", "soft-reboot vm two"] {
        standalone.virtctl(command)?.ok();
        let again = guest.ready()?.boot_id;
        assert_ne!(again, boot, "{command}: it has started again");
        boot = again;
        keeps_its_disk(&mut guest)?;
    }
    let uid = vmi["metadata"]["uid"].as_str().unwrap_or_default();
    assert_eq!(standalone.uid("two")?, uid, "it is the same instance");

    standalone.lose()?;
    let mut guest = standalone.console("two")?;
    guest.ready()?;
    let same = guest.run("cat /proc/sys/kernel/random/boot_id", SOON)?;
    assert_eq!(same.trim(), boot, "no guest ends with its handler");
    standalone.virtctl("restart two")?.ok();
    standalone.another_runs("two", uid)?;
    let mut guest = standalone.console("two")?;
    guest.ready()?;
    keeps_its_disk(&mut guest)?;
    standalone.virtctl("stop two")?.ok();
    standalone.printable("two", "Stopped")?;
    standalone.kubectl("delete vm/two pvc/data --timeout=60s", None)?.ok();
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}

/// The claim is expanded while the guest runs, which uses what came with it.
fn grows(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    let expand = r#"'{"spec":{"resources":{"requests":{"storage":"3Mi"}}}}'"#;
    standalone.kubectl(&format!("patch pvc data -p {expand}"), None)?.ok();
    let wait = "until [ $(cat /sys/block/${data#/dev/}/size) = 6144 ]; do sleep 0.1; done";
    guest.run(&format!("{DATA}; {wait}"), SOON)?;
    let log = guest.run("dmesg | grep 'detected capacity change'", SOON)?;
    assert!(log.contains("from 2048 to 6144"), "{log}");
    let last = "seek=6143 count=1 oflag=direct";
    guest.run(&format!("{DATA}; dd if=$data of=$data {last} 2>/dev/null"), SOON)?;
    let read = guest.run(&format!("{DATA}; dd if=$data skip=6143 2>/dev/null | head -n1"), SOON)?;
    assert_eq!(read.trim(), "kept");
    Ok(())
}

fn keeps_its_disk(guest: &mut Guest<'_>) -> Result<(), HostError> {
    assert_eq!(guest.run(&format!("{DATA}; head -n1 $data"), SOON)?.trim(), "kept");
    Ok(())
}

#[test]
fn nested_nics_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "queues and links of NICs",
        || Ok(host_with_vireo(scratch.path())?.file("/usr/bin/kubectl")),
        |host, monitor| {
            host.shell("modprobe vhost_net").run()?.ok();
            match monitor {
                Monitor::Vmm => nics(host, "native"),
                Monitor::Qemu => nics(host, "qemu"),
            }
        },
    );
}

#[test]
fn nics_on_qemu() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    nics(&host, "qemu")
}

/// One has a queue pair for each vCPU, also after a pause, and queues of its disks; one has no link.
fn nics(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    const PING: &str = "ping -c 3 -i 0.2 -w 10 10.0.2.1";
    // Through the queues of both vCPUs.
    const WRITE: &str = "for cpu in 0 1; do taskset $((1 << cpu)) dd if=/dev/urandom of=/tmp/$cpu bs=64k count=4 2>/dev/null && \
        taskset $((1 << cpu)) dd if=/tmp/$cpu of=/dev/vda bs=64k seek=$((cpu * 4)) oflag=direct 2>/dev/null && \
        taskset $((2 >> cpu)) dd if=/dev/vda bs=64k count=4 skip=$((cpu * 4)) iflag=direct 2>/dev/null | cmp - /tmp/$cpu || exit 1; done";
    let standalone = Standalone::start_on(host, hypervisor)?;
    let several = manifest(host, "one").replace("cores: 1", "cores: 2").replace(
        "      rng: {}",
        "      networkInterfaceMultiqueue: true\n      blockMultiQueue: true\n      rng: {}",
    );
    standalone.kubectl("apply -f -", Some(&several))?.ok();
    standalone.becomes_ready("vmi/one")?;
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    assert_eq!(guest.run("ls -d /sys/class/net/eth0/queues/rx-* | wc -l", SOON)?.trim(), "2");
    assert_eq!(guest.run("ls /sys/block/vda/mq | wc -l", SOON)?.trim(), "2");
    guest.run(WRITE, SOON)?;
    guest.run(&format!("udhcpc -i eth0 -n -q -f && {PING}"), SOON)?;
    assert_eq!(nic(&standalone, "one")?, ("up".into(), 2.into()));
    standalone.virtctl("pause vmi one")?.ok();
    standalone.virtctl("unpause vmi one")?.ok();
    guest.run(&format!("{PING} && {WRITE}"), SOON)?;
    standalone.virtctl("reset vmi one")?.ok();
    guest.ready()?;
    guest.run(&format!("udhcpc -i eth0 -n -q -f && {PING}"), SOON)?;
    standalone.kubectl("delete vmi one --timeout=60s", None)?.ok();

    let mute = manifest(host, "mute").replace("masquerade: {}", "masquerade: {}\n        state: down");
    standalone.kubectl("apply -f -", Some(&mute))?.ok();
    standalone.becomes_ready("vmi/mute")?;
    let mut guest = standalone.console("mute")?;
    guest.ready()?;
    assert_eq!(guest.run("ip link set eth0 up; cat /sys/class/net/eth0/carrier", SOON)?.trim(), "0");
    assert_eq!(nic(&standalone, "mute")?, ("down".into(), 1.into()));
    standalone.kubectl("delete vmi mute --timeout=60s", None)?.ok();
    Ok(())
}

/// The link and the queues of an instance's NIC, as the status shows them.
fn nic(standalone: &Standalone<'_>, name: &str) -> Result<(Value, Value), HostError> {
    let vmi = standalone.json(&format!("get vmi {name}"))?;
    let nic = &vmi["status"]["interfaces"][0];
    Ok((nic["linkState"].clone(), nic["queueCount"].clone()))
}
