//! Disks that outlive their guests.

use serde_json::Value;
use vireo_tests::HostError;
use vireo_tests::eventually::eventually;
use vireo_tests::installed::Login;

use super::{GUEST, LIMIT, STEP, Vireo, projected};
use crate::scenarios::probes::condition;

/// Where the volumes are on the node.
const DIRECTORY: &str = "/var/lib/kubevirt/volumes";
const SIZE: u64 = 64 << 20;

/// A claim whose file system guests share, and its volume, which is a directory of the node.
const SHARED: &str = "\
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: manual-shared
  capacity: {storage: 64Mi}
  local: {path: /var/lib/kubevirt/volumes/shared}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-1]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared}
spec: {accessModes: [ReadWriteOnce], storageClassName: manual-shared, volumeName: shared, resources: {requests: {storage: 64Mi}}}
";

/// An instance with a claim as its second disk, before those with files of objects. It shares the file system of another claim, if
/// the node has it, and a directory of its launcher's container then.
fn keeper(storage: Storage) -> String {
    let (disks, mut volumes) = (projected::DISKS, projected::VOLUMES.to_owned());
    let mut filesystems = "";
    if storage == Storage::Node {
        filesystems = "{name: shared, virtiofs: {}}, {name: container, virtiofs: {}}";
        volumes += ", {name: shared, persistentVolumeClaim: {claimName: shared}}, {name: container, containerPath: {path: /etc}}";
    }
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: keeper}}\nspec:\n  terminationGracePeriodSeconds: 0\n  domain:\n    memory: {{guest: 256Mi}}\n    devices: {{autoattachGraphicsDevice: false, autoattachPodInterface: false, disks: [{{name: root, disk: {{bus: virtio}}}}, {{name: data, disk: {{bus: virtio}}}}, {disks}], filesystems: [{filesystems}]}}\n  volumes: [{{name: root, containerDisk: {{image: '{GUEST}', imagePullPolicy: Never}}}}, {{name: data, persistentVolumeClaim: {{claimName: data}}}}, {volumes}]\n"
    )
}

/// The disk that is plugged into it.
const EXTRA: &str = "vdg";

/// Where the volumes of claims come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// Directories of the only node.
    Node,
    /// The default StorageClass.
    Class,
}

/// A claim, and the volume that it is bound to.
fn claim(name: &str, storage: Storage) -> String {
    if storage == Storage::Class {
        return format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: '{SIZE}'}}}}}}\n"
        );
    }
    let access = format!("accessModes: [ReadWriteOnce], storageClassName: manual-{name}");
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec: {{{access}, capacity: {{storage: '{SIZE}'}}, hostPath: {{path: {DIRECTORY}/{name}, type: DirectoryOrCreate}}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec: {{{access}, volumeName: {name}, resources: {{requests: {{storage: '{SIZE}'}}}}}}\n"
    )
}

