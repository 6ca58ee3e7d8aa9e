//! State of a machine beside its disks, which outlives its instances.

use vireo_tests::HostError;
use vireo_tests::eventually::eventually;
use vireo_tests::installed::Login;

use super::{GUEST, LIMIT, STEP, Vireo, installation};
use crate::scenarios::node_disk::VARIABLE;
use crate::scenarios::tpm;

/// A machine that keeps the variables of EFI, and a TPM.
fn machine() -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: stateful}}\nspec:\n  runStrategy: Always\n  template:\n    spec:\n      terminationGracePeriodSeconds: 0\n      domain:\n        memory: {{guest: 256Mi}}\n        firmware: {{bootloader: {{efi: {{secureBoot: false, persistent: true}}}}}}\n        devices: {{autoattachGraphicsDevice: false, autoattachPodInterface: false, tpm: {{persistent: true}}, disks: [{{name: root, disk: {{bus: virtio}}}}]}}\n      volumes: [{{name: root, containerDisk: {{image: '{GUEST}', imagePullPolicy: Never}}}}]\n"
    )
}

/// What claims of a StorageClass get here.
const VOLUME: &str = "\
apiVersion: v1
kind: PersistentVolume
metadata: {name: state}
spec: {accessModes: [ReadWriteOnce], storageClassName: state, capacity: {storage: 16Mi}, persistentVolumeReclaimPolicy: Retain, hostPath: {path: /var/lib/kubevirt/volumes/state, type: DirectoryOrCreate}}
";

/// What a claim for the memory of the machine gets here: as much as it asks for.
const DUMPS: &str = "\
apiVersion: v1
kind: PersistentVolume
metadata: {name: dumps}
spec: {accessModes: [ReadWriteOnce], storageClassName: dumps, capacity: {storage: 378Mi}, persistentVolumeReclaimPolicy: Retain, hostPath: {path: /var/lib/kubevirt/volumes/dumps, type: DirectoryOrCreate}}
";

fn guest<'v>(vireo: &'v Vireo<'_>) -> Result<Login<'v>, HostError> {
    let mut guest = Login::over(vireo.console_process("stateful")?);
    guest.log_in()?;
    Ok(guest)
}

/// A machine keeps the variables of its firmware, and what is in its TPM, in a claim, which goes with it.
pub(super) fn is_kept(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a machine keeps its EFI variables and its TPM");
    installation::configure(vireo, r#"{"spec": {"configuration": {"vmStateStorageClass": "state"}}}"#)?;
    vireo.feed("create -f -", VOLUME);
    vireo.feed("create -f -", &machine());
    vireo.becomes("vmi stateful", "is Running", |vmi| vmi["status"]["phase"] == "Running")?;
    let claims = vireo.items("pvc -l persistent-state-for=stateful")?;
    assert_eq!(claims.len(), 1, "{claims:#?}");
    assert_eq!(claims[0]["metadata"]["ownerReferences"][0]["kind"], "VirtualMachine", "{claims:#?}");
    let mut first = guest(vireo)?;
    first.run(&format!("printf '\\7\\0\\0\\0kept' >{VARIABLE}"))?;
    for (command, code) in [(tpm::READ, tpm::ABSENT), (tpm::DEFINE, tpm::SUCCESS)] {
        assert_eq!(first.run(&tpm::send(command))?.trim(), code, "{command}");
    }
    drop(first);
    let before = vireo.uid("stateful")?;
    vireo.virtctl("restart stateful")?.ok();
    vireo.another_runs("stateful", &before)?;
    vireo.step("it was started again");
    let mut again = guest(vireo)?;
    assert_eq!(again.run(&format!("tail -c 4 {VARIABLE}"))?.trim(), "kept");
    assert_eq!(again.run(&tpm::send(tpm::READ))?.trim(), tpm::SUCCESS);
    drop(again);
    memory_is_dumped(vireo)?;
    vireo.ok(&format!("delete vm stateful {LIMIT}"));
    vireo.gone("stateful")?;
    eventually("its claim is gone", STEP, || {
        Ok(vireo.items("pvc -l persistent-state-for=stateful")?.is_empty())
    })?;
    vireo.ok(&format!("delete pv state {LIMIT}"));
    installation::configure(vireo, r#"{"spec": {"configuration": {"vmStateStorageClass": null}}}"#)?;
    Ok(())
}

/// The memory of the machine goes to a claim that is made for it, and the claim is released.
fn memory_is_dumped(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("the memory of a machine is dumped");
    vireo.feed("create -f -", DUMPS);
    let get = "memory-dump get stateful --claim-name=dumps --create-claim --storage-class=dumps";
    vireo.virtctl(get)?.ok();
    let mut file = String::new();
    vireo.becomes("vm stateful", "has its memory dumped", |vm| {
        let request = &vm["status"]["memoryDumpRequest"];
        assert_ne!(request["phase"], "Failed", "{request:#}");
        file = request["fileName"].as_str().unwrap_or_default().to_owned();
        request["phase"] == "Completed"
    })?;
    assert!(file.starts_with("stateful-dumps-"), "{file}");
    let found = format!("cd /var/lib/kubevirt/volumes/dumps; ls; head -c 4 {file}; stat -c ' %s' {file}");
    let found = vireo.on_node(&found)?;
    let (listed, size) = found.trim().split_once("\n\x7fELF ").unwrap_or_else(|| panic!("{found}"));
    assert_eq!(listed, file, "there is no disk beside it");
    // All but the hole for video memory below 1 MiB.
    assert!(size.parse().is_ok_and(|size: u64| size > 255 << 20), "{size} bytes");
    eventually("no attachment Pod is left", STEP, || {
        Ok(vireo.items("pods -l kubevirt.io=hotplug-disk")?.is_empty())
    })?;
    vireo.virtctl("memory-dump remove stateful")?.ok();
    vireo.becomes("vm stateful", "has no claim for dumps", |vm| {
        vm["status"]["memoryDumpRequest"].is_null() && !vm["spec"]["template"].to_string().contains("dumps")
    })?;
    vireo.ok(&format!("delete pvc dumps {LIMIT}"));
    vireo.ok(&format!("delete pv dumps {LIMIT}"));
    Ok(())
}
