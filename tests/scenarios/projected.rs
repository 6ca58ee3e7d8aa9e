//! Disks with files of ConfigMaps, Secrets, ServiceAccounts and the launcher Pod, read by a guest's kernel.

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::probes::condition;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// As long as the name of an entry may be.
const LONGEST: usize = 253;

/// The disks, in the order of their names in the guest.
const DISKS: &str = "      - {name: map, disk: {bus: virtio}}
      - {name: key, disk: {bus: virtio}}
      - {name: account, disk: {bus: virtio}}
      - {name: facts, disk: {bus: virtio}}
      - {name: none, disk: {bus: virtio}}
      - {name: seed, disk: {bus: virtio}}
      - {name: answers, cdrom: {bus: scsi}}
";
const VOLUMES: &str = "  - {name: map, configMap: {name: app, volumeLabel: APP}}
  - {name: key, secret: {secretName: key}}
  - {name: account, serviceAccount: {serviceAccountName: robot}}
  - {name: facts, downwardAPI: {fields: [
      {path: all/labels, fieldRef: {fieldPath: metadata.labels}},
      {path: tier, fieldRef: {fieldPath: \"metadata.labels['tier']\"}}]}}
  - {name: none, configMap: {name: absent, optional: true}}
  - {name: seed, cloudInitNoCloud: {secretRef: {name: user}}}
  - {name: answers, sysprep: {secret: {name: answers}}}
";

/// The objects but the ConfigMap.
const OBJECTS: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: key}
data: {binary: AP8=}
---
apiVersion: v1
kind: Secret
metadata: {name: user}
stringData: {userdata: '#!/bin/sh'}
---
apiVersion: v1
kind: Secret
metadata: {name: answers}
stringData: {Autounattend.xml: <unattend/>}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot}
";

fn config_map() -> String {
    let long = "n".repeat(LONGEST);
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: app}}\ndata: {{app.properties: one, {long}: two}}\n"
    )
}

/// Shows files of a disk.
fn mounted(guest: &mut Guest<'_>, disk: &str, line: &str) -> Result<String, HostError> {
    let line = format!("mount -t iso9660 -o ro /dev/{disk} /mnt && cd /mnt && {line}; cd /; umount /mnt");
    Ok(guest.run(&line, SOON)?.trim().to_owned())
}

#[test]
fn objects_are_files_of_disks_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    objects_are_files(&host, "qemu")
}

#[test]
fn nested_objects_are_files_of_disks_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "disks with files of objects under vireo",
        || host_with_vireo(scratch.path()),
        |host, monitor| objects_are_files(host, monitor.hypervisor()),
    );
}

fn objects_are_files(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, hypervisor)?;
    let vmi = manifest(host, "one")
        .replace("  name: one\n", "  name: one\n  labels: {tier: web}\n")
        .replace("      interfaces:\n", &format!("{DISKS}      interfaces:\n"))
        + VOLUMES;
    standalone.kubectl("apply -f -", Some(OBJECTS))?.ok();
    standalone.kubectl("apply -f -", Some(&vmi))?.ok();
    waits_for_an_object(&standalone)?;
    standalone.kubectl("apply -f -", Some(&config_map()))?.ok();
    standalone.becomes_ready("vmi/one")?;
    let vmi = standalone.json("get vmi one")?;
    assert!(vmi.to_string().contains(&format!("\"{hypervisor}\"")), "not on {hypervisor}: {vmi:#}");
    let synchronized = condition(&vmi, "Synchronized");
    assert_ne!(synchronized["status"], "False", "{synchronized:#}");
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    guest.run(
        "for module in scsi_common scsi_mod cdrom sr_mod virtio_scsi; do modprobe $module || exit 1; done",
        SOON,
    )?;

    let long = "n".repeat(LONGEST);
    let read = mounted(&mut guest, "vdb", &format!("cat app.properties {long}; ls | wc -l"))?;
    assert_eq!(read, "onetwo2");
    assert_eq!(guest.run("cat /sys/block/vdb/ro", SOON)?.trim(), "1");
    // Of the primary volume descriptor.
    let label = "dd if=/dev/DISK bs=1 skip=32808 count=32 2>/dev/null";
    for (disk, expected) in [("vdb", "APP"), ("vdc", "cfgdata"), ("vdg", "cidata"), ("sr0", "unattendCD")] {
        assert_eq!(guest.run(&label.replace("DISK", disk), SOON)?.trim(), expected, "{disk}");
    }
    assert_eq!(mounted(&mut guest, "vdc", "od -An -tx1 binary")?, "00 ff");
    let account = mounted(&mut guest, "vdd", "ls -1; cat namespace; grep -c BEGIN ca.crt; head -c 3 token")?;
    assert_eq!(account, "ca.crt\nnamespace\ntoken\ndefault1\neyJ");
    let facts = mounted(&mut guest, "vde", "cat tier; echo; grep tier all/labels")?;
    assert_eq!(facts, "web\ntier=\"web\"");
    assert_eq!(mounted(&mut guest, "vdf", "ls -A | wc -l")?, "0", "it may be missing");
    assert_eq!(mounted(&mut guest, "vdg", "cat user-data")?, "#!/bin/sh");
    assert_eq!(mounted(&mut guest, "sr0", "cat Autounattend.xml")?, "<unattend/>");
    standalone.kubectl("delete vmi one --timeout=90s", None)?.ok();
    Ok(())
}

/// The instance says what it waits for.
fn waits_for_an_object(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let mut last = Value::Null;
    eventually("it says what it waits for", SOON, || {
        last = standalone.json("get vmi one")?;
        Ok(condition(&last, "Synchronized")["reason"] == "FailedMount")
    })?;
    let why = condition(&last, "Synchronized")["message"].clone();
    let parts =
        ["spec.volumes[2].configMap", "ConfigMap default/app does not exist, waiting for it to appear"];
    assert!(why.as_str().is_some_and(|why| parts.iter().all(|part| why.contains(part))), "{why}");
    assert_eq!(last["status"]["phase"], "Pending");
    assert_eq!(standalone.launchers()?, "0");
    let events = standalone.items("events")?;
    assert!(events.iter().any(|event| event["reason"] == "FailedMount"), "{events:#?}");
    Ok(())
}