/// An instance waits for its claim, whose disk is made, and keeps what the guest wrote.
pub(super) fn are_kept(vireo: &Vireo<'_>, storage: Storage) -> Result<(), HostError> {
    vireo.step("an instance waits for its claim");
    if storage == Storage::Node {
        // As a file system is that was just made: its root alone belongs to root.
        vireo
            .on_node(&format!("mkdir -p {DIRECTORY}/shared; echo of the node >{DIRECTORY}/shared/by-node"))?;
        vireo.feed("create -f -", SHARED);
    }
    vireo.feed("create -f -", &keeper(storage));
    let vmi = vireo.becomes("vmi keeper", "says what it waits for", |vmi| {
        condition(vmi, "Synchronized")["reason"] == "FailedPvcNotFound"
    })?;
    let why = &condition(&vmi, "Synchronized")["message"];
    let name = format!("{}/data", vireo.namespace);
    assert!(why.as_str().is_some_and(|why| why.contains(&name)), "{why}");
    assert!(vireo.pods("keeper")?.is_empty());
    vireo.feed("create -f -", projected::OBJECTS);
    vireo.step("the claim appears");
    vireo.feed("create -f -", &claim("data", storage));
    let vmi = vireo.phase("keeper", "Running")?;
    assert_ne!(condition(&vmi, "Synchronized")["status"], "False", "{:#}", vmi["status"]);
    let mut guest = Login::over(vireo.console_process("keeper")?);
    guest.log_in()?;
    has_its_size(&mut guest, "vdb", storage)?;
    projected::are_read(vireo, &mut guest)?;
    guest.run("echo kept | dd of=/dev/vdb bs=512 conv=sync,fsync")?;
    if storage == Storage::Node {
        is_shared(vireo, &mut guest)?;
    }
    one_is_plugged(vireo, &mut guest, storage)?;
    vireo.ok(&format!("delete vmi keeper {LIMIT}"));
    vireo.gone("keeper")?;
    match storage {
        Storage::Node => {
            let written =
                vireo.on_node(&format!("cd {DIRECTORY}/data; head -c 5 disk.img; stat -c %s disk.img"))?;
            assert_eq!(written.trim(), format!("kept\n{SIZE}"));
            is_deleted(vireo, "shared", storage);
        }
        Storage::Class => {
            vireo.feed("create -f -", &keeper(storage));
            vireo.phase("keeper", "Running")?;
            let mut guest = Login::over(vireo.console_process("keeper")?);
            guest.log_in()?;
            let read = guest.run("head -n 1 /dev/vdb")?;
            assert!(read.trim().ends_with("kept"), "{read}");
            vireo.ok(&format!("delete vmi keeper {LIMIT}"));
            vireo.gone("keeper")?;
        }
    }
    is_deleted(vireo, "data", storage);
    vireo.feed(&format!("delete -f - {LIMIT}"), projected::OBJECTS);
    Ok(())
}

/// What the guest writes to a file system is in the claim, and what others write there is in the guest.
fn is_shared(vireo: &Vireo<'_>, guest: &mut Login<'_>) -> Result<(), HostError> {
    vireo.step("a guest shares the file system of a claim");
    let mount = "mkdir -p /tmp/shared; mount -t virtiofs shared /tmp/shared; cat /tmp/shared/by-node";
    assert_eq!(guest.run(mount)?.trim(), "of the node");
    guest.run("echo of the guest >/tmp/shared/by-guest")?;
    let written = format!("cd {DIRECTORY}/shared; cat by-guest; stat -c %u by-guest; echo later >later");
    assert_eq!(vireo.on_node(&written)?.trim(), "of the guest\n107");
    assert_eq!(guest.run("cat /tmp/shared/later; umount /tmp/shared")?.trim(), "later");
    vireo.step("a guest reads a directory of its launcher's container");
    let address = vireo.pods("keeper")?.pop().unwrap_or_default()["status"]["podIP"].clone();
    let address = address.as_str().expect("a Pod has an address").to_owned();
    let line = "mount -t virtiofs container /tmp/shared; grep -v '^#' /tmp/shared/hosts; \
        touch /tmp/shared/more 2>/dev/null && echo written; umount /tmp/shared";
    let hosts = guest.run(line)?;
    let has_its_pod = hosts.lines().any(|line| line.split_whitespace().next() == Some(address.as_str()));
    assert!(has_its_pod && !hosts.contains("written"), "{address}: {hosts}");
    Ok(())
}

/// Deletes a claim, and the volume where the test has made it.
fn is_deleted(vireo: &Vireo<'_>, name: &str, storage: Storage) {
    vireo.ok(&format!("delete pvc {name} {LIMIT}"));
    if storage == Storage::Node {
        vireo.ok(&format!("delete pv {name} {LIMIT}"));
    }
}

/// The disk of a guest is as large as its claim; a StorageClass may give more than was asked for.
fn has_its_size(guest: &mut Login<'_>, disk: &str, storage: Storage) -> Result<(), HostError> {
    let sectors = guest.run(&format!("cat /sys/block/{disk}/size"))?;
    let sectors: u64 = sectors.trim().parse().unwrap_or_else(|error| panic!("{error}: {sectors}"));
    let asked = SIZE / 512;
    assert!(sectors == asked || storage == Storage::Class && sectors > asked, "{disk}: {sectors} sectors");
    Ok(())
}

