//! The controller of VMs.

use vireo_api::names::VMI_FINALIZER;

use super::subresources::send;
use super::*;

async fn create(cluster: &Cluster, spec: Value) {
    cluster.create(Kind::VM, "web", json!({ "spec": spec })).await;
    cluster.start_controllers();
}

fn spec(strategy: &str) -> Value {
    json!({"runStrategy": strategy, "template": {"spec": vmi_spec()}})
}

fn vm(cluster: &Cluster) -> Value {
    cluster.object(Kind::VM, "web")
}

fn vmi(cluster: &Cluster) -> Value {
    cluster.object(Kind::VMI, "web")
}

fn uid(object: &Value) -> Value {
    object["metadata"]["uid"].clone()
}

/// Waits until the VM has this `printableStatus`.
async fn is_shown_as(cluster: &Cluster, status: &str) {
    cluster.until(status, || vm(cluster)["status"]["printableStatus"] == status).await;
}

/// Waits until the VM has a VMI, and plays the node, which runs it.
async fn runs(cluster: &Cluster) {
    cluster.until("a VMI", || !vmi(cluster).is_null() && !is_being_deleted(&vmi(cluster))).await;
    reach(cluster, "Running").await;
    is_shown_as(cluster, "Running").await;
}

/// Plays the node: the VMI reaches a phase.
async fn reach(cluster: &Cluster, phase: &str) {
    let reached = vmi(cluster)["status"]["phaseTransitionTimestamps"].clone();
    let mut reached = reached.as_array().cloned().unwrap_or_default();
    reached.push(json!({"phase": phase, "phaseTransitionTimestamp": "2026-01-01T00:00:00Z"}));
    // What is on a node is ended by the node alone.
    let status = json!({"phase": phase, "nodeName": "node1", "phaseTransitionTimestamps": reached});
    cluster.patch_status(Kind::VMI, "web", status).await;
}

/// Plays the node for a VMI that is deleted while it runs: it ends, and the node holds it no longer.
async fn end(cluster: &Cluster) {
    cluster.until("the VMI is being deleted", || is_being_deleted(&vmi(cluster))).await;
    let held = finalizers(cluster);
    let others: Vec<&String> = held.iter().filter(|one| *one != VMI_FINALIZER).collect();
    cluster.patch(Kind::VMI, "web", json!({"metadata": {"finalizers": others}})).await;
    reach(cluster, "Succeeded").await;
}

fn finalizers(cluster: &Cluster) -> Vec<String> {
    serde_json::from_value(vmi(cluster)["metadata"]["finalizers"].clone()).unwrap_or_default()
}

