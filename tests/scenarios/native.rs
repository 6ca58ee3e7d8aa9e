//! A VirtualMachine under `vireo` with the native hypervisor: what `standalone` shows on QEMU, and what only a reset does.

use std::time::Duration;

use serde_json::{Value, json};
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{CLAIM, DATA, Standalone, host_with_vireo, vm_of, vm_with_a_claim};

const PING: &str = "ping -c 3 -i 0.2 -w 10 10.0.2.1";

/// For hosts with several guests, one after the other.
const HOST: Duration = Duration::from_secs(550);

#[test]
fn nested_a_vm_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "a VirtualMachine under vireo",
        || host_with_vireo(scratch.path()),
        |host, monitor| a_vm(host, monitor.hypervisor()),
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
        || Ok(host_with_vireo(scratch.path())?.deadline(HOST)),
        |host, monitor| {
            host.shell("modprobe vhost_net").run()?.ok();
            nics(host, monitor.hypervisor())
        },
    );
}

#[test]
fn nics_on_qemu() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    nics(&host, "qemu")
}

/// What the DHCP client of a NIC receives beside the address, and how that of busybox names it.
const DHCP_OPTIONS: &str = "dhcpOptions: {bootFileName: boot/vireo.efi, tftpServerName: 192.0.2.66, ntpServers: [192.0.2.123, 192.0.2.124], \
    privateOptions: [{option: 224, value: first}, {option: 254, value: last}]}";
const AS_RECEIVED: &str = "bootfile=boot/vireo.efi\nntpsrv=192.0.2.123 192.0.2.124\nopt224=6669727374\nopt254=6c617374\nsiaddr=192.0.2.66\ntftp=192.0.2.66";

