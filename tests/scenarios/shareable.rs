//! A disk that two guests write to at the same time.

use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{CLAIM, DATA, Standalone, host_with_vireo};

#[test]
fn guests_write_to_one_disk_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    write_to_one_disk(&Standalone::start(&host)?)
}

#[test]
fn nested_guests_write_to_one_disk_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "a shareable disk under vireo",
        || host_with_vireo(scratch.path()),
        |host, monitor| {
            let hypervisor = monitor.hypervisor();
            // The host's own file system has no direct I/O, which such a disk needs.
            let disk = host.work("disk");
            let make = format!("rm -f {disk}; truncate -s 2G {disk}; mke2fs -q -t ext4 {disk}");
            host.shell(&make).deadline(SOON).run()?.ok();
            let standalone = Standalone::start_in(host, hypervisor, &format!("-o loop {disk}"))?;
            write_to_one_disk(&standalone)
        },
    );
}

fn vmi(host: &Host, name: &str, shareable: bool) -> String {
    let disk = format!(
        "      - {{name: data, serial: D4TA, shareable: {shareable}, disk: {{bus: virtio}}}}\n      interfaces:\n"
    );
    manifest(host, name).replace("      interfaces:\n", &disk)
        + "  - {name: data, persistentVolumeClaim: {claimName: data}}\n"
}

fn starts<'h>(standalone: &Standalone<'h>, host: &Host, name: &str) -> Result<Guest<'h>, HostError> {
    standalone.kubectl("apply -f -", Some(&vmi(host, name, true)))?.ok();
    standalone.becomes_ready(&format!("vmi/{name}"))?;
    let mut guest = standalone.console(name)?;
    guest.ready()?;
    Ok(guest)
}

fn write_to_one_disk(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let host = standalone.host();
    standalone.kubectl("apply -f -", Some(CLAIM))?.ok();
    let (mut one, mut two) = (starts(standalone, host, "one")?, starts(standalone, host, "two")?);
    let forget = "echo 3 >/proc/sys/vm/drop_caches";
    let write = |text: &str, at: u32| {
        format!("{DATA}; printf {text} | dd of=$data bs=4096 seek={at} conv=sync; sync")
    };
    let read =
        |at: u32| format!("{forget}; {DATA}; dd if=$data bs=4096 skip={at} count=1 2>/dev/null | head -c 4");
    one.run(&write("ones", 1), SOON)?;
    assert_eq!(two.run(&read(1), SOON)?.trim(), "ones");
    two.run(&write("twos", 2), SOON)?;
    assert_eq!(one.run(&read(2), SOON)?.trim(), "twos");
    assert_eq!(one.run(&read(1), SOON)?.trim(), "ones");
    // One that would have it alone does not start.
    standalone.kubectl("apply -f -", Some(&vmi(host, "three", false)))?.ok();
    standalone.kubectl("wait --for=jsonpath={.status.phase}=Failed --timeout=60s vmi/three", None)?.ok();
    let failed = standalone.json("get vmi three")?["status"].to_string();
    assert!(failed.contains("is in use by another VM"), "{failed}");
    standalone.kubectl("delete vmi one two three --timeout=90s", None)?.ok();
    Ok(())
}
