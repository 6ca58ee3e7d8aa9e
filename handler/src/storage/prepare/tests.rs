use std::collections::{BTreeMap, BTreeSet};

use vireo_api::decode;

use super::*;
use crate::launcher::files::PodFiles;
use crate::launcher::pod::ClaimSpace;
use crate::launcher::pod::ImageVolume;
use crate::storage::images::tests::{Built, TAR, tar_of};
use crate::storage::projected::ProjectedFiles;
use crate::storage::{AllowedDirectories, AllowedPaths};

fn vm(spec: &str) -> Vm {
    let manifest = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
         metadata: {{name: web.example, uid: 5d307ca9-b3ef-428c-8861-06e72d69f223}}\nspec: {spec}\n"
    );
    decode::manifest(&manifest).unwrap().remove(0).check().unwrap()
}

fn spec(layout: &Path, host: &Path) -> String {
    format!(
        r##"{{
  domain: {{memory: {{guest: 64Mi}}, devices: {{}}, firmware: {{kernelBoot: {{kernelArgs: quiet, container: {{
    image: "oci:{layout}:boot", kernelPath: /boot/vmlinuz, initrdPath: /boot/initrd}}}}}}}},
  volumes: [
    {{name: root, containerDisk: {{image: "oci:{layout}:disk"}}}},
    {{name: scratch, emptyDisk: {{capacity: 3Mi}}}},
    {{name: seed, cloudInitNoCloud: {{userData: "#cloud-config"}}}},
    {{name: data, hostDisk: {{path: {host}, type: DiskOrCreate, capacity: 2Mi}}}},
    {{name: own, persistentVolumeClaim: {{claimName: own}}}},
    {{name: layer, ephemeral: {{persistentVolumeClaim: {{claimName: own}}}}}}]}}"##,
        layout = layout.display(),
        host = host.display(),
    )
}

fn built() -> Built {
    let mut built = Built::new();
    built.image("disk", &[(TAR, tar_of(&[("disk/root.img", &[7; 4096])]))]);
    built.image("boot", &[(TAR, tar_of(&[("boot/vmlinuz", b"kernel"), ("boot/initrd", b"initrd")]))]);
    built
}

/// Those of a VM whose launcher has no Pod, with the layout of `built`.
fn places(built: &Built) -> Places {
    let dir = built.path();
    Places {
        vmi: dir.join("vmi"),
        disks: dir.join("vmi/volumes"),
        kept: dir.join("kept"),
        images: built.images(),
        claims: Claims::below(dir.join("claims"), crate::storage::ImageReader::InProcess),
        allowed: AllowedPaths::any(),
        pulled: BTreeMap::new(),
        image_volumes: BTreeSet::new(),
        mounted: BTreeSet::new(),
        pod: None,
        projected: ProjectedFiles::new(),
        pull_secrets: PullSecrets::default(),
        is_prepared: false,
    }
}

#[tokio::test]
async fn every_volume_becomes_the_file_its_disk_is_given() {
    let built = built();
    let dir = built.path();
    let (vmi, host) = (dir.join("vmi"), dir.join("data.img"));
    let vm = vm(&spec(&dir.join("layout"), &host));
    let places = places(&built);
    let jobs = Jobs::default();
    places.claims.provide("default", "own", 4096).unwrap();
    let prepared = prepare(&vm, &places, &jobs).await.unwrap();

    let volume = |name: &str| vmi.join("volumes").join(name);
    let sources = &prepared.disks;
    let DiskSource::Qcow2 { path, backing: Some(backing) } = &sources[0] else { panic!("{sources:?}") };
    assert_eq!(*path, volume("root.qcow2"));
    assert_eq!(fs::read(backing).unwrap(), [7; 4096]);
    assert_eq!(sources[1], DiskSource::Qcow2 { path: volume("scratch.qcow2"), backing: None });
    assert_eq!(sources[2], DiskSource::Raw(volume("seed.iso")));
    assert_eq!(sources[3], DiskSource::Raw(host.clone()));
    assert_eq!(fs::metadata(&host).unwrap().len(), 2 << 20);
    assert_eq!(sources[4], DiskSource::Raw(dir.join("claims/default/own/disk.img")));
    let own = Some(dir.join("claims/default/own/disk.img"));
    assert_eq!(sources[5], DiskSource::Qcow2 { path: volume("layer.qcow2"), backing: own });
    let header = fs::read(volume("layer.qcow2")).unwrap();
    assert_eq!(
        (&header[8..16], &header[24..32]),
        (&[0; 8][..], &4096_u64.to_be_bytes()[..]),
        "its backing, its size"
    );
    let kernel = prepared.kernel.clone().unwrap();
    assert_eq!(fs::read(kernel.kernel).unwrap(), b"kernel");
    assert_eq!(fs::read(kernel.initrd.unwrap()).unwrap(), b"initrd");

    // A handler that comes back keeps what the guest has written.
    fs::write(volume("root.qcow2"), "written").unwrap();
    fs::write(&host, "written").unwrap();
    assert_eq!(prepare(&vm, &places, &jobs).await.unwrap(), prepared);
    assert_eq!(fs::read(volume("root.qcow2")).unwrap(), b"written");
    assert_eq!(fs::read(&host).unwrap(), b"written");
}

