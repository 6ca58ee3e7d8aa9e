//! From an instance to its node: virt-controller makes the launcher Pod and the scheduler binds it, as their users of a
//! whole server.

use vireo_api::names::{CREATED_BY_LABEL, NODE_LABEL};
use vireo_apiserver::meta;
use vireo_operators::Controllers;
use vireo_operators::config::LiveConfig;
use vireo_operators::placement::controller::Controller as Placement;

use super::*;
use crate::compose::{client, scheduler};
use vireo_apiserver::garbage_collector;
use vireo_handler::heartbeat::{self, Owner};
use vireo_handler::live_settings::LiveSettings;
use vireo_install::policy::{VIRT_CONTROLLER, VIRT_HANDLER};
use vireo_install::resource::kubevirt;

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODE: &str = "/api/v1/nodes/node1";

/// A server whose instances are placed while this lives.
pub(super) struct Placed {
    pub(super) world: World,
    _controller: tokio::task::JoinSet<()>,
}

impl Placed {
    pub(super) async fn new(node: Value) -> Self {
        let world = World::new();
        for path in [NODE.to_owned(), format!("{NODE}/status")] {
            let (code, patched) = world.patch(&path, "merge", node.clone()).await;
            assert_eq!(code, 200, "{patched}");
        }
        let placement = Placement::new(scheduler(&world.server), "node1");
        let mut controller = tokio::task::JoinSet::new();
        controller.spawn(async move { placement.run().await });
        let virt_controller = client(&world.server, VIRT_CONTROLLER, "virt-controller");
        let controllers = Controllers::new(&virt_controller, launcher(), LiveConfig::default());
        controller.spawn(async move { controllers.run().await });
        let store = Arc::clone(&world.server.store);
        controller.spawn(garbage_collector::run(store, Arc::new(Registry::new(crate::resource::rows()))));
        Self { world, _controller: controller }
    }

    pub(super) async fn create(&self, name: &str, spec: Value) {
        let mut new = vmi(name);
        json_patch::merge(&mut new["spec"], &spec);
        let (code, made) = self.world.ask("POST", VMIS, new).await;
        assert_eq!(code, 201, "{made}");
    }

    async fn patch_node(&self, patch: Value) {
        assert_eq!(self.world.patch(NODE, "merge", patch).await.0, 200);
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        self.world.server.store.get(&kubevirt::VMIS.key("default", name)).map(|found| found.to_value())
    }

    /// The launcher Pods of an instance.
    pub(super) fn pods(&self, name: &str) -> Vec<Value> {
        let uid = self.get(name).unwrap_or_default()["metadata"]["uid"].clone();
        let pods = self.world.server.store.list("pods", Some("default")).objects;
        let its = |pod: &&Arc<vireo_apiserver::store::Object>| {
            pod.value()["metadata"]["labels"][CREATED_BY_LABEL] == uid
        };
        pods.iter().filter(its).map(|pod| pod.to_value()).collect()
    }

    fn node_of(&self, name: &str) -> Option<String> {
        Some(self.get(name)?["metadata"]["labels"].get(NODE_LABEL)?.as_str()?.to_owned())
    }

    /// Why an instance is not bound.
    fn why(&self, name: &str) -> String {
        let found = self.get(name).unwrap_or_default();
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let unscheduled = conditions.iter().find(|one| one["type"] == "PodScheduled");
        unscheduled.and_then(|one| one["message"].as_str()).unwrap_or_default().to_owned()
    }

    pub(super) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        self.world.until(what, holds, || ()).await;
    }
}

#[tokio::test]
async fn a_fitting_vmi_is_bound_and_another_has_a_reason() {
    let placed = Placed::new(json!({})).await;
    placed.create("fits", json!({})).await;
    placed.until("it is bound", || placed.node_of("fits").as_deref() == Some("node1")).await;
    let bound = placed.get("fits").unwrap();
    assert_eq!((&bound["status"]["phase"], &bound["metadata"]["generation"]), (&json!("Pending"), &json!(1)));
    let [pod] = placed.pods("fits").try_into().unwrap();
    assert_eq!(
        (&pod["spec"]["nodeName"], &pod["status"]["conditions"][0]["type"]),
        (&json!("node1"), &json!("PodScheduled"))
    );
    let starts = json!({"status": {"phase": "Scheduled"}});
    assert_eq!(placed.world.patch(&format!("{VMIS}/fits/status"), "merge", starts).await.0, 200);
    let active = json!({pod["metadata"]["uid"].as_str().unwrap(): "node1"});
    let is_active = || placed.get("fits").is_some_and(|vmi| vmi["status"]["activePods"] == active);
    placed.until("the Pod is noted", is_active).await;
    placed.create("picky", json!({"nodeSelector": {"disk": "ssd"}})).await;
    placed.until("it says why", || placed.why("picky").contains("node affinity/selector")).await;
    let status = &placed.get("picky").unwrap()["status"];
    let unscheduled = &status["conditions"][0];
    assert_eq!(
        (&status["phase"], &unscheduled["status"], &unscheduled["reason"]),
        (&json!("Scheduling"), &json!("False"), &json!("Unschedulable"))
    );
    let failed = || {
        let events = placed.world.server.store.list("events", Some("default")).objects;
        let failed = events.iter().filter(|event| event.value()["reason"] == "FailedScheduling");
        let kind = |event: &Arc<vireo_apiserver::store::Object>| {
            event.value()["involvedObject"]["kind"].as_str().unwrap_or_default().to_owned()
        };
        let mut kinds: Vec<String> = failed.map(kind).collect();
        kinds.sort();
        kinds
    };
    let of = |kinds: &[&str]| failed() == kinds;
    placed.until("there are events", || of(&["Pod", "VirtualMachineInstance"])).await;
    placed
        .patch_node(json!({"spec": {"unschedulable": true}, "metadata": {"labels": {"disk": "ssd"}}}))
        .await;
    placed.until("the reason changes", || placed.why("picky").contains("unschedulable")).await;
    let more = ["Pod", "Pod", "VirtualMachineInstance", "VirtualMachineInstance"];
    placed.until("there are more events", || of(&more)).await;
    placed.patch_node(json!({"spec": {"unschedulable": false}})).await;
    placed.until("it is bound", || placed.node_of("picky").is_some()).await;
    placed.patch_node(json!({"spec": {"unschedulable": true}})).await;
    placed.create("late", json!({})).await;
    placed.until("it waits", || !placed.why("late").is_empty()).await;
    assert!(placed.node_of("fits").is_some(), "what is bound stays");
}