/// Waits until a disk of a guest is there, or no longer is.
fn sees(guest: &mut Login<'_>, disk: &str, there: bool) -> Result<(), HostError> {
    let not = if there { "" } else { "! " };
    let line = format!(
        "for i in $(seq 100); do [ {not}-e /sys/block/{disk} ] && break; sleep 0.2; done; [ {not}-e /sys/block/{disk} ] && echo done"
    );
    assert_eq!(guest.run(&line)?.trim(), "done", "{disk}");
    Ok(())
}

/// The Pod that has the claim `extra`, once its volume is in the guest and the instance names it.
fn attachment(vireo: &Vireo<'_>) -> Result<Value, HostError> {
    let mut found = Value::Null;
    vireo.becomes("vmi keeper", "names the Pod of its volume", |vmi| {
        let mut volumes = vmi["status"]["volumeStatus"].as_array().into_iter().flatten();
        let volume = volumes.find(|volume| volume["name"] == "extra" && volume["phase"] == "Ready");
        found = volume.map_or(Value::Null, |volume| volume["hotplugVolume"].clone());
        found["attachPodUID"].is_string()
    })?;
    let pod = vireo.items("pods -l kubevirt.io=hotplug-disk")?.pop().unwrap_or_default();
    let named = pod["metadata"]["name"] == found["attachPodName"];
    Ok(if named && pod["metadata"]["uid"] == found["attachPodUID"] { pod } else { Value::Null })
}

/// A claim comes into a guest that runs, and leaves it.
fn one_is_plugged(vireo: &Vireo<'_>, guest: &mut Login<'_>, storage: Storage) -> Result<(), HostError> {
    vireo.step("a volume is plugged into a guest");
    vireo.feed("create -f -", &claim("extra", storage));
    vireo.virtctl("addvolume keeper --volume-name=extra --bus=virtio")?.ok();
    let mut pod = Value::Null;
    eventually("the volume is in the guest", STEP, || {
        pod = attachment(vireo)?;
        Ok(!pod.is_null())
    })?;
    assert_eq!(pod["metadata"]["labels"]["kubevirt.io"], "hotplug-disk", "{pod:#}");
    sees(guest, EXTRA, true)?;
    has_its_size(guest, EXTRA, storage)?;
    guest.run(&format!("echo plugged | dd of=/dev/{EXTRA} bs=512 conv=sync,fsync"))?;

    vireo.step("its Pod cannot be evicted, and is made again");
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let eviction = format!(
        "{{\"apiVersion\": \"policy/v1beta1\", \"kind\": \"Eviction\", \"metadata\": {{\"name\": \"{name}\", \"namespace\": \"{}\"}}}}",
        vireo.namespace
    );
    let path = format!("create --raw /api/v1/namespaces/{}/pods/{name}/eviction -f -", vireo.namespace);
    let refused = vireo.fails(&path, &eviction)?;
    assert!(refused.contains(&format!("{}/keeper", vireo.namespace)), "{refused}");
    vireo.ok(&format!("delete pod {name} {LIMIT}"));
    eventually("there is another one", STEP, || {
        let other = attachment(vireo)?;
        Ok(!other.is_null() && other["metadata"]["uid"] != pod["metadata"]["uid"])
    })?;
    let read = guest.run(&format!("echo 3 >/proc/sys/vm/drop_caches; head -n 1 /dev/{EXTRA}"))?;
    // The kernel writes to the console, too.
    assert!(read.trim().ends_with("plugged"), "the guest keeps its disk: {read}");

    vireo.step("the volume is removed");
    vireo.virtctl("removevolume keeper --volume-name=extra")?.ok();
    sees(guest, EXTRA, false)?;
    eventually("no attachment Pod is left", STEP, || {
        Ok(vireo.items("pods -l kubevirt.io=hotplug-disk")?.is_empty())
    })?;
    if storage == Storage::Node {
        let written = vireo.on_node(&format!("head -n 1 {DIRECTORY}/extra/disk.img"))?;
        assert_eq!(written.trim(), "plugged");
    }
    is_deleted(vireo, "extra", storage);
    Ok(())
}
