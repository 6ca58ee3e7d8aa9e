//! Volumes that vanish. What VMs start from goes while they are stopped: each says what it lacks, and starts once that is back. What
//! a guest has goes while it runs: it keeps what was opened for it, gets errors, or is paused, and nothing else notices.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostBuilder, HostError, oci, scenario};

use crate::SOON;
use crate::scenarios::node::{host_with_programs, manifest};
use crate::scenarios::probes::condition;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

const BOOT: Duration = Duration::from_secs(120);
/// The size of the file system that cannot be read.
const BAD: &str = "16M";
/// The volumes of the guest that loses them.
const LOST: [&str; 7] = ["unlinked", "claim", "image", "map", "cut", "failing", "held"];

/// A volume that goes: the name of its VM, its source, how it goes and comes back, and what its VM says meanwhile.
struct Vanishing {
    name: &'static str,
    source: Value,
    goes: String,
    comes: String,
    reason: &'static str,
    words: Vec<String>,
}

/// A VM without an operating system: its firmware finds nothing to start.
fn vm(name: &str, source: &Value) -> Value {
    let mut volume = source.clone();
    volume["name"] = "volume".into();
    let devices = json!({
        "autoattachGraphicsDevice": false,
        "autoattachPodInterface": false,
        "disks": [{"name": "volume", "disk": {"bus": "virtio"}}],
    });
    let spec = json!({
        "terminationGracePeriodSeconds": 0,
        "domain": {"memory": {"guest": "64Mi"}, "devices": devices},
        "volumes": [volume],
    });
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"runStrategy": "Always", "template": {"spec": spec}},
    })
}

fn volumes(standalone: &Standalone<'_>) -> Vec<Vanishing> {
    let host = standalone.host();
    let file = |name: &'static str, source: Value, path: String, reason, words: Vec<String>| Vanishing {
        name,
        source,
        goes: format!("mv {path} {path}.away"),
        comes: format!("mv {path}.away {path}"),
        reason,
        words,
    };
    let object = |name: &'static str, source: Value, words: &str| Vanishing {
        name,
        source,
        goes: String::new(),
        comes: String::new(),
        reason: "FailedMount",
        words: vec![words.to_owned()],
    };
    let host_disk = host.work("data/there.img");
    let image = host.work("images/layout");
    let claim = standalone.file("claims/default/data/disk.img");
    vec![
        file(
            "host-disk",
            json!({"hostDisk": {"path": host_disk, "type": "Disk"}}),
            host_disk.clone(),
            "FailedStorage",
            vec!["spec.volumes[0].hostDisk".to_owned(), format!("{host_disk} does not exist")],
        ),
        file(
            "image",
            json!({"containerDisk": {"image": format!("oci:{image}")}}),
            image.clone(),
            "ErrImagePull",
            vec!["spec.volumes[0].containerDisk".to_owned(), format!("cannot open {image}")],
        ),
        file(
            "claim",
            json!({"persistentVolumeClaim": {"claimName": "data"}}),
            claim.clone(),
            "FailedStorage",
            vec!["spec.volumes[0].persistentVolumeClaim".to_owned(), format!("{claim} does not exist")],
        ),
        object("configmap", json!({"configMap": {"name": "app"}}), "ConfigMap default/app does not exist"),
        object("secret", json!({"secret": {"secretName": "key"}}), "Secret default/key does not exist"),
    ]
}

fn objects() -> String {
    let object =
        |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    json!({"apiVersion": "v1", "kind": "List", "items": [object("ConfigMap", "app"), object("Secret", "key")]})
        .to_string()
}

fn prepare(host: &Host, standalone: &Standalone<'_>) -> Result<(), HostError> {
    standalone.provide("data", "1Mi")?;
    standalone.kubectl("apply -f -", Some(&objects()))?.ok();
    let disk = host.work("data/there.img");
    standalone.shell(&format!(
        "mkdir -p {} {}; truncate -s 1M {disk}",
        host.work("data"),
        host.work("images")
    ))?;
    let layout = host.work("images/layout");
    oci::write_layout(layout.as_ref(), &[("disk/disk.img", disk.as_ref())]).map_err(HostError::Start)
}

