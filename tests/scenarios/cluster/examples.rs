//! The manifests that users are shown, in a cluster: as they are, with volumes for their claims. What each promises is
//! `examples`' list, which a single host keeps, too.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use vireo_tests::cluster;
use vireo_tests::{HostError, installed};

use super::{EMULATED, LIMIT, Vireo, cluster_up, installation, leaves_nothing};
use crate::scenarios::examples::{self, Example};

/// The layouts of the images that manifests name beside the guest's.
const LAYOUTS: [&str; 2] = ["debian-oci", "kernel-oci"];
/// Where the volumes are on the node.
const VOLUMES: &str = "/var/lib/kubevirt/volumes";
/// The volume for the state of a VM beside its disks.
const STATE: &str = "\
apiVersion: v1
kind: PersistentVolume
metadata: {name: state}
spec: {accessModes: [ReadWriteOnce], storageClassName: state, capacity: {storage: 16Mi}, hostPath: {path: /var/lib/kubevirt/volumes/state, type: DirectoryOrCreate}}
---
";
/// A KubeVirt object whose VMs keep their state there.
const KEEPS_STATE: &str = r#"{"spec": {"configuration": {"vmStateStorageClass": "state"}}}"#;
const ALL: Duration = Duration::from_secs(3000);

/// Imports an image layout into the node, under its own name.
fn import_layout(vireo: &Vireo<'_>, layout: &Path) -> Result<(), HostError> {
    vireo.on_node(&format!("tar -C {} -cf - . | ctr -n k8s.io images import -", layout.display()))?;
    Ok(())
}

/// A disk of the node for claims of block devices.
struct Disk<'v> {
    vireo: &'v Vireo<'v>,
    file: PathBuf,
}

impl<'v> Disk<'v> {
    const SIZE: &'static str = "64M";

    /// Makes it of a file, which may be that of a disk that is left.
    fn attach(vireo: &'v Vireo<'_>, file: PathBuf) -> Result<(Self, String), HostError> {
        let disk = Self { vireo, file };
        disk.detach()?;
        let path = disk.file.display();
        vireo.shell(&format!("truncate -s {} {path}", Self::SIZE))?;
        let device = vireo.shell(&format!("losetup --find --show {path}"))?.trim().to_owned();
        Ok((disk, device))
    }

    fn detach(&self) -> Result<(), HostError> {
        let path = self.file.display();
        self.vireo.shell(&format!("losetup -n -O NAME -j {path} | xargs -r -n 1 losetup -d"))?;
        Ok(())
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            eprintln!("{}: {error}", self.file.display());
        }
    }
}

/// The volume for a claim of a manifest. `device` is for those of block devices.
fn volume(claim: &Value, device: &str) -> String {
    let (name, spec) = (claim["metadata"]["name"].as_str().unwrap_or_default(), &claim["spec"]);
    let source = match spec["volumeMode"] == "Block" {
        true => format!(
            "volumeMode: Block, local: {{path: {device}}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [node-1]}}]}}]}}}}"
        ),
        false => format!("hostPath: {{path: {VOLUMES}/{name}, type: DirectoryOrCreate}}"),
    };
    let (modes, size) = (&spec["accessModes"], &spec["resources"]["requests"]["storage"]);
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec: {{accessModes: {modes}, capacity: {{storage: {size}}}, claimRef: {{namespace: default, name: {name}}}, {source}}}\n"
    )
}

#[test]
fn all_run_and_go() -> Result<(), HostError> {
    let begun = Instant::now();
    let made = |target| installed::images(target).map_err(HostError::Start);
    let images = made("kernel")?;
    made("debian-disk")?;
    let cluster = cluster_up("cluster-examples", &cluster::images(), ALL)?;
    let vireo = Vireo::new(&cluster, begun);
    vireo.step("Kubernetes is up");
    for layout in LAYOUTS {
        import_layout(&vireo, &images.join(layout))?;
    }
    installation::becomes_available(&vireo)?;
    installation::configure(&vireo, EMULATED)?;
    installation::configure(&vireo, KEEPS_STATE)?;
    let (disk, device) = Disk::attach(&vireo, vireo.host.work("block.img").into())?;
    for group in examples::in_cluster() {
        vireo.step("the next examples");
        let volumes: Vec<_> = claims(&group).map(|claim| volume(claim, &device)).collect();
        for claim in claims(&group).filter(|claim| claim["spec"]["accessModes"][0] == "ReadOnlyMany") {
            // The node agent makes no disk that is only read.
            let directory = format!("{VOLUMES}/{}", claim["metadata"]["name"].as_str().unwrap_or_default());
            vireo.on_node(&format!("mkdir -p {directory}; truncate -s 64M {directory}/disk.img"))?;
        }
        vireo.feed("apply -f -", &(STATE.to_owned() + &volumes.join("---\n")));
        examples::run_and_go(&vireo, &group, || {
            Ok(vireo.items("pods -l kubevirt.io=virt-launcher")?.is_empty()
                && vireo.processes("virt-launcher")?.is_empty())
        })?;
        vireo.ok(&format!("delete pv --all {LIMIT}"));
    }
    drop(disk);
    leaves_nothing(&vireo)?;
    vireo.step("end");
    cluster.done();
    Ok(())
}

/// The claims of manifests.
fn claims(group: &[Example]) -> impl Iterator<Item = &Value> {
    let objects = group.iter().flat_map(Example::objects);
    objects.filter(|object| object["kind"] == "PersistentVolumeClaim")
}
