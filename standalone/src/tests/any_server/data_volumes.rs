//! DataVolumes, which the test fills as CDI does.

use vireo_operators::vmi::{Launcher, StartedBy};

use super::cluster::in_process;
use super::workload_update::eventually;
use super::*;

fn data_volumes() -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1beta1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "datavolumes.cdi.kubevirt.io"},
        "spec": {"group": "cdi.kubevirt.io", "scope": "Namespaced", "versions": [version],
            "names": {"kind": "DataVolume", "listKind": "DataVolumeList", "plural": "datavolumes",
                "singular": "datavolume"}},
    })
}

fn kubelet() -> Launcher {
    Launcher { image: "launcher:1".to_owned(), started_by: StartedBy::Kubelet, native: false }
}

fn spec_with(name: &str) -> Value {
    let mut spec = vmi_spec();
    spec["volumes"] = json!([{"name": "root", "dataVolume": {"name": name}}]);
    spec["domain"]["devices"]["disks"] = json!([{"name": "root", "disk": {"bus": "virtio"}}]);
    spec
}

async fn pods(cluster: &Cluster) -> usize {
    cluster.api(Kind::POD).list(&Default::default()).await.unwrap().items.len()
}

async fn reason(cluster: &Cluster, name: &str, kind: &str) -> Option<String> {
    let vmi = serde_json::to_value(cluster.api(Kind::VMI).get(name).await.unwrap()).unwrap();
    let conditions = vmi["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|one| one["type"] == kind)?;
    Some(condition["reason"].as_str()?.to_owned())
}

async fn printable(cluster: &Cluster, name: &str) -> String {
    let vm = serde_json::to_value(cluster.api(Kind::VM).get(name).await.unwrap()).unwrap();
    vm["status"]["printableStatus"].as_str().unwrap_or_default().to_owned()
}

async fn create_claim(cluster: &Cluster, owners: Value) {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    let metadata = json!({"ownerReferences": owners});
    cluster.create(Kind::CLAIM, "disk", json!({"metadata": metadata, "spec": spec})).await;
}

#[tokio::test]
async fn a_vm_waits_until_its_data_volume_is_filled() {
    in_process(async |cluster| {
        super::workload_update::has_default_account(cluster).await;
        cluster.define(data_volumes()).await;
        let served = async || {
            let version = Kind::DATA_VOLUME.api_version();
            let known = cluster.virt_controller().list_api_group_resources(&version).await;
            known.is_ok_and(|known| known.resources.iter().any(|one| one.name == "datavolumes"))
        };
        eventually("DataVolumes are served", served).await;
        cluster.start_controllers_of(kubelet());
        let template = json!({"spec": spec_with("disk")});
        cluster.create(Kind::VM, "a", json!({"spec": {"runStrategy": "Always", "template": template}})).await;
        eventually("there is no claim", async || printable(cluster, "a").await == "ErrorPvcNotFound").await;

        let data_volume = cluster.create(Kind::DATA_VOLUME, "disk", json!({"spec": {}})).await;
        let owner = json!([{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk",
            "uid": data_volume["metadata"]["uid"], "controller": true}]);
        create_claim(cluster, owner).await;
        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "ImportInProgress"})).await;
        eventually("it is being filled", async || printable(cluster, "a").await == "Provisioning").await;
        assert_eq!(reason(cluster, "a", "DataVolumesReady").await.as_deref(), Some("NotAllDVsReady"));
        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "WaitForFirstConsumer"})).await;
        let waits = async || printable(cluster, "a").await == "WaitingForVolumeBinding";
        eventually("nothing has bound it", waits).await;
        assert_eq!(pods(cluster).await, 0);

        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "Succeeded"})).await;
        eventually("there is a Pod", async || pods(cluster).await == 1).await;
        let pod = cluster.api(Kind::POD).list(&Default::default()).await.unwrap().items.remove(0);
        let volumes = pod.data["spec"]["volumes"].as_array().unwrap();
        assert!(volumes.iter().any(|volume| volume["persistentVolumeClaim"]["claimName"] == "disk"));
    })
    .await;
}

#[tokio::test]
async fn without_cdi_the_claim_of_a_data_volume_is_enough() {
    in_process(async |cluster| {
        super::workload_update::has_default_account(cluster).await;
        cluster.start_controllers_of(kubelet());
        cluster.create(Kind::VMI, "a", json!({"spec": spec_with("disk")})).await;
        let absent =
            async || reason(cluster, "a", "Synchronized").await.as_deref() == Some("FailedPvcNotFound");
        eventually("there is no claim", absent).await;
        assert_eq!(pods(cluster).await, 0);
        create_claim(cluster, json!([])).await;
        eventually("there is a Pod", async || pods(cluster).await == 1).await;
    })
    .await;
}