/// The labels of the node's CPUs are written by its node agent, whether guests have KVM or are emulated.
#[tokio::test]
async fn a_vmi_with_a_named_cpu_model_is_bound_where_it_can_run() {
    let placed = Placed::new(json!({})).await;
    let cpu =
        |model: &str, features: Value| json!({"domain": {"cpu": {"model": model, "features": features}}});
    // Every x86_64 CPU that can run guests has these, and QEMU emulates them.
    placed.create("fits", cpu("Nehalem", json!([{"name": "sse4.1"}]))).await;
    placed.until("it waits", || !placed.why("fits").is_empty()).await;
    let agent = client(&placed.world.server, VIRT_HANDLER, "virt-handler");
    let mut heartbeats = tokio::task::JoinSet::new();
    heartbeats.spawn(async move {
        heartbeat::run(agent, "node1", Owner::NodeAgent, LiveSettings::fixed()).await;
    });
    placed.until("it is bound", || placed.node_of("fits").is_some()).await;
    let forbidden = json!([{"name": "sse2", "policy": "forbid"}]);
    for (name, cpu) in [
        ("obsolete", cpu("qemu64", json!([]))),
        ("lacks", cpu("", json!([{"name": "ia64"}]))),
        ("forbids", cpu("", forbidden)),
    ] {
        placed.create(name, cpu).await;
        placed.until("it waits", || placed.why(name).contains("node affinity/selector")).await;
    }
    placed.create("tolerant", cpu("host-model", json!([{"name": "sse2", "policy": "optional"}]))).await;
    placed.until("it is bound", || placed.node_of("tolerant").is_some()).await;
}

#[tokio::test]
async fn what_is_bound_takes_room_until_it_ends() {
    let allocatable = json!({"status": {"allocatable": {"memory": "400Mi", "cpu": "8"}}});
    let placed = Placed::new(allocatable).await;
    let large = || json!({"domain": {"memory": {"guest": "200Mi"}}});
    placed.create("first", large()).await;
    placed.until("the first is bound", || placed.node_of("first").is_some()).await;
    placed.create("second", large()).await;
    let full = "0/1 nodes are available: 1 Insufficient memory.";
    placed.until("the second waits", || placed.why("second") == full).await;
    let ends = json!({"status": {"phase": "Succeeded"}});
    let [pod] = placed.pods("first").try_into().unwrap();
    let path = format!("{PODS}/{}/status", pod["metadata"]["name"].as_str().unwrap());
    assert_eq!(placed.world.patch(&path, "merge", ends).await.0, 200);
    placed.until("the second is bound", || placed.node_of("second").is_some()).await;
}

#[tokio::test]
async fn an_unbound_instance_ends_when_it_is_deleted() {
    let placed = Placed::new(json!({"spec": {"unschedulable": true}})).await;
    placed.create("x", json!({})).await;
    placed.until("it waits", || !placed.why("x").is_empty()).await;
    let mut held = placed.get("x").unwrap();
    let finalizers = json!([meta::finalizers(&held)[0], "example.com/other"]);
    held["metadata"]["finalizers"] = finalizers;
    assert_eq!(placed.world.ask("PUT", &format!("{VMIS}/x"), held).await.0, 200);
    assert_eq!(placed.world.ask("DELETE", &format!("{VMIS}/x"), Value::Null).await.0, 200);
    let released =
        || placed.get("x").is_some_and(|x| x["metadata"]["finalizers"] == json!(["example.com/other"]));
    placed.until("it is released", released).await;
    assert_eq!(placed.pods("x"), Vec::<Value>::new(), "its Pod went before");
    assert_eq!(placed.get("x").unwrap()["status"]["phase"], "Failed");
    let free = json!({"metadata": {"finalizers": null}});
    assert_eq!(placed.world.patch(&format!("{VMIS}/x"), "merge", free).await.0, 200);
    placed.until("it is gone", || placed.get("x").is_none()).await;
}

#[tokio::test]
async fn a_pod_that_is_gone_is_not_created_again() {
    let placed = Placed::new(json!({})).await;
    placed.create("x", json!({})).await;
    placed.until("it is bound", || placed.node_of("x").is_some()).await;
    let [pod] = placed.pods("x").try_into().unwrap();
    let path = format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap());
    let now = json!({"gracePeriodSeconds": 0});
    assert_eq!(placed.world.ask("DELETE", &path, now).await.0, 200);
    placed.create("later", json!({})).await;
    placed.until("a later one is bound", || placed.node_of("later").is_some()).await;
    assert_eq!(placed.pods("x"), Vec::<Value>::new());
}
