//! Tests of the controllers that run on any API server: on one in this process, or on the one whose kubeconfig
//! `VIREO_TEST_KUBECONFIG` names.

mod attachments;
mod cluster;
mod configured;
mod data_volumes;
mod pods;
mod pool;
mod replicaset;
mod resources;
mod rights;
mod subresources;
mod uninstall;
mod vm;
mod workload_update;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use vireo_client::Kind;

use cluster::{Cluster, on_a_server};

/// The spec of a small VMI.
fn vmi_spec() -> Value {
    json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {}}})
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn reasons<const N: usize>(reasons: [&str; N]) -> BTreeSet<String> {
    reasons.into_iter().map(str::to_owned).collect()
}

/// Takes verbs of virt-controller away for a resource, as an administrator might. What its role was.
async fn restrict(cluster: &Cluster, resource: &str, verbs: &[&str]) -> Value {
    let before = cluster.all(cluster::CLUSTER_ROLE).get("kubevirt-controller").await.unwrap();
    let mut rules = before.data["rules"].clone();
    for rule in rules.as_array_mut().unwrap() {
        if rule["resources"] == json!([resource]) {
            rule["verbs"] = json!(verbs);
        }
    }
    set_rules(cluster, &rules).await;
    before.data["rules"].clone()
}

async fn set_rules(cluster: &Cluster, rules: &Value) {
    let patch = kube::api::Patch::Merge(json!({ "rules": rules }));
    let roles = cluster.all(cluster::CLUSTER_ROLE);
    roles.patch("kubevirt-controller", &kube::api::PatchParams::default(), &patch).await.unwrap();
}

/// Whether an object is on its way out.
fn is_being_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The objects of a kind that are not on their way out, by name.
fn staying(cluster: &Cluster, kind: Kind) -> Vec<Value> {
    cluster.objects(kind).into_iter().filter(|object| !is_being_deleted(object)).collect()
}

fn names(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(name).collect()
}
