//! The manifests that users are shown for one host: with the names that their images have in a cluster, they run there, too.
//! Those with claims are `volumes`' and `state`'s, and those of `examples/cluster` are `guest`'s and `networks`'.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vireo_tests::HostError;
use vireo_tests::eventually::eventually;

use super::{GUEST, STEP, Vireo};
use crate::scenarios::probes::condition;

/// What manifests call the images of `hack/images`.
const DISK: &str = "oci:/var/lib/images/disk-oci";
const KERNEL: &str = "oci:/var/lib/images/kernel-oci";
/// The name of the image with a kernel on the node.
const KERNEL_IMAGE: &str = "localhost/vireo/kernel";
/// Many guests start at a time, emulated, and one has to serve its page.
const BOOT: Duration = Duration::from_secs(400);
/// Guests that do not hear the power button yet get all of their grace period.
const END: Duration = Duration::from_secs(180);

/// Manifests that run side by side, and the number of their guests.
const SIDE_BY_SIDE: [(&str, usize); 8] = [
    (include_str!("../../../examples/demo.yaml"), 1),
    (include_str!("../../../examples/disk.yaml"), 1),
    (include_str!("../../../examples/kernel.yaml"), 1),
    (include_str!("../../../examples/standalone/vm.yaml"), 1),
    (include_str!("../../../examples/standalone/probes.yaml"), 1),
    (include_str!("../../../examples/standalone/files.yaml"), 1),
    (include_str!("../../../examples/standalone/instancetype.yaml"), 1),
    (include_str!("../../../examples/standalone/replicaset.yaml"), 2),
];
/// It has the labels of the replica set.
const AFTERWARDS: (&str, usize) = (include_str!("../../../examples/standalone/pool.yaml"), 2);

/// A manifest with the images of a cluster's node. One of its guests has a display.
fn adapted(manifest: &str) -> String {
    let text = manifest.replace(DISK, &format!("{GUEST}:1")).replace(KERNEL, &format!("{KERNEL_IMAGE}:1"));
    assert!(!text.contains("oci:"), "{text}");
    match text.contains("name: disk\n") {
        true => text.replace("autoattachGraphicsDevice: false", "autoattachGraphicsDevice: true"),
        false => text,
    }
}

fn is_ready(vmi: &Value) -> bool {
    condition(vmi, "Ready")["status"] == "True"
}

/// Gives images of the node names whose pull policy is not `Always`.
fn name_images(vireo: &Vireo<'_>, kernel: &Path) -> Result<(), HostError> {
    vireo.on_node(&format!("ctr -n k8s.io images tag --force {GUEST}:latest {GUEST}:1"))?;
    let layout = kernel.display();
    vireo.on_node(&format!(
        "tar -C {layout} -cf - . | ctr -n k8s.io images import --base-name {KERNEL_IMAGE} -"
    ))?;
    vireo.on_node(&format!("ctr -n k8s.io images tag --force {KERNEL_IMAGE}:latest {KERNEL_IMAGE}:1"))?;
    Ok(())
}

/// Each example runs and goes; `kernel` is the image layout with a kernel.
pub(super) fn run_and_go(vireo: &Vireo<'_>, kernel: &Path) -> Result<(), HostError> {
    vireo.step("the examples are applied");
    name_images(vireo, kernel)?;
    let all = SIDE_BY_SIDE.map(|(manifest, _)| adapted(manifest)).join("---\n");
    vireo.feed("apply -f -", &all);
    for halted in ["vm", "sized"] {
        vireo.becomes(&format!("vm {halted}"), "is stopped", |vm| {
            vm["status"]["printableStatus"] == "Stopped"
        })?;
        vireo.virtctl(&format!("start {halted}"))?.ok();
    }
    let guests = SIDE_BY_SIDE.iter().map(|(_, guests)| guests).sum();
    run(vireo, guests)?;
    vireo.step("they are used");
    is_seen(vireo)?;
    serves_its_page(vireo)?;
    vireo.step("they are deleted");
    delete(vireo, &all)?;
    vireo.step("a pool is applied and deleted");
    let (pool, guests) = (adapted(AFTERWARDS.0), AFTERWARDS.1);
    vireo.feed("apply -f -", &pool);
    run(vireo, guests)?;
    delete(vireo, &pool)
}

/// Waits until so many guests run, and are ready where they say so.
fn run(vireo: &Vireo<'_>, guests: usize) -> Result<(), HostError> {
    let mut last = Vec::new();
    eventually("all guests are ready", BOOT, || {
        last = vireo.items("vmi")?;
        Ok(last.len() == guests && last.iter().all(is_ready))
    })
    .inspect_err(|_| {
        let waiting = last.iter().filter(|vmi| !is_ready(vmi));
        waiting.for_each(|vmi| eprintln!("{}: {:#}", vmi["metadata"]["name"], vmi["status"]));
    })
}

/// The display of a guest, through the API server.
fn is_seen(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let picture = vireo.host.work("disk.png");
    vireo.virtctl(&format!("vnc screenshot disk -f {picture}"))?.ok();
    let begins = vireo.shell(&format!("head -c 4 {picture} | od -An -c"))?;
    assert!(begins.contains("P   N   G"), "{begins}");
    Ok(())
}

/// A port of a guest, through the API server. The guest is ready, so that its page is there.
fn serves_its_page(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let virtctl = vireo.host.input("virtctl");
    let request = format!(
        "printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | {virtctl} port-forward --stdio vm/probes 80"
    );
    let page = vireo.on_node(&request)?;
    assert!(page.contains("200 OK") && page.contains("hello from probes"), "{page}");
    Ok(())
}

/// Deletes what was applied, of which nothing is left.
fn delete(vireo: &Vireo<'_>, manifest: &str) -> Result<(), HostError> {
    vireo.feed("delete --wait=false -f -", manifest);
    eventually("nothing is left of it", END, || {
        let left = vireo.ok("get vm,vmi,vmirs,vmpool,virtualmachineclusterinstancetype -o name");
        Ok(left.is_empty() && vireo.items("pods -l kubevirt.io=virt-launcher")?.is_empty())
    })?;
    let left = vireo.ok("get configmap/app secret/password serviceaccount/robot --ignore-not-found -o name");
    assert_eq!(left, "");
    eventually("no launcher is left", STEP, || Ok(vireo.processes("virt-launcher")?.is_empty()))
}