/// One has a queue pair for each vCPU, also after a pause, and queues of its disks, one of which has large blocks; one has no
/// link.
fn nics(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    // Through the queues of both vCPUs.
    const WRITE: &str = "for cpu in 0 1; do taskset $((1 << cpu)) dd if=/dev/urandom of=/tmp/$cpu bs=64k count=4 2>/dev/null && \
        taskset $((1 << cpu)) dd if=/tmp/$cpu of=/dev/vda bs=64k seek=$((cpu * 4)) oflag=direct 2>/dev/null && \
        taskset $((2 >> cpu)) dd if=/dev/vda bs=64k count=4 skip=$((cpu * 4)) iflag=direct 2>/dev/null | cmp - /tmp/$cpu || exit 1; done";
    const DISK: &str = "      - name: blocks
        blockSize: {custom: {logical: 4096, physical: 8192}}
        disk: {bus: virtio}
      interfaces:
";
    const BLOCKS: &str = "cat /sys/block/vdb/queue/logical_block_size /sys/block/vdb/queue/physical_block_size; \
        ls /sys/block/vdb/mq | wc -l; dd if=/tmp/0 of=/dev/vdb bs=64k oflag=direct 2>/dev/null && \
        dd if=/dev/vdb bs=4k count=64 iflag=direct 2>/dev/null | cmp - /tmp/0 && echo whole";
    let standalone = Standalone::start_on(host, hypervisor)?;
    let several = manifest(host, "one").replace("cores: 1", "cores: 2").replace(
        "      rng: {}",
        "      networkInterfaceMultiqueue: true\n      blockMultiQueue: true\n      rng: {}",
    );
    let several =
        several.replace("      interfaces:\n", DISK) + "  - {name: blocks, emptyDisk: {capacity: 16Mi}}\n";
    let several = several.replace("masquerade: {}", &format!("masquerade: {{}}\n        {DHCP_OPTIONS}"));
    // Of the nested host, which has no other use for them; the scenario `huge_pages` has those of this host.
    let huge = (hypervisor == "native").then_some(128);
    let several = match huge {
        Some(pages) => {
            let reserve =
                format!("echo 1 >/proc/sys/vm/compact_memory; echo {pages} >/proc/sys/vm/nr_hugepages");
            host.shell(&reserve).run()?.ok();
            assert_eq!(free_huge_pages(host)?, pages, "reserved");
            several.replace("      guest: 256Mi\n", "      guest: 256Mi\n      hugepages: {pageSize: 2Mi}\n")
        }
        None => several,
    };
    standalone.kubectl("apply -f -", Some(&several))?.ok();
    standalone.becomes_ready("vmi/one")?;
    if huge.is_some() {
        // Two files, between which a page may go to the guest.
        eventually("the guest has all huge pages", SOON, || Ok(free_huge_pages(host)? == 0))?;
    }
    let has_vhost = host.shell("[ -e /dev/vhost-net ] && echo yes || :").run()?.ok().trim() == "yes";
    let shown = standalone.json("get vmi one")?["status"]["conditions"].to_string();
    assert_eq!(shown.contains("vhost-net moves the queues of the NICs default"), has_vhost, "{shown}");
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    assert_eq!(guest.run("ls -d /sys/class/net/eth0/queues/rx-* | wc -l", SOON)?.trim(), "2");
    assert_eq!(guest.run("ls /sys/block/vda/mq | wc -l", SOON)?.trim(), "2");
    guest.run(WRITE, SOON)?;
    assert_eq!(guest.run(BLOCKS, SOON)?, "4096\n8192\n2\nwhole\n");
    receives_its_options(&mut guest)?;
    guest.run(&format!("udhcpc -i eth0 -n -q -f && {PING}"), SOON)?;
    assert_eq!(nic(&standalone, "one")?, ("up".into(), 2.into()));
    standalone.virtctl("pause vmi one")?.ok();
    standalone.virtctl("unpause vmi one")?.ok();
    guest.run(&format!("{PING} && {WRITE}"), SOON)?;
    standalone.virtctl("reset vmi one")?.ok();
    guest.ready()?;
    guest.run(&format!("udhcpc -i eth0 -n -q -f && {PING}"), SOON)?;
    standalone.kubectl("delete vmi one --timeout=60s", None)?.ok();
    if let Some(pages) = huge {
        eventually("no guest has huge pages", SOON, || Ok(free_huge_pages(host)? == pages))?;
        host.shell("echo 0 >/proc/sys/vm/nr_hugepages").run()?.ok();
    }

    let mute = manifest(host, "mute").replace("masquerade: {}", "masquerade: {}\n        state: down");
    standalone.kubectl("apply -f -", Some(&vm_of(&mute, "mute", "Always")))?.ok();
    standalone.becomes_ready("vm/mute")?;
    let mut guest = standalone.console("mute")?;
    guest.ready()?;
    assert_eq!(guest.run("ip link set eth0 up; cat /sys/class/net/eth0/carrier", SOON)?.trim(), "0");
    assert_eq!(nic(&standalone, "mute")?, ("down".into(), 1.into()));
    for (state, carrier) in [("up", 1), ("down", 0), ("up", 1)] {
        switch_link(&standalone, "mute", state)?;
        let wait = format!("until [ $(cat /sys/class/net/eth0/carrier) = {carrier} ]; do sleep 0.1; done");
        guest.run(&wait, SOON)?;
        eventually("the status shows the link", SOON, || Ok(nic(&standalone, "mute")?.0 == state))?;
    }
    guest.run(&format!("udhcpc -i eth0 -n -q -f && {PING}"), SOON)?;
    // A link stays as it was switched across a reset.
    switch_link(&standalone, "mute", "down")?;
    guest.run("until [ $(cat /sys/class/net/eth0/carrier) = 0 ]; do sleep 0.1; done", SOON)?;
    standalone.virtctl("reset vmi mute")?.ok();
    guest.ready()?;
    assert_eq!(guest.run("ip link set eth0 up; cat /sys/class/net/eth0/carrier", SOON)?.trim(), "0");
    let conditions = standalone.json("get vm mute")?["status"]["conditions"].to_string();
    assert!(!conditions.contains("RestartRequired"), "{conditions}");
    switch_link(&standalone, "mute", "up")?;
    guest.run(&format!("udhcpc -i eth0 -n -q -f && {PING}"), SOON)?;
    loses_its_tap(&standalone, &mut guest)
}