/// Waits until an instance says what it lacks.
fn says(standalone: &Standalone<'_>, volume: &Vanishing) -> Result<(), HostError> {
    let mut last = Value::Null;
    let said = eventually(&format!("{} says what it lacks", volume.name), SOON, || {
        let vmis = standalone.items("vmi")?;
        last = vmis.into_iter().find(|vmi| vmi["metadata"]["name"] == volume.name).unwrap_or_default();
        let why = condition(&last, "Synchronized");
        let message = why["message"].as_str().unwrap_or_default();
        Ok(why["reason"] == volume.reason && volume.words.iter().all(|word| message.contains(word)))
    });
    said.inspect_err(|_| eprintln!("{} as last seen: {:#}", volume.name, last["status"]))
}

#[test]
fn vms_wait_for_what_has_vanished_here() -> Result<(), HostError> {
    let vireo = vireo_tests::programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
    let host = host_with_programs().file(vireo).here()?;
    let standalone = Standalone::start(&host)?;
    prepare(&host, &standalone)?;
    let volumes = volumes(&standalone);
    for volume in &volumes {
        standalone.kubectl("apply -f -", Some(&vm(volume.name, &volume.source).to_string()))?.ok();
    }
    for volume in &volumes {
        standalone.becomes_ready(&format!("vm/{}", volume.name))?;
    }
    for volume in &volumes {
        standalone.virtctl(&format!("stop {}", volume.name))?.ok();
    }
    eventually("they have stopped", SOON, || Ok(standalone.items("vmi")?.is_empty()))?;

    standalone.kubectl("delete configmap/app secret/key", None)?.ok();
    for volume in &volumes {
        standalone.shell(&volume.goes)?;
    }
    for volume in &volumes {
        standalone.virtctl(&format!("start {}", volume.name))?.ok();
    }
    for volume in &volumes {
        says(&standalone, volume)?;
    }
    assert_eq!(standalone.launchers()?, "0", "none has started");

    standalone.kubectl("apply -f -", Some(&objects()))?.ok();
    for volume in &volumes {
        standalone.shell(&volume.comes)?;
    }
    for volume in &volumes {
        standalone.becomes_ready(&format!("vm/{}", volume.name))?;
    }
    standalone.kubectl("delete vm --all --timeout=60s", None)?.ok();
    Ok(())
}

#[test]
fn volumes_vanish_under_a_guest_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_an_image(scratch.path())?.here()?;
    vanish_under_a_guest(&host, "qemu")
}

#[test]
fn nested_volumes_vanish_under_a_guest_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "volumes that vanish under a guest",
        || host_with_an_image(scratch.path()),
        |host, monitor| vanish_under_a_guest(host, monitor.hypervisor()),
    );
}

/// A host for a node, with an image of a disk.
fn host_with_an_image(scratch: &Path) -> Result<HostBuilder, HostError> {
    let (disk, layout) = (scratch.join("disk"), scratch.join("vanishing-oci"));
    let mut content = vec![0; 1 << 20];
    content[..4].copy_from_slice(b"host");
    fs::write(&disk, content).map_err(HostError::Start)?;
    oci::write_layout(&layout, &[("disk/disk.img", &disk)]).map_err(HostError::Start)?;
    host_with_vireo(scratch)?.tree(&layout, "vanishing-oci")
}

/// A guest `one` whose disks have the names of their volumes as serial numbers, in capital letters.
fn guest_with_volumes(host: &Host) -> String {
    let data = host.work("data");
    let disk = |name: &str| {
        let policy = if name == "failing" { "report" } else { "stop" };
        let serial = name.to_uppercase();
        format!("      - {{name: {name}, serial: {serial}, errorPolicy: {policy}, disk: {{bus: virtio}}}}\n")
    };
    let volume = |name: &str| {
        let source = match name {
            "claim" => "persistentVolumeClaim: {claimName: data}".to_owned(),
            "image" => format!("containerDisk: {{image: 'oci:{}'}}", host.work("images/layout")),
            "map" => "configMap: {name: app}".to_owned(),
            "failing" | "held" => format!("hostDisk: {{path: '{data}/bad/{name}', type: Disk}}"),
            name => format!("hostDisk: {{path: '{data}/{name}', type: Disk}}"),
        };
        format!("  - {{name: {name}, {source}}}\n")
    };
    let disks = LOST.map(disk).concat() + "      interfaces:\n";
    manifest(host, "one").replace("      interfaces:\n", &disks) + &LOST.map(volume).concat()
}

