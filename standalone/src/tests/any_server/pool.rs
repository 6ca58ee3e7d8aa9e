//! The controller of pools.

use vireo_operators::pool::REVISION_LABEL;

use super::*;

const POOL: Kind = Kind::POOL;

async fn start(cluster: &Cluster, replicas: i64, more: Value) {
    let template = json!({"metadata": {"labels": {"app": "web"}},
        "spec": {"runStrategy": "Halted", "template": {"spec": vmi_spec()}}});
    let mut spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "virtualMachineTemplate": template});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field.as_str()] = value.clone();
    }
    cluster.create(POOL, "web", json!({ "spec": spec })).await;
    cluster.start_controllers();
}

fn status(cluster: &Cluster) -> Value {
    cluster.object(POOL, "web")["status"].clone()
}

async fn has(cluster: &Cluster, kind: Kind, expected: &[&str]) {
    cluster.until(&format!("{expected:?}"), || names(&staying(cluster, kind)) == expected).await;
}

/// Waits until the pool has these VMs and counts them.
async fn has_vms(cluster: &Cluster, expected: &[&str]) {
    has(cluster, Kind::VM, expected).await;
    cluster.until("they are counted", || status(cluster)["replicas"] == expected.len()).await;
}

/// A change of the template.
fn memory(guest: &str) -> Value {
    let template = json!({"spec": {"domain": {"memory": {"guest": guest}}}});
    json!({"spec": {"virtualMachineTemplate": {"spec": {"template": template}}}})
}

#[tokio::test]
async fn a_pool_keeps_its_vms_and_their_template() {
    on_a_server(async |cluster| {
        start(cluster, 2, json!({})).await;
        has_vms(cluster, &["web-0", "web-1"]).await;
        has(cluster, Kind::CONTROLLER_REVISION, &["web-1"]).await;
        let uid = cluster.object(Kind::VM, "web-0")["metadata"]["uid"].clone();

        cluster.patch(POOL, "web", memory("128Mi")).await;
        let updated = || {
            let vms = cluster.objects(Kind::VM);
            let is_new = |vm: &Value| {
                vm["spec"]["template"]["spec"]["domain"]["memory"]["guest"] == "128Mi"
                    && vm["metadata"]["labels"][REVISION_LABEL] == "web-2"
            };
            vms.iter().all(is_new)
        };
        cluster.until("the VMs have the new template", updated).await;
        let vm = cluster.object(Kind::VM, "web-0");
        assert_eq!((&vm["metadata"]["uid"], &vm["metadata"]["generation"]), (&uid, &json!(2)));
        has(cluster, Kind::CONTROLLER_REVISION, &["web-2"]).await;

        // A VM that is taken from the pool is its own, and another takes its place.
        cluster.patch(Kind::VM, "web-0", json!({"metadata": {"ownerReferences": null}})).await;
        has(cluster, Kind::VM, &["web-0", "web-1", "web-2"]).await;
        cluster.patch(POOL, "web", json!({"spec": {"replicas": 0}})).await;
        has(cluster, Kind::VM, &["web-0"]).await;
        cluster.until("none is counted", || status(cluster)["replicas"] == 0).await;
        assert_eq!(status(cluster)["labelSelector"], "app=web");
        let expected = reasons(["SuccessfulCreate", "SuccessfulDelete", "SuccessfulUpdate"]);
        cluster.until("events", || expected.is_subset(&cluster.reasons())).await;
    })
    .await;
}

