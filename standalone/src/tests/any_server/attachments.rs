//! Attachment Pods of hotplugged claims.

use kube::api::DeleteParams;
use vireo_operators::vmi::{Launcher, StartedBy};

use super::subresources::send;
use super::workload_update::{eventually, run};
use super::*;

const ATTACHMENTS: &str = "kubevirt.io=hotplug-disk";

async fn attachments(cluster: &Cluster) -> Vec<Value> {
    let its = kube::api::ListParams::default().labels(ATTACHMENTS);
    let all = cluster.api(Kind::POD).list(&its).await.unwrap();
    all.items.into_iter().map(|pod| serde_json::to_value(pod).unwrap()).collect()
}

async fn plug(cluster: &Cluster, claim: &str) {
    let source = json!({"persistentVolumeClaim": {"claimName": claim}});
    let add = json!({"name": claim, "disk": {}, "volumeSource": source});
    let (code, answer) = send(cluster, ("PUT", "virtualmachineinstances/a/addvolume"), add).await;
    assert_eq!(code, 202, "{answer}");
}

async fn unplug(cluster: &Cluster, claim: &str) {
    let path = "virtualmachineinstances/a/removevolume";
    let (code, answer) = send(cluster, ("PUT", path), json!({"name": claim})).await;
    assert_eq!(code, 202, "{answer}");
}

/// Reports what the node agent has in the guest.
async fn report(cluster: &Cluster, claims: &[&str]) {
    let status = |claim: &&str| json!({"name": claim, "hotplugVolume": {}, "persistentVolumeClaimInfo": {"claimName": claim}});
    let statuses: Vec<Value> = claims.iter().map(status).collect();
    cluster.patch_status(Kind::VMI, "a", json!({ "volumeStatus": statuses })).await;
}

async fn create_claim(cluster: &Cluster, name: &str) {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    cluster.create(Kind::CLAIM, name, json!({ "spec": spec })).await;
}

#[tokio::test]
async fn a_hotplugged_claim_has_a_pod_until_its_guest_has_released_it() {
    on_a_server(async |cluster| {
        super::workload_update::has_default_account(cluster).await;
        let launcher = Launcher::new("launcher:1", StartedBy::Kubelet);
        cluster.start_controllers_of(launcher);
        cluster.create(Kind::VMI, "a", json!({"spec": vmi_spec()})).await;
        let launcher = run(cluster, "launcher:1").await;
        plug(cluster, "data").await;
        plug(cluster, "other").await;
        cluster
            .until("the absent claims are an event", || cluster.reasons().contains("FailedPvcNotFound"))
            .await;
        assert_eq!(attachments(cluster).await, Vec::<Value>::new());
        create_claim(cluster, "data").await;
        eventually("there is a Pod", async || attachments(cluster).await.len() == 1).await;
        let pod = attachments(cluster).await.remove(0);
        assert_eq!(pod["metadata"]["ownerReferences"][0]["name"], launcher.as_str());
        assert_eq!(pod["metadata"]["annotations"]["vireo.io/claim"], "data");
        assert_eq!(pod["spec"]["containers"][0]["image"], "launcher:1");

        report(cluster, &["data"]).await;
        unplug(cluster, "data").await;
        create_claim(cluster, "other").await;
        eventually("there is another Pod", async || attachments(cluster).await.len() == 2).await;
        let kept = async || {
            let pods = attachments(cluster).await;
            pods.iter().filter(|pod| !is_being_deleted(pod)).count()
        };
        assert_eq!(kept().await, 2, "the guest may have the first claim");
        report(cluster, &["other"]).await;
        eventually("the first goes", async || kept().await == 1).await;
        let now = DeleteParams::default().grace_period(0);
        cluster.api(Kind::POD).delete(name(&pod), &now).await.ok();

        cluster.patch_status(Kind::VMI, "a", json!({"phase": "Succeeded"})).await;
        eventually("the other goes with the guest", async || kept().await == 0).await;
    })
    .await;
}