/// Makes the volumes, of 4 MiB each. Two are on a file system of its own, which cannot be read once its device is smaller: nothing
/// of them is cached.
fn make_volumes(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let host = standalone.host();
    standalone.provide("data", "4Mi")?;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"colour": "blue"}});
    standalone.kubectl("apply -f -", Some(&map.to_string()))?.ok();
    let (data, images) = (host.work("data"), host.work("images"));
    let claim = standalone.file("claims/default/data/disk.img");
    standalone.shell(&format!(
        "umount {data}/bad 2>/dev/null || true; rm -rf {data} {images}; mkdir -p {data}/bad {images}; cd {data}; \
         truncate -s 4M unlinked cut; cp -r {} {images}/layout; \
         for file in unlinked cut {claim}; do printf host | dd of=$file conv=notrunc 2>&1; done; \
         truncate -s {BAD} bad.ext4; mke2fs -q -t ext4 -O ^has_journal bad.ext4; mount -o loop,noatime bad.ext4 bad; \
         for name in failing held; do dd if=/dev/zero of=bad/$name bs=1M count=4 oflag=direct 2>&1; done",
        host.input("vanishing-oci")
    ))?;
    Ok(())
}

/// Sets the size of the device that has two of the volumes: beyond its end, it cannot be read.
fn resize_bad(standalone: &Standalone<'_>, size: &str) -> Result<(), HostError> {
    let data = standalone.host().work("data");
    let line =
        format!("cd {data}; truncate -s {size} bad.ext4; losetup -c $(df bad | tail -n 1 | cut -d ' ' -f 1)");
    standalone.shell(&line).map(drop)
}

/// The shell variable `disk` of the guest is the disk of a volume, of which nothing is cached.
fn find(name: &str) -> String {
    let serial = name.to_uppercase();
    format!(
        "disk=/dev/$(grep -lx {serial} /sys/block/vd*/serial | cut -d/ -f4); echo 3 >/proc/sys/vm/drop_caches"
    )
}

/// A page of the disk that nothing has read before.
const READ: &str = "dd if=$disk bs=4096 skip=512 count=1 of=/tmp/page 2>/tmp/error";

/// What was opened before it was unlinked has what it had, and keeps what the guest writes.
fn keeps(guest: &mut Guest<'_>, name: &str, mark: &str) -> Result<(), HostError> {
    let find = find(name);
    assert_eq!(guest.run(&format!("{find}; head -c 4 $disk"), SOON)?.trim(), "host", "{name}");
    let write = format!("{find}; printf {mark} | dd of=$disk bs=4096 seek=8 conv=sync,fsync 2>&1");
    guest.run(&write, SOON)?;
    let read =
        guest.run(&format!("{find}; dd if=$disk bs=4096 skip=8 count=1 2>/dev/null | head -c 4"), SOON)?;
    assert_eq!(read.trim(), mark, "{name}");
    Ok(())
}

/// The guest runs, and no client or user sees that it lacks anything.
fn is_well(standalone: &Standalone<'_>, name: &str) -> Result<(), HostError> {
    let vmi = standalone.json(&format!("get vmi {name}"))?;
    let conditions = ["Ready", "Paused", "Synchronized"].map(|kind| condition(&vmi, kind)["status"].clone());
    assert_eq!(vmi["status"]["phase"], "Running", "{:#}", vmi["status"]);
    assert_eq!(conditions[0], "True", "{:#}", vmi["status"]);
    assert!(conditions[1].is_null() && conditions[2] != "False", "{:#}", vmi["status"]);
    Ok(())
}