#[tokio::test]
async fn a_vm_gets_a_vmi_and_takes_it_along() {
    on_a_server(async |cluster| {
        create(cluster, spec("Always")).await;
        let name = || vmi(cluster)["status"]["virtualMachineRevisionName"].as_str().map(str::to_owned);
        cluster.until("the name of a revision", || name().is_some()).await;
        let created = vmi(cluster);
        assert_eq!(created["metadata"]["ownerReferences"][0]["name"], "web");
        assert_eq!(created["metadata"]["annotations"]["kubevirt.io/vm-generation"], "1");
        let name = name().unwrap();
        cluster.until("the revision", || !cluster.object(Kind::CONTROLLER_REVISION, &name).is_null()).await;
        let revision = cluster.object(Kind::CONTROLLER_REVISION, &name);
        let memory = revision.pointer("/data/spec/template/spec/domain/memory/guest");
        assert_eq!(memory, Some(&json!("64Mi")));
        assert_eq!(revision["metadata"]["ownerReferences"][0]["uid"], uid(&vm(cluster)));
        is_shown_as(cluster, "Starting").await;
        runs(cluster).await;
        assert_eq!(vmi(cluster)["status"]["virtualMachineRevisionName"], name, "the node keeps it");

        let template = json!({"template": {"spec": {"hostname": "other"}}});
        cluster.patch(Kind::VM, "web", json!({ "spec": template })).await;
        let needs_restart = || {
            let conditions = vm(cluster)["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "RestartRequired")
        };
        cluster.until("it needs a restart", needs_restart).await;

        cluster.delete(Kind::VM, "web").await;
        is_shown_as(cluster, "Terminating").await;
        end(cluster).await;
        cluster.until("both are gone", || vmi(cluster).is_null() && vm(cluster).is_null()).await;
        let expected = reasons(["SuccessfulCreate", "SuccessfulDelete"]);
        cluster.until("events", || cluster.reasons() == expected).await;
    })
    .await;
}

#[tokio::test]
async fn a_vmi_that_ended_is_replaced_once() {
    on_a_server(async |cluster| {
        create(cluster, spec("Always")).await;
        runs(cluster).await;
        let first = uid(&vmi(cluster));
        reach(cluster, "Succeeded").await;
        // The controller deletes it and counts its end; then the node, where there is one, lets it go.
        let is_counted = || {
            vmi(cluster).is_null()
                || finalizers(cluster) == [VMI_FINALIZER] && is_being_deleted(&vmi(cluster))
        };
        let is_replaced = || !vmi(cluster).is_null() && uid(&vmi(cluster)) != first;
        cluster.until("its end is counted", || is_counted() || is_replaced()).await;
        if uid(&vmi(cluster)) == first {
            cluster.patch(Kind::VMI, "web", json!({"metadata": {"finalizers": null}})).await;
        }
        cluster.until("another VMI", is_replaced).await;
        runs(cluster).await;
        assert_eq!(cluster.ever(Kind::VMI), 2);
        assert!(!cluster.reasons().contains("FailedCreate"));
    })
    .await;
}

#[tokio::test]
async fn a_vmi_that_cannot_be_deleted_is_an_event_and_tried_again() {
    on_a_server(async |cluster| {
        create(cluster, spec("Always")).await;
        runs(cluster).await;
        let rules =
            restrict(cluster, "virtualmachineinstances", &["get", "list", "watch", "create", "patch"]).await;
        cluster.patch(Kind::VM, "web", json!({"spec": {"runStrategy": "Halted"}})).await;
        cluster.until("an event", || cluster.reasons().contains("FailedDelete")).await;
        assert!(!is_being_deleted(&vmi(cluster)));
        set_rules(cluster, &rules).await;
        cluster.until("it is deleted", || vmi(cluster).is_null() || is_being_deleted(&vmi(cluster))).await;
    })
    .await;
}

#[tokio::test]
async fn a_vmi_of_another_owner_is_left_alone() {
    on_a_server(async |cluster| {
        create(cluster, spec("Halted")).await;
        is_shown_as(cluster, "Stopped").await;
        let other = cluster.create(Kind::VMI, "web", json!({ "spec": vmi_spec() })).await;
        cluster.patch(Kind::VM, "web", json!({"spec": {"runStrategy": "Always"}})).await;
        cluster.until("a failure", || cluster.reasons().contains("FailedCreate")).await;
        assert_eq!(uid(&vmi(cluster)), uid(&other));
        assert!(vmi(cluster)["metadata"].get("ownerReferences").is_none());
        assert_eq!(cluster.reasons(), reasons(["FailedCreate"]));
    })
    .await;
}

#[tokio::test]
async fn a_vm_is_started_and_stopped_on_request() {
    on_a_server(async |cluster| {
        create(cluster, spec("Halted")).await;
        is_shown_as(cluster, "Stopped").await;
        assert_eq!(send(cluster, ("PUT", "virtualmachines/web/start"), json!({})).await.0, 202);
        runs(cluster).await;
        assert_eq!(vm(cluster)["spec"]["runStrategy"], "Always");
        assert_eq!(send(cluster, ("PUT", "virtualmachines/web/stop"), json!({})).await.0, 202);
        end(cluster).await;
        cluster.until("it is stopped", || vmi(cluster).is_null()).await;
        is_shown_as(cluster, "Stopped").await;
        assert_eq!(vm(cluster)["spec"]["runStrategy"], "Halted");
    })
    .await;
}

#[tokio::test]
async fn a_volume_is_plugged_into_the_template_and_the_vmi() {
    on_a_server(async |cluster| {
        create(cluster, spec("Always")).await;
        runs(cluster).await;
        let add = json!({"name": "data", "disk": {},
            "volumeSource": {"persistentVolumeClaim": {"claimName": "data"}}});
        let (code, answer) = send(cluster, ("PUT", "virtualmachines/web/addvolume"), add).await;
        assert_eq!(code, 202, "{answer}");
        let count = |list: &Value| {
            list.as_array().map_or(0, |list| list.iter().filter(|one| one["name"] == "data").count())
        };
        let counts = |spec: &Value| (count(&spec["volumes"]), count(&spec["domain"]["devices"]["disks"]));
        let is_done = |expected: usize| {
            vm(cluster)["status"].get("volumeRequests").is_none()
                && counts(&vm(cluster)["spec"]["template"]["spec"]) == (expected, expected)
                && counts(&vmi(cluster)["spec"]) == (expected, expected)
        };
        cluster.until("the volume is plugged", || is_done(1)).await;
        assert_eq!(vmi(cluster)["spec"]["domain"]["memory"]["guest"], "64Mi");
        let remove = json!({"name": "data"});
        let alone = ("PUT", "virtualmachineinstances/web/removevolume");
        let (code, answer) = send(cluster, alone, remove.clone()).await;
        assert!(
            code == 409 && answer.to_string().contains("is in the template of its VM"),
            "{code} {answer}"
        );
        let (code, answer) = send(cluster, ("PUT", "virtualmachines/web/removevolume"), remove).await;
        assert_eq!(code, 202, "{answer}");
        cluster.until("the volume is unplugged", || is_done(0)).await;
    })
    .await;
}

#[tokio::test]
async fn a_vm_keeps_its_instance_type() {
    on_a_server(async |cluster| {
        let small = |memory: &str| json!({"cpu": {"guest": 2}, "memory": {"guest": memory}});
        cluster.create(Kind::INSTANCETYPE, "small", json!({"spec": small("128Mi")})).await;
        let chosen = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
        let template = json!({"spec": {"domain": {"devices": {}}}});
        create(cluster, json!({"runStrategy": "Always", "instancetype": chosen, "template": template})).await;
        runs(cluster).await;
        let memory = || vmi(cluster)["spec"]["domain"]["memory"]["guest"].clone();
        assert_eq!(memory(), "128Mi");
        let kept = vm(cluster)["status"]["instancetypeRef"].clone();
        let revision = kept["controllerRevisionRef"]["name"].as_str().unwrap();
        let revision = cluster.api(Kind::CONTROLLER_REVISION).get(revision).await.unwrap();
        assert_eq!(revision.data["data"]["spec"], small("128Mi"));

        // Another size does not reach a VM that was started before.
        cluster.patch(Kind::INSTANCETYPE, "small", json!({"spec": small("1Gi")})).await;
        let first = uid(&vmi(cluster));
        assert_eq!(send(cluster, ("PUT", "virtualmachines/web/restart"), json!({})).await.0, 202);
        end(cluster).await;
        cluster.until("another VMI", || !vmi(cluster).is_null() && uid(&vmi(cluster)) != first).await;
        assert_eq!((memory(), &vm(cluster)["status"]["instancetypeRef"]), (json!("128Mi"), &kept));
    })
    .await;
}
