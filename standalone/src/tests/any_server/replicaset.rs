//! The controller of replica sets.

use super::*;

const SET: Kind = Kind::REPLICA_SET;

async fn start(cluster: &Cluster, replicas: i64) {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": vmi_spec()});
    let spec =
        json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template});
    cluster.create(SET, "web", json!({ "spec": spec })).await;
    cluster.start_controllers();
}

fn status(cluster: &Cluster) -> Value {
    cluster.object(SET, "web")["status"].clone()
}

fn vmis(cluster: &Cluster) -> Vec<Value> {
    staying(cluster, Kind::VMI)
}

/// The VMIs that the set controls and that stay.
fn owned(cluster: &Cluster) -> Vec<Value> {
    let set = cluster.object(SET, "web")["metadata"]["uid"].clone();
    let is_owned = |vmi: &Value| vmi["metadata"]["ownerReferences"][0]["uid"] == set;
    vmis(cluster).into_iter().filter(is_owned).collect()
}

/// Waits until the set controls so many VMIs and counts them.
async fn counts(cluster: &Cluster, number: usize) {
    let counted = || owned(cluster).len() == number && status(cluster)["replicas"] == number;
    cluster.until(&format!("{number} VMIs"), counted).await;
}

#[tokio::test]
async fn a_set_is_scaled_healed_and_adopts() {
    on_a_server(async |cluster| {
        start(cluster, 2).await;
        counts(cluster, 2).await;
        let first = vmis(cluster);
        let owner = &first[0]["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["controller"]), (&json!(SET.kind), &json!(true)));
        assert!(names(&first).iter().all(|name| name.starts_with("web")), "{:?}", names(&first));

        // A VMI that ends is replaced.
        let ended = name(&first[0]).to_owned();
        cluster.patch_status(Kind::VMI, &ended, json!({"phase": "Succeeded"})).await;
        let replaced = || owned(cluster).len() == 2 && !names(&vmis(cluster)).contains(&ended.as_str());
        cluster.until("a new VMI", replaced).await;

        // One that is ready is counted, and deleted last.
        let ready = name(&vmis(cluster)[1]).to_owned();
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        cluster.patch_status(Kind::VMI, &ready, json!({ "conditions": conditions })).await;
        cluster.until("a ready VMI", || status(cluster)["readyReplicas"] == 1).await;

        // One that lost its owner is adopted.
        let orphan = json!({"metadata": {"ownerReferences": null}});
        let orphan = cluster.patch(Kind::VMI, &ready, orphan).await;
        let of =
            |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        let adopted = || of(&cluster.object(Kind::VMI, &ready)) > of(&orphan) && owned(cluster).len() == 2;
        cluster.until("the orphan is adopted", adopted).await;
        counts(cluster, 2).await;

        cluster.scale(SET, "web", 1).await;
        counts(cluster, 1).await;
        assert_eq!(names(&vmis(cluster)), [ready.as_str()]);
        cluster.patch(SET, "web", json!({"spec": {"replicas": 0}})).await;
        counts(cluster, 0).await;
        let expected = reasons(["SuccessfulCreate", "SuccessfulDelete"]);
        cluster.until("events", || cluster.reasons() == expected).await;
    })
    .await;
}

#[tokio::test]
async fn many_vmis_are_created_once() {
    on_a_server(async |cluster| {
        start(cluster, 60).await;
        counts(cluster, 60).await;
        cluster.patch(SET, "web", json!({"spec": {"replicas": 7}})).await;
        counts(cluster, 7).await;
        assert_eq!(cluster.ever(Kind::VMI), 60, "none was created twice");
    })
    .await;
}

#[tokio::test]
async fn a_vmi_that_cannot_be_created_is_an_event_and_tried_again() {
    on_a_server(async |cluster| {
        start(cluster, 0).await;
        counts(cluster, 0).await;
        let rules = restrict(cluster, "virtualmachineinstances", &["list", "watch"]).await;
        cluster.patch(SET, "web", json!({"spec": {"replicas": 1}})).await;
        let failed = || status(cluster)["conditions"][0]["type"] == "ReplicaFailure";
        cluster.until("a failure", failed).await;
        let why = status(cluster)["conditions"][0]["message"].as_str().unwrap().to_owned();
        assert!(why.contains("cannot create resource \"virtualmachineinstances\""), "{why}");
        cluster.until("an event", || cluster.reasons().contains("FailedCreate")).await;
        set_rules(cluster, &rules).await;
        counts(cluster, 1).await;
        cluster.until("no failure", || status(cluster).get("conditions").is_none()).await;
    })
    .await;
}

#[tokio::test]
async fn a_vmi_that_cannot_be_deleted_is_an_event_and_tried_again() {
    on_a_server(async |cluster| {
        start(cluster, 1).await;
        counts(cluster, 1).await;
        let rules = restrict(cluster, "virtualmachineinstances", &["list", "watch", "create"]).await;
        cluster.patch(SET, "web", json!({"spec": {"replicas": 0}})).await;
        cluster.until("an event", || cluster.reasons().contains("FailedDelete")).await;
        assert_eq!(vmis(cluster).len(), 1);
        set_rules(cluster, &rules).await;
        counts(cluster, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_paused_set_is_left_alone() {
    on_a_server(async |cluster| {
        start(cluster, 1).await;
        counts(cluster, 1).await;
        cluster.patch(SET, "web", json!({"spec": {"paused": true, "replicas": 3}})).await;
        cluster.until("it is paused", || cluster.reasons().contains("SuccessfulPaused")).await;
        let paused = || status(cluster)["conditions"][0]["type"] == "ReplicaPaused";
        cluster.until("its condition", paused).await;
        assert_eq!(vmis(cluster).len(), 1);
        cluster.patch(SET, "web", json!({"spec": {"paused": false}})).await;
        counts(cluster, 3).await;
        cluster.until("it is resumed", || cluster.reasons().contains("SuccessfulResumed")).await;
    })
    .await;
}

#[tokio::test]
async fn a_deleted_vmi_is_replaced() {
    on_a_server(async |cluster| {
        start(cluster, 2).await;
        counts(cluster, 2).await;
        let deleted = name(&vmis(cluster)[0]).to_owned();
        cluster.delete(Kind::VMI, &deleted).await;
        let replaced = || owned(cluster).len() == 2 && !names(&vmis(cluster)).contains(&deleted.as_str());
        cluster.until("a new VMI", replaced).await;
        assert_eq!(cluster.ever(Kind::VMI), 3);
    })
    .await;
}

#[tokio::test]
async fn a_vmi_that_does_not_match_is_released() {
    on_a_server(async |cluster| {
        start(cluster, 1).await;
        counts(cluster, 1).await;
        let released = name(&vmis(cluster)[0]).to_owned();
        cluster.patch(Kind::VMI, &released, json!({"metadata": {"labels": {"app": "other"}}})).await;
        let is_released = || {
            let owners = cluster.object(Kind::VMI, &released)["metadata"]["ownerReferences"].clone();
            owners.as_array().is_none_or(Vec::is_empty) && owned(cluster).len() == 1
        };
        cluster.until("the VMI is released and replaced", is_released).await;
        assert_eq!(vmis(cluster).len(), 2);
    })
    .await;
}
