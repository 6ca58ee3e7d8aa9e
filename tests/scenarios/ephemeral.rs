//! VMIs over the disk of a claim, which none of them writes to. They have other volumes of the host, too, and a
//! CD-ROM drive whose media are changed.

use std::time::Duration;

use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::media::{DRIVE, change_media};
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{CLAIM, DATA, Standalone, host_with_vireo, vm_of};
use crate::scenarios::volume_kinds;

const HOST: Duration = Duration::from_secs(550);

#[test]
fn guests_share_a_claim_and_keep_nothing_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    share_a_claim(&host, "qemu")
}

#[test]
fn nested_guests_share_a_claim_and_keep_nothing_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "ephemeral volumes under vireo",
        || Ok(host_with_vireo(scratch.path())?.deadline(HOST)),
        |host, monitor| share_a_claim(host, monitor.hypervisor()),
    );
}

/// Starts a guest with a layer over the claim.
fn starts<'h>(standalone: &Standalone<'h>, host: &Host, name: &str) -> Result<Guest<'h>, HostError> {
    let disk = "      - {name: data, serial: D4TA, disk: {bus: virtio}}\n      interfaces:\n";
    // No two guests have the others.
    let (others, volumes) = match name {
        "one" => (volume_kinds::DISKS, volume_kinds::volumes(host)),
        _ => ("", String::new()),
    };
    let vmi = manifest(host, name).replace("      interfaces:\n", &format!("{DRIVE}{others}{disk}"))
        + "  - {name: data, ephemeral: {persistentVolumeClaim: {claimName: data}}}\n"
        + &volumes;
    standalone.kubectl("apply -f -", Some(&vm_of(&vmi, name, "Always")))?.ok();
    standalone.becomes_ready(&format!("vm/{name}"))?;
    let mut guest = standalone.console(name)?;
    guest.ready()?;
    Ok(guest)
}

/// What the guest reads at the begin of the disk.
fn read(guest: &mut Guest<'_>) -> Result<String, HostError> {
    Ok(guest.run(&format!("{DATA}; head -c 4 $data"), SOON)?.trim().to_owned())
}

fn share_a_claim(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, hypervisor)?;
    standalone.kubectl("apply -f -", Some(CLAIM))?.ok();
    standalone.kubectl("wait --for=jsonpath={.status.phase}=Bound --timeout=30s pvc/data", None)?.ok();
    let claim = standalone.file("claims/default/data/disk.img");
    host.shell(&format!("printf base | dd of={claim} conv=notrunc 2>&1")).run()?.ok();
    volume_kinds::prepare(&standalone)?;
    let mut guests = [starts(&standalone, host, "one")?, starts(&standalone, host, "two")?];
    for (guest, mark) in guests.iter_mut().zip(["mine", "ours"]) {
        assert_eq!(read(guest)?, "base");
        guest.run(&format!("{DATA}; printf {mark} >$data; sync; echo 3 >/proc/sys/vm/drop_caches"), SOON)?;
        assert_eq!(read(guest)?, mark);
    }
    assert_eq!(read(&mut guests[0])?, "mine", "each has a layer of its own");
    let kept = host.shell(&format!("head -c 4 {claim}")).run()?.ok();
    assert_eq!(kept, "base", "no guest writes to the claim");
    let conditions = standalone.json("get vmi one")?["status"]["conditions"].to_string();
    assert!(conditions.contains(&format!("\"{hypervisor}\"")), "not on {hypervisor}: {conditions}");
    volume_kinds::are_used(&standalone, &mut guests[0])?;
    change_media(&standalone, "one", &mut guests[0])?;
    let held = standalone.kubectl("delete pvc data --wait=false", None)?;
    held.ok();
    standalone.kubectl("delete vm one --timeout=90s", None)?.ok();
    drop(guests);
    assert!(standalone.kubectl("get pvc data", None)?.ok().contains("Terminating"), "it is in use");
    standalone.kubectl("delete vm two --timeout=90s", None)?.ok();
    standalone.kubectl("wait --for=delete --timeout=60s pvc/data", None)?.ok();
    Ok(())
}
