//! Disks with files that the kubelet has projected from objects.

use vireo_tests::HostError;
use vireo_tests::installed::Login;

use super::Vireo;

/// The objects that an instance has files of.
pub(super) const OBJECTS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: keeper-app}
data: {app.properties: one}
---
apiVersion: v1
kind: Secret
metadata: {name: keeper-key}
data: {binary: AP8=}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: keeper-robot}
";

/// Its disks, from `vdc` to `vdf`.
pub(super) const DISKS: &str = "{name: map, disk: {bus: virtio}}, {name: key, disk: {bus: virtio}}, {name: account, disk: {bus: virtio}}, {name: facts, disk: {bus: virtio}}";

/// Its volumes.
pub(super) const VOLUMES: &str = "{name: map, configMap: {name: keeper-app, volumeLabel: APP}}, {name: key, secret: {secretName: keeper-key}}, {name: account, serviceAccount: {serviceAccountName: keeper-robot}}, {name: facts, downwardAPI: {fields: [{path: of/name, fieldRef: {fieldPath: \"metadata.labels['vm.kubevirt.io/name']\"}}, {path: memory, resourceFieldRef: {containerName: compute, resource: requests.memory, divisor: 1Mi}}]}}";

/// Shows files of a disk.
fn mounted(guest: &mut Login<'_>, disk: &str, line: &str) -> Result<String, HostError> {
    let line = format!(
        "mkdir -p /tmp/files; mount -t iso9660 -o ro /dev/{disk} /tmp/files && cd /tmp/files && {line}; cd /; umount /tmp/files"
    );
    Ok(guest.run(&line)?.trim().to_owned())
}

/// The guest reads all of them.
pub(super) fn are_read(vireo: &Vireo<'_>, guest: &mut Login<'_>) -> Result<(), HostError> {
    vireo.step("a guest reads the files of objects");
    // Else the kernel writes to the console about file systems.
    guest.run("dmesg -n 1")?;
    assert_eq!(mounted(guest, "vdc", "cat app.properties")?, "one");
    assert_eq!(guest.run("cat /sys/block/vdc/ro")?.trim(), "1");
    assert_eq!(mounted(guest, "vdd", "od -An -tx1 binary")?, "00 ff");
    let account = mounted(guest, "vde", "ls -1; cat namespace; grep -c BEGIN ca.crt; head -c 3 token")?;
    let account: Vec<&str> = account.lines().map(str::trim).collect();
    let namespace = format!("{}1", vireo.namespace);
    assert_eq!(account, ["ca.crt", "namespace", "token", &namespace, "eyJ"]);
    let facts = mounted(guest, "vdf", "cat of/name; echo; cat memory")?;
    let (name, memory) = facts.split_once('\n').unwrap_or_default();
    assert_eq!(name.trim(), "keeper");
    let memory: u32 = memory.trim().parse().unwrap_or_else(|error| panic!("{error}: {facts}"));
    assert!(memory > 256, "{memory} MiB are the guest's, and the hypervisor's");
    let pod = vireo.pods("keeper")?.pop().unwrap_or_default();
    assert_eq!(pod["spec"]["serviceAccountName"], "keeper-robot", "{pod:#}");
    Ok(())
}
