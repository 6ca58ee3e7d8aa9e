//! Media that are inserted into the CD-ROM drive of a guest that runs, changed and ejected: by its VM's template, and by
//! `virtctl`.

use serde_json::{Value, json};
use vireo_tests::HostError;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;

use crate::SOON;
use crate::scenarios::standalone::Standalone;

/// The drive, which is the only one of its guest and empty at first.
pub(crate) const DRIVE: &str = "      - {name: cd, cdrom: {bus: scsi}}\n";

/// A claim that is the medium, with its name at its begin.
fn create(standalone: &Standalone<'_>, name: &str) -> Result<(), HostError> {
    standalone.provide(name, "1Mi")?;
    let file = standalone.file(&format!("claims/default/{name}/disk.img"));
    standalone.shell(&format!("printf {name} | dd of={file} conv=notrunc 2>&1")).map(drop)
}

/// Sets the volume of the drive in the VM's template.
fn set(standalone: &Standalone<'_>, vm: &str, claim: Option<&str>) -> Result<(), HostError> {
    let object = standalone.json(&format!("get vm {vm}"))?;
    let mut volumes = object["spec"]["template"]["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    volumes.retain(|volume| volume["name"] != "cd");
    volumes.extend(claim.map(
        |claim| json!({"name": "cd", "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}}),
    ));
    let patch = json!({"spec": {"template": {"spec": {"volumes": volumes}}}});
    standalone.kubectl(&format!("patch vm {vm} --type=merge -p '{patch}'"), None)?.ok();
    Ok(())
}

/// The status of the drive's volume.
fn status(standalone: &Standalone<'_>, vm: &str) -> Result<Value, HostError> {
    let vmi = standalone.json(&format!("get vmi {vm}"))?;
    let volumes = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
    Ok(volumes.into_iter().find(|volume| volume["name"] == "cd").unwrap_or_default())
}

fn waits_for(
    standalone: &Standalone<'_>,
    vm: &str,
    what: &str,
    check: impl Fn(&Value) -> bool,
) -> Result<(), HostError> {
    let mut last = Value::Null;
    let seen = eventually(what, SOON, || {
        last = status(standalone, vm)?;
        Ok(check(&last))
    });
    seen.inspect_err(|_| eprintln!("as last seen: {last:#}"))
}

/// The guest reads the claim's name from the medium.
fn reads(guest: &mut Guest<'_>, name: &str) -> Result<(), HostError> {
    let line = format!(
        "for i in $(seq 100); do [ \"$(head -c {} /dev/sr0 2>/dev/null)\" = {name} ] && exit 0; sleep 0.1; done; exit 1",
        name.len()
    );
    guest.run(&line, SOON).map(drop)
}

/// The drive of a VM's guest gets media, the guest reads each, and keeps one for a while.
pub(crate) fn change_media(
    standalone: &Standalone<'_>,
    vm: &str,
    guest: &mut Guest<'_>,
) -> Result<(), HostError> {
    let modules = "for module in scsi_common scsi_mod cdrom sr_mod virtio_scsi; do modprobe $module; done";
    guest.run(&format!("{modules}; [ -e /sys/block/sr0 ]"), SOON)?;
    guest.run("! head -c1 /dev/sr0 2>/dev/null", SOON)?;
    create(standalone, "medium-a")?;
    create(standalone, "medium-b")?;
    set(standalone, vm, Some("medium-a"))?;
    let ready = |claim: &'static str| {
        move |status: &Value| {
            status["phase"] == "Ready"
                && status["target"] == "sr0"
                && status["persistentVolumeClaimInfo"]["claimName"] == claim
        }
    };
    waits_for(standalone, vm, "the medium is inserted", ready("medium-a"))?;
    reads(guest, "medium-a")?;
    set(standalone, vm, Some("medium-b"))?;
    reads(guest, "medium-b")?;
    waits_for(standalone, vm, "the medium is changed", ready("medium-b"))?;
    // The host has closed what was ejected.
    standalone.kubectl("delete pvc medium-a --timeout=60s", None)?.ok();
    // While the device is open, the guest has the drive locked.
    guest.run("sleep 1000 </dev/sr0 >/dev/null 2>&1 & echo $! >/tmp/holder", SOON)?;
    standalone.virtctl(&format!("removevolume {vm} --volume-name=cd"))?.ok();
    waits_for(standalone, vm, "the guest keeps the medium", |status| {
        status["phase"] == "Detaching" && status["message"].to_string().contains("has locked the drive")
    })?;
    reads(guest, "medium-b")?;
    guest.run("kill $(cat /tmp/holder)", SOON)?;
    waits_for(standalone, vm, "the medium is ejected", Value::is_null)?;
    guest.run("! head -c1 /dev/sr0 2>/dev/null && [ -e /sys/block/sr0 ]", SOON)?;
    standalone.kubectl("delete pvc medium-b --timeout=60s", None)?.ok();
    let object = standalone.json(&format!("get vm {vm}"))?;
    let template = object["spec"]["template"]["spec"].to_string();
    assert!(template.contains("\"cdrom\"") && !template.contains("medium-b"), "{template}");
    let conditions = object["status"]["conditions"].to_string();
    assert!(!conditions.contains("RestartRequired"), "{conditions}");
    Ok(())
}