fn vanish_under_a_guest(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let mut standalone = Standalone::start_on(host, hypervisor)?;
    make_volumes(&standalone)?;
    let bystander = vm("bystander", &json!({"emptyDisk": {"capacity": "1Mi"}})).to_string();
    standalone.kubectl("apply -f -", Some(&bystander))?.ok();
    standalone.kubectl("apply -f -", Some(&guest_with_volumes(host)))?.ok();
    standalone.becomes_ready("vmi/one")?;
    standalone.becomes_ready("vm/bystander")?;
    standalone.runs_on("one", hypervisor)?;
    let other = standalone.uid("bystander")?;
    let mut guest = standalone.console("one")?;
    let started = guest.ready()?;
    standalone.kubectl("delete configmap app", None)?.ok();
    let claim = standalone.file("claims/default/data/disk.img");
    standalone.shell(&format!(
        "rm -r {}; cd {}; rm {claim} unlinked; truncate -s 0 cut",
        host.work("images/layout"),
        host.work("data")
    ))?;
    resize_bad(&standalone, "64K")?;
    for name in ["unlinked", "claim", "image"] {
        keeps(&mut guest, name, "mine")?;
    }
    let colour = "mount -t iso9660 -o ro $disk /mnt && cat /mnt/colour; umount /mnt";
    assert_eq!(guest.run(&format!("{}; {colour}", find("map")), SOON)?.trim(), "blue");
    is_cut(&standalone, &mut guest)?;
    let (code, _) = guest.run_any(&format!("{}; {READ}", find("failing")), SOON)?;
    assert_ne!(code, 0, "a disk that cannot be read is read");
    assert!(guest.run("cat /tmp/error", SOON)?.contains("Input/output error"));
    is_well(&standalone, "one")?;
    is_held(&standalone, &mut guest)?;

    // Another vireo finds the guest without its volumes, and manages it.
    standalone.lose()?;
    standalone.kubectl("label vmi one seen=again", None)?.ok();
    is_well(&standalone, "one")?;
    let mut guest = standalone.console("one")?;
    assert_eq!(guest.ready()?.boot_id, started.boot_id, "the same guest");
    for name in ["unlinked", "claim", "image"] {
        keeps(&mut guest, name, "more")?;
    }
    is_well(&standalone, "one")?;
    is_well(&standalone, "bystander")?;
    assert_eq!((standalone.uid("bystander")?, standalone.launchers()?), (other, "2".to_owned()));
    standalone.kubectl("delete vmi one --timeout=90s", None)?.ok();
    standalone.shell(&format!("umount {}/bad", host.work("data")))?;
    standalone.kubectl("delete vm bystander --timeout=60s", None)?.ok();
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}

/// What a truncated file no longer has cannot be read, or is empty; what is written to it makes it longer.
fn is_cut(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    let (code, _) = guest.run_any(&format!("{}; {READ}", find("cut")), SOON)?;
    let page = guest.run("tr -d '\\0' </tmp/page | wc -c; cat /tmp/error", SOON)?;
    assert!(page.starts_with("0\n") && (code == 0 || page.contains("Input/output error")), "{code}: {page}");
    let write = format!("{}; printf mine | dd of=$disk bs=4096 seek=8 conv=sync,fsync 2>&1", find("cut"));
    guest.run(&write, SOON)?;
    let written = format!("dd if={}/cut bs=4096 skip=8 count=1 2>/dev/null", standalone.host().work("data"));
    assert_eq!(standalone.shell(&format!("{written} | tr -d '\\0'"))?, "mine");
    Ok(())
}

/// By default, a request that fails waits until the host can carry it out, and the guest with it.
fn is_held(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.send(&format!("{}; {READ}; echo read $?", find("held")))?;
    let mut last = Value::Null;
    let pauses = eventually("it is paused", BOOT, || {
        last = standalone.json("get vmi one")?["status"].clone();
        let paused = condition(&json!({"status": last}), "Paused");
        let why = paused["message"].as_str().unwrap_or_default();
        Ok(paused["reason"] == "PausedIOError" && why.contains("IO error at the volume: held"))
    });
    pauses.inspect_err(|_| eprintln!("as last seen: {last:#}"))?;
    is_well(standalone, "bystander")?;
    resize_bad(standalone, BAD)?;
    guest.monitor().wait_for("read 0", BOOT)?;
    eventually("it goes on", BOOT, || {
        Ok(condition(&standalone.json("get vmi one")?, "Ready")["status"] == "True")
    })?;
    is_well(standalone, "one")
}
