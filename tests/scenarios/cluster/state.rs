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
    vireo.ok(&format!("delete vm stateful {LIMIT}"));
    vireo.gone("stateful")?;
    eventually("its claim is gone", STEP, || {
        Ok(vireo.items("pvc -l persistent-state-for=stateful")?.is_empty())
    })?;
    vireo.ok(&format!("delete pv state {LIMIT}"));
    installation::configure(vireo, r#"{"spec": {"configuration": {"vmStateStorageClass": null}}}"#)?;
    Ok(())
}
