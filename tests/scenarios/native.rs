//! A VirtualMachine under `vireo` with the native hypervisor: what `standalone` shows on QEMU, and what only a reset does.

use vireo_tests::guest::{Guest, Monitor};
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
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

fn keeps_its_disk(guest: &mut Guest<'_>) -> Result<(), HostError> {
    assert_eq!(guest.run(&format!("{DATA}; head -n1 $data"), SOON)?.trim(), "kept");
    Ok(())
}
