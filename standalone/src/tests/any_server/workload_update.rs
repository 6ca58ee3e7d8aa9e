//! Instances whose launchers are of another release.

use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use vireo_api::names::NAMESPACE;
use vireo_install::resource::crd::kubevirt_definition;
use vireo_operators::vmi::{Launcher, StartedBy};

use super::*;

const ACCOUNT: Kind = Kind::new(("", "v1"), "ServiceAccount", "serviceaccounts");
const OUTDATED: &str = "kubevirt.io/outdatedLauncherImage";
const LIMIT: Duration = Duration::from_secs(60);

/// A launcher as a kubelet starts it.
fn launcher(image: &str) -> Launcher {
    Launcher::new(image, StartedBy::Kubelet)
}

/// The KubeVirt object of the server, which tests share.
pub(super) struct Installation<'c>(&'c Cluster);

impl Installation<'_> {
    pub(super) fn api(&self) -> kube::Api<kube::api::DynamicObject> {
        Kind::KUBEVIRT.namespaced(&self.0.admin, NAMESPACE)
    }

    /// One that is rolled out, and has outdated instances stay.
    pub(super) async fn create(cluster: &Cluster) -> Installation<'_> {
        cluster.define(&[kubevirt_definition()]).await;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        cluster::put(&cluster.all(Kind::NAMESPACE), namespace).await;
        let made = Installation(cluster);
        let object =
            json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}});
        let object = serde_json::from_value(object).unwrap();
        // A new resource is not served at once.
        eventually("the object is there", async || {
            made.api().create(&PostParams::default(), &object).await.is_ok()
        })
        .await;
        let status = json!({"phase": "Deployed", "observedDeploymentID": "a", "targetDeploymentID": "b"});
        made.patch_status(status).await;
        made
    }

    pub(super) async fn patch_status(&self, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api().patch_status("kubevirt", &PatchParams::default(), &patch).await.unwrap();
    }

    /// Has outdated instances evicted.
    async fn evict(&self) {
        let strategy = json!({"workloadUpdateMethods": ["Evict"], "batchEvictionInterval": "1s"});
        let patch = Patch::Merge(json!({"spec": {"workloadUpdateStrategy": strategy}}));
        self.api().patch("kubevirt", &PatchParams::default(), &patch).await.unwrap();
    }

    /// How many instances are outdated.
    async fn counts(&self, expected: u64) {
        eventually(&format!("{expected} are outdated"), async || {
            let count = self.api().get("kubevirt").await.unwrap().data;
            count["status"]["outdatedVirtualMachineInstanceWorkloads"] == expected
        })
        .await;
    }

    async fn delete(self) {
        self.api().delete("kubevirt", &DeleteParams::default()).await.unwrap();
    }
}

pub(super) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let reached = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, reached).await.is_ok(), "{what}: not reached");
}

/// The launcher Pods of the test.
async fn pods(cluster: &Cluster) -> Vec<Value> {
    let all = cluster.api(Kind::POD).list(&Default::default()).await.unwrap();
    all.items.into_iter().map(|pod| serde_json::to_value(pod).unwrap()).collect()
}

/// Makes the account without which no Pod can be created, unless a controller of the server has.
pub(super) async fn has_default_account(cluster: &Cluster) {
    let made = cluster.try_create(ACCOUNT, "default", json!({})).await;
    assert!(made.is_ok() || super::pods::code(&made) == 409, "{made:?}");
}

/// Waits for a launcher Pod of an image, and does what the scheduler, the kubelet and the node agent do. Its name.
pub(super) async fn run(cluster: &Cluster, image: &str) -> String {
    let made = async || pods(cluster).await.iter().any(|pod| pod["spec"]["containers"][0]["image"] == image);
    eventually(&format!("a Pod of {image}"), made).await;
    let pods = pods(cluster).await;
    let pod = name(pods.iter().find(|pod| pod["spec"]["containers"][0]["image"] == image).unwrap());
    super::pods::bind(cluster, &format!("pods/{pod}/binding"), pod).await.unwrap();
    let compute = json!({"name": "compute", "image": image, "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {}}});
    cluster.patch_status(Kind::POD, pod, json!({"phase": "Running", "containerStatuses": [compute]})).await;
    let handed_over =
        || cluster.object(Kind::VMI, "a")["metadata"]["labels"]["kubevirt.io/nodeName"] == "node1";
    cluster.until("the VMI is handed over", handed_over).await;
    cluster.patch_status(Kind::VMI, "a", json!({"phase": "Running", "nodeName": "node1"})).await;
    cluster
        .until("its launcher is noted", || {
            cluster.object(Kind::VMI, "a")["status"]["launcherContainerImageVersion"] == image
        })
        .await;
    pod.to_owned()
}

fn is_marked(cluster: &Cluster) -> bool {
    cluster.object(Kind::VMI, "a")["metadata"]["labels"][OUTDATED] == ""
}

#[tokio::test]
async fn an_outdated_vmi_is_evicted_on_request_and_its_vm_starts_with_the_new_launcher() {
    on_a_server(async |cluster| {
        let installation = Installation::create(cluster).await;
        has_default_account(cluster).await;
        let before = cluster.start_controllers_of(launcher("launcher:1"));
        let spec = json!({"runStrategy": "Always", "template": {"spec": vmi_spec()}});
        cluster.create(Kind::VM, "a", json!({ "spec": spec })).await;
        let pod = run(cluster, "launcher:1").await;
        installation.counts(0).await;
        assert!(!is_marked(cluster));

        before.abort();
        cluster.start_controllers_of(launcher("launcher:2"));
        cluster.until("it is marked", || is_marked(cluster)).await;
        installation.counts(1).await;
        installation.evict().await;
        installation.counts(1).await;
        let evicted = async || is_being_deleted(&pods(cluster).await[0]);
        assert!(!evicted().await, "other components are not rolled out");
        installation.patch_status(json!({"observedDeploymentID": "b"})).await;
        eventually("it is evicted", evicted).await;
        cluster.until("that is an event", || cluster.reasons().contains("SuccessfulEvict")).await;

        let now = DeleteParams::default().grace_period(0);
        cluster.api(Kind::POD).delete(&pod, &now).await.unwrap();
        let first = cluster.object(Kind::VMI, "a")["metadata"]["uid"].clone();
        cluster.patch_status(Kind::VMI, "a", json!({"phase": "Succeeded"})).await;
        // As the node agent does.
        let release = async || {
            let vmi = cluster.object(Kind::VMI, "a");
            if vmi["metadata"]["uid"] == first && is_being_deleted(&vmi) {
                let kept = vmi["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                let kept: Vec<Value> = kept
                    .into_iter()
                    .filter(|one| one != "kubevirt.io/foregroundDeleteVirtualMachine")
                    .collect();
                let patch = Patch::Merge(json!({"metadata": {"finalizers": kept}}));
                // It may be gone meanwhile.
                let _ = cluster.api(Kind::VMI).patch("a", &PatchParams::default(), &patch).await;
            }
            vmi["metadata"]["uid"].is_string() && vmi["metadata"]["uid"] != first
        };
        eventually("the VM starts again", release).await;
        run(cluster, "launcher:2").await;
        installation.counts(0).await;
        assert!(!is_marked(cluster));
        installation.delete().await;
    })
    .await;
}