/// A DHCP client runs a program with what the server has sent.
fn receives_its_options(guest: &mut Guest<'_>) -> Result<(), HostError> {
    let script = "printf '#!/bin/sh\\n[ $1 != bound ] || env >/tmp/bound\\n' >/tmp/script; chmod +x /tmp/script; ip link set eth0 up";
    guest.run(script, SOON)?;
    guest.run("udhcpc -i eth0 -n -q -f -s /tmp/script -O bootfile -O tftp -O ntpsrv", SOON)?;
    let received =
        guest.run("grep -E '^(bootfile|tftp|siaddr|ntpsrv|opt2[0-9]+)=' /tmp/bound | sort", SOON)?;
    assert_eq!(received.trim(), AS_RECEIVED);
    Ok(())
}

/// An administrator deletes the tap of a guest: it has no network any more, and everything else. A restart gives it another one.
fn loses_its_tap(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    let uid = standalone.uid("mute")?;
    // That of the only VM.
    let delete = "set -e; ns=$(ip netns list | cut -d' ' -f1); tap=$(ip -n $ns -o link show type tun | cut -d: -f2); \
        ip -n $ns link del $tap; ip -n $ns -o link show type tun | wc -l";
    assert_eq!(standalone.shell(delete)?.trim(), "0");
    // More frames than its queues have room for are no reason to wait.
    guest.run("! ping -q -c 600 -i 0.005 -w 10 10.0.2.1", SOON)?;
    guest.run("dd if=/dev/urandom of=/tmp/0 bs=64k count=4 2>/dev/null && dd if=/tmp/0 of=/dev/vda bs=64k oflag=direct", SOON)?;
    assert_eq!(standalone.uid("mute")?, uid);
    standalone.printable("mute", "Running")?;
    standalone.virtctl("restart mute")?.ok();
    standalone.another_runs("mute", &uid)?;
    let mut guest = standalone.console("mute")?;
    guest.ready()?;
    guest.run(&format!("ip link set eth0 up; udhcpc -i eth0 -n -q -f && {PING}"), SOON)?;
    standalone.kubectl("delete vm mute --timeout=60s", None)?.ok();
    assert_eq!(standalone.shell("ip netns list | wc -l")?.trim(), "0");
    Ok(())
}

/// Huge pages of a host that no process has or has been promised.
fn free_huge_pages(host: &Host) -> Result<u64, HostError> {
    let line = "cd /sys/kernel/mm/hugepages/hugepages-2048kB; echo $(($(cat free_hugepages) - $(cat resv_hugepages)))";
    let free = host.shell(line).run()?.ok();
    Ok(free.trim().parse().unwrap_or_else(|error| panic!("{error}: {free:?}")))
}

/// Switches the link of the only NIC in the template of a VM.
fn switch_link(standalone: &Standalone<'_>, vm: &str, state: &str) -> Result<(), HostError> {
    let path = "/spec/template/spec/domain/devices/interfaces/0/state";
    let patch = json!([{"op": "add", "path": path, "value": state}]);
    standalone.kubectl(&format!("patch vm {vm} --type=json -p '{patch}'"), None)?.ok();
    Ok(())
}

/// The link and the queues of an instance's NIC, as the status shows them.
fn nic(standalone: &Standalone<'_>, name: &str) -> Result<(Value, Value), HostError> {
    let vmi = standalone.json(&format!("get vmi {name}"))?;
    let nic = &vmi["status"]["interfaces"][0];
    Ok((nic["linkState"].clone(), nic["queueCount"].clone()))
}
