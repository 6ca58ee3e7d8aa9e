//! Disks that outlive their guests.

use vireo_tests::HostError;
use vireo_tests::installed::Login;

use super::{GUEST, LIMIT, Vireo};
use crate::scenarios::probes::condition;

/// Where the volume is on the node.
const DIRECTORY: &str = "/var/lib/kubevirt/data";
const SIZE: u64 = 64 << 20;

/// An instance with a claim as its second disk.
fn keeper() -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: keeper}}\nspec:\n  terminationGracePeriodSeconds: 0\n  domain:\n    memory: {{guest: 256Mi}}\n    devices: {{autoattachGraphicsDevice: false, autoattachPodInterface: false, disks: [{{name: root, disk: {{bus: virtio}}}}, {{name: data, disk: {{bus: virtio}}}}]}}\n  volumes: [{{name: root, containerDisk: {{image: '{GUEST}:latest', imagePullPolicy: Never}}}}, {{name: data, persistentVolumeClaim: {{claimName: data}}}}]\n"
    )
}

/// The claim, and the volume that it is bound to.
fn claim() -> String {
    let access = "accessModes: [ReadWriteOnce], storageClassName: manual";
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: data}}\nspec: {{{access}, capacity: {{storage: '{SIZE}'}}, hostPath: {{path: {DIRECTORY}, type: DirectoryOrCreate}}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data}}\nspec: {{{access}, resources: {{requests: {{storage: '{SIZE}'}}}}}}\n"
    )
}

/// An instance waits for its claim, whose disk is made, and keeps what the guest wrote.
pub(super) fn are_kept(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("an instance waits for its claim");
    vireo.feed("create -f -", &keeper());
    let vmi = vireo.becomes("vmi keeper", "says what it waits for", |vmi| {
        condition(vmi, "Synchronized")["reason"] == "FailedPvcNotFound"
    })?;
    let why = &condition(&vmi, "Synchronized")["message"];
    assert!(why.as_str().is_some_and(|why| why.contains("default/data")), "{why}");
    assert!(vireo.pods("keeper")?.is_empty());
    vireo.step("the claim appears");
    vireo.feed("create -f -", &claim());
    let vmi = vireo.phase("keeper", "Running")?;
    assert_ne!(condition(&vmi, "Synchronized")["status"], "False", "{:#}", vmi["status"]);
    let mut guest = Login::over(vireo.console_process("keeper")?);
    guest.log_in()?;
    assert_eq!(guest.run("cat /sys/block/vdb/size")?.trim(), (SIZE / 512).to_string());
    guest.run("echo kept | dd of=/dev/vdb bs=512 conv=sync,fsync")?;
    vireo.ok(&format!("delete vmi keeper {LIMIT}"));
    vireo.gone("keeper")?;
    let written =
        vireo.on_node(&format!("head -c 5 {DIRECTORY}/disk.img; stat -c %s {DIRECTORY}/disk.img"))?;
    assert_eq!(written.trim(), format!("kept\n{SIZE}"));
    vireo.ok(&format!("delete pvc,pv data {LIMIT}"));
    Ok(())
}
