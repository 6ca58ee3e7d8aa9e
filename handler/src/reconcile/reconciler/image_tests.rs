use vireo_api::decode;

use super::*;
use crate::manifests::Origin;
use crate::manifests::desired::Entry;
use crate::manifests::document::Accepted;
use crate::storage::images::tests::{Built, TAR, hold, tar_of};

/// A manifest of a VMI with this volume.
fn desired(volume: &str) -> Desired {
    let manifest = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: web, namespace: default}}\n\
         spec: {{domain: {{memory: {{guest: 64Mi}}, devices: {{autoattachPodInterface: false, disks: [\n\
         {{name: root, disk: {{bus: virtio}}}}]}}}}, volumes: [{{name: root, {volume}}}]}}\n"
    );
    let vmi = decode::manifest(&manifest).unwrap().remove(0).object;
    let manifest = Arc::new(Accepted { vmi, notices: Vec::new() });
    Desired::Entry(Entry::Present { manifest, origin: Origin::File("web.yaml".to_owned()), stop: None })
}

async fn until(node: &Node, key: &Key, wanted: impl Fn(&vireo_api::v1::VirtualMachineInstance) -> bool) {
    let mut updates = node.subscribe();
    while !node.vmi(key).is_some_and(|vmi| wanted(&vmi)) {
        updates.changed().await.unwrap();
    }
}

#[tokio::test]
async fn a_vmi_whose_image_hangs_is_corrected_and_deleted_all_the_same() {
    let mut built = Built::new();
    built.image("v1", &[(TAR, tar_of(&[("disk/a", &[7; 512])]))]);
    let node = Node::of_a_test(built.path());
    let image = format!("oci:{}/layout", built.path().display());
    let _held = hold(&node.images, &image);

    let key = Key { namespace: "default".to_owned(), name: "web".to_owned() };
    let hangs = desired(&format!("containerDisk: {{image: '{image}'}}"));
    let (sender, desired_updates) = watch::channel(hangs.clone());
    let task = tokio::spawn(VmiReconciler::new(Arc::clone(&node), key.clone()).run(desired_updates));
    let everything = async {
        until(&node, &key, |vmi| vmi.status.phase == "Scheduling").await;
        let first = node.vmi(&key).unwrap().metadata.uid.clone();
        sender.send(desired(&format!("containerDisk: {{image: '{image}:v1'}}"))).unwrap();
        until(&node, &key, |vmi| vmi.metadata.uid != first && vmi.status.phase == "Scheduling").await;
        sender.send(Desired::Nothing).unwrap();
        task.await.unwrap()
    };
    let done = tokio::time::timeout(Duration::from_secs(60), everything).await;
    assert_eq!(done.expect("the reconciler does not wait for the image"), key);
    assert!(node.vmi(&key).is_none());
    assert_eq!(node.state.vmi_dirs().unwrap(), []);
}

#[tokio::test]
async fn a_vmi_without_its_image_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of_a_test(dir.path());
    let key = Key { namespace: "default".to_owned(), name: "web".to_owned() };
    let (sender, desired_updates) = watch::channel(desired("containerDisk: {image: 'oci:/absent'}"));
    let task = tokio::spawn(VmiReconciler::new(Arc::clone(&node), key.clone()).run(desired_updates));
    let fails = |vmi: &vireo_api::v1::VirtualMachineInstance| {
        let found = vmi.status.conditions.iter().find(|condition| condition.r#type == "Synchronized");
        found.is_some_and(|found| found.status == "False" && found.reason == "ErrImagePull")
    };
    until(&node, &key, fails).await;
    assert_eq!(node.vmi(&key).unwrap().status.phase, "Scheduling", "it may come yet");
    sender.send(Desired::Nothing).unwrap();
    assert_eq!(task.await.unwrap(), key);
}