#[tokio::test]
async fn disks_are_where_their_space_is_counted_and_images_are_held_beside_their_store() {
    let built = built();
    let dir = built.path();
    let vm = vm(&spec(&dir.join("layout"), &dir.join("data.img")));
    let places = Places { disks: dir.join("pod"), ..places(&built) };
    places.claims.provide("default", "own", 4096).unwrap();
    assert!(prepare(&vm, &places, &Jobs::default()).await.is_err(), "the kubelet has not made it");
    fs::create_dir(dir.join("pod")).unwrap();
    let prepared = prepare(&vm, &places, &Jobs::default()).await.unwrap();
    let root = DiskSource::Qcow2 {
        path: dir.join("pod/root.qcow2"),
        backing: Some(dir.join("vmi/volumes/root.base")),
    };
    let scratch = DiskSource::Qcow2 { path: dir.join("pod/scratch.qcow2"), backing: None };
    assert_eq!(prepared.disks[..3], [root, scratch, DiskSource::Raw(dir.join("pod/seed.iso"))]);
    let in_pod = fs::read_dir(dir.join("pod")).unwrap().count();
    assert_eq!((in_pod, fs::read_dir(dir.join("vmi/volumes")).unwrap().count()), (4, 1));
}

#[tokio::test]
async fn an_empty_disk_gets_what_is_not_promised() {
    let built = built();
    let dir = built.path();
    let vm = vm(&spec(&dir.join("layout"), &dir.join("data.img")).replace("3Mi", "16Ti"));
    let places = places(&built);
    places.claims.provide("default", "own", 4096).unwrap();
    let error = prepare(&vm, &places, &Jobs::default()).await.unwrap_err();
    assert_eq!(error.field().unwrap().to_string(), "spec.volumes[1].emptyDisk");
    assert_eq!(error.reason(), "FailedStorage");
    let why = vireo_client::program::chain(&error);
    assert!(why.contains("needs 16384.0 GiB") && why.contains("promised to claims"), "{why}");
    // One that was made stays, whatever is promised later.
    let at = dir.join("vmi/volumes/scratch.qcow2");
    fs::write(&at, "written").unwrap();
    prepare(&vm, &places, &Jobs::default()).await.unwrap();
    assert_eq!(fs::read(&at).unwrap(), b"written");
}

#[tokio::test]
async fn what_is_missing_is_named_by_its_field() {
    let built = built();
    let dir = built.path();
    let host_disks = AllowedDirectories::Below(vec![dir.join("layout")]);
    let places = Places { allowed: AllowedPaths { host_disks, ..AllowedPaths::any() }, ..places(&built) };
    let jobs = Jobs::default();
    let domain = "domain: {memory: {guest: 64Mi}, devices: {}}";
    let layout = dir.join("layout").display().to_string();
    for (volume, field, said) in [
        (
            format!("containerDisk: {{image: 'oci:{layout}:none'}}"),
            "spec.volumes[0].containerDisk",
            "none of the 2 images in the layout has the tag \"none\"",
        ),
        (
            format!("containerDisk: {{image: 'oci:{layout}:boot'}}"),
            "spec.volumes[0].containerDisk",
            "exactly one file",
        ),
        (
            "containerDisk: {image: 'oci:/absent'}".to_owned(),
            "spec.volumes[0].containerDisk",
            "/absent is not below a directory of --images",
        ),
        (
            format!("hostDisk: {{path: {layout}/absent, type: Disk}}"),
            "spec.volumes[0].hostDisk",
            "does not exist",
        ),
        (
            "hostDisk: {path: /etc/passwd, type: Disk}".to_owned(),
            "spec.volumes[0].hostDisk",
            "/etc/passwd is not below a directory of --host-disks",
        ),
        (
            "persistentVolumeClaim: {claimName: absent}".to_owned(),
            "spec.volumes[0].persistentVolumeClaim",
            "PVC default/absent does not exist",
        ),
    ] {
        let vm = vm(&format!("{{{domain}, volumes: [{{name: root, {volume}}}]}}"));
        let error = prepare(&vm, &places, &jobs).await.unwrap_err();
        assert_eq!(error.field().map(Field::as_str), Some(field));
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(said), "{source}");
    }
}

#[test]
fn an_image_volume_is_opened_in_the_launcher_of_its_pod() {
    let built = Built::new();
    let pod = PodFiles { pid: 7, claims: BTreeMap::new(), space: ClaimSpace::default() };
    let in_pod = Places { image_volumes: ["root".to_owned()].into(), pod: Some(pod), ..places(&built) };
    assert_eq!(in_pod.image_volume("root"), Some(ImageVolume { pid: 7, name: "root".to_owned() }));
    assert_eq!(in_pod.image_volume("data"), None, "a container has it");
    assert_eq!(places(&built).image_volume("root"), None, "this node pulls it");
}