#[tokio::test]
async fn a_vm_that_cannot_be_created_is_an_event_and_tried_again() {
    on_a_server(async |cluster| {
        start(cluster, 0, json!({})).await;
        cluster.until("it is reconciled", || status(cluster)["replicas"] == 0).await;
        let rules = restrict(cluster, "virtualmachines", &["list", "watch"]).await;
        cluster.patch(POOL, "web", json!({"spec": {"replicas": 2}})).await;
        cluster.until("a failure", || status(cluster)["conditions"][0]["reason"] == "FailedScaleOut").await;
        cluster.until("an event", || cluster.reasons().contains("FailedCreate")).await;
        assert_eq!(cluster.ever(Kind::VM), 0);
        set_rules(cluster, &rules).await;
        has_vms(cluster, &["web-0", "web-1"]).await;
        cluster.until("no failure", || status(cluster).get("conditions").is_none()).await;

        let rules = restrict(cluster, "virtualmachines", &["list", "watch", "create", "patch"]).await;
        cluster.patch(POOL, "web", json!({"spec": {"replicas": 1}})).await;
        cluster.until("an event", || cluster.reasons().contains("FailedDelete")).await;
        set_rules(cluster, &rules).await;
        cluster.until("one VM", || staying(cluster, Kind::VM).len() == 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_paused_pool_is_left_alone() {
    on_a_server(async |cluster| {
        start(cluster, 1, json!({})).await;
        has_vms(cluster, &["web-0"]).await;
        cluster.patch(POOL, "web", json!({"spec": {"paused": true, "replicas": 2}})).await;
        cluster.until("it is paused", || cluster.reasons().contains("SuccessfulPaused")).await;
        cluster.until("its condition", || status(cluster)["conditions"][0]["type"] == "ReplicaPaused").await;
        assert_eq!(cluster.ever(Kind::VM), 1);
        cluster.patch(POOL, "web", json!({"spec": {"paused": false}})).await;
        has_vms(cluster, &["web-0", "web-1"]).await;
        cluster.until("it is resumed", || cluster.reasons().contains("SuccessfulResume")).await;
    })
    .await;
}

#[tokio::test]
async fn names_that_are_taken_are_skipped() {
    on_a_server(async |cluster| {
        let other = json!({"spec": {"runStrategy": "Halted", "template": {"spec": vmi_spec()}}});
        cluster.create(Kind::VM, "web-1", other).await;
        start(cluster, 2, json!({})).await;
        has(cluster, Kind::VM, &["web-0", "web-1", "web-2"]).await;
        cluster.until("two are counted", || status(cluster)["replicas"] == 2).await;
        assert!(cluster.object(Kind::VM, "web-1")["metadata"].get("ownerReferences").is_none());
    })
    .await;
}

#[tokio::test]
async fn a_pool_is_scaled_in_by_its_policy() {
    on_a_server(async |cluster| {
        let strategy = json!({"proactive": {"selectionPolicy": {"sortPolicy": "DescendingOrder"}}});
        start(cluster, 4, json!({ "scaleInStrategy": strategy })).await;
        has_vms(cluster, &["web-0", "web-1", "web-2", "web-3"]).await;
        cluster.scale(POOL, "web", 1).await;
        has_vms(cluster, &["web-0"]).await;
        assert_eq!(cluster.ever(Kind::VM), 4);
    })
    .await;
}

#[tokio::test]
async fn a_deleted_vm_is_replaced_under_its_name() {
    on_a_server(async |cluster| {
        start(cluster, 2, json!({})).await;
        has_vms(cluster, &["web-0", "web-1"]).await;
        let uid = cluster.object(Kind::VM, "web-0")["metadata"]["uid"].clone();
        cluster.delete(Kind::VM, "web-0").await;
        let replaced = || {
            let vm = cluster.object(Kind::VM, "web-0");
            vm.is_object() && vm["metadata"]["uid"] != uid
        };
        cluster.until("a new VM", replaced).await;
        has_vms(cluster, &["web-0", "web-1"]).await;
        assert_eq!(cluster.ever(Kind::VM), 3);
    })
    .await;
}

#[tokio::test]
async fn a_vmi_of_an_older_template_is_restarted() {
    on_a_server(async |cluster| {
        // So that nothing but the pool starts and stops it.
        let template = json!({"metadata": {"labels": {"app": "web"}},
            "spec": {"runStrategy": "Manual", "template": {"spec": vmi_spec()}}});
        start(cluster, 1, json!({ "virtualMachineTemplate": template })).await;
        has_vms(cluster, &["web-0"]).await;
        let uid = &cluster.object(Kind::VM, "web-0")["metadata"]["uid"];
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": Kind::VM.kind, "name": "web-0", "uid": uid,
            "controller": true, "blockOwnerDeletion": true});
        let vmi = json!({"metadata": {"ownerReferences": [owner], "labels": {REVISION_LABEL: "web-0"}}, "spec": vmi_spec()});
        cluster.create(Kind::VMI, "web-0", vmi).await;
        cluster.until("it was there", || cluster.ever(Kind::VMI) == 1).await;
        has(cluster, Kind::VMI, &[]).await;
        cluster.until("an event", || cluster.reasons().contains("SuccessfulDelete")).await;
    })
    .await;
}

#[tokio::test]
async fn the_revision_of_another_pool_is_not_taken_over() {
    on_a_server(async |cluster| {
        let revision = json!({"revision": 1, "data": {}});
        cluster.create(Kind::CONTROLLER_REVISION, "web-1", revision).await;
        start(cluster, 1, json!({})).await;
        cluster.until("a failure", || status(cluster)["conditions"][0]["reason"] == "FailedScaleOut").await;
        assert_eq!(cluster.ever(Kind::VM), 0);
        cluster.delete(Kind::CONTROLLER_REVISION, "web-1").await;
        has_vms(cluster, &["web-0"]).await;
    })
    .await;
}

/// The admission of a pool cannot know which instance types there will be; that of its VMs does.
#[tokio::test]
async fn a_vm_that_admission_refuses_is_tried_again() {
    cluster::in_process(async |cluster| {
        start(cluster, 0, json!({})).await;
        let spec = |instancetype: Value| json!({"spec": {"instancetype": instancetype}});
        let missing = spec(json!({"name": "none"}));
        let change = json!({"spec": {"replicas": 2, "virtualMachineTemplate": missing}});
        cluster.patch(POOL, "web", change).await;
        cluster.until("a failure", || status(cluster)["conditions"][0]["reason"] == "FailedScaleOut").await;
        cluster.until("an event", || cluster.reasons().contains("FailedCreate")).await;
        assert_eq!(cluster.ever(Kind::VM), 0);
        let change = json!({"spec": {"virtualMachineTemplate": spec(Value::Null)}});
        cluster.patch(POOL, "web", change).await;
        has_vms(cluster, &["web-0", "web-1"]).await;
        cluster.until("no failure", || status(cluster).get("conditions").is_none()).await;
    })
    .await;
}
