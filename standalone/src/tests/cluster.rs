//! The node agent's source of VMIs, as virt-handler's user of a whole server.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use vireo_api::names::{NODE_LABEL, VMI_FINALIZER};
use vireo_apiserver::meta;
use vireo_handler::cluster::{Cluster, Counts};
use vireo_handler::manifests::desired::{Entry, Update};
use vireo_handler::manifests::{Key as VmiKey, Source};
use vireo_handler::node::Node;
use vireo_handler::settings::{Isolation, Runtime, Settings};

use super::*;
use crate::compose::client;
use crate::run::unreadable_vmis;
use vireo_install::policy::{VIRT_CONTROLLER, VIRT_HANDLER};
use vireo_install::resource::kubevirt;

/// A server and its node agent's source, which follows it while this lives.
struct Followed<S> {
    world: World,
    node: Arc<Node>,
    cluster: Arc<Cluster>,
    source: S,
    _running: tokio::task::JoinSet<()>,
}

/// The node agent of a server, as virt-handler's user.
pub(super) fn node_agent(world: &World) -> (Arc<Node>, Arc<Cluster>) {
    let node = Arc::new(Node::new(Settings {
        runtime: Runtime::Process,
        isolation: Isolation::None,
        state_dir: world._dir.path().join("state"),
        hypervisor: vireo_api::spec::HypervisorChoice::Auto,
        vm_cidr: format!("{}/16", Ipv4Addr::new(10, 201, 0, 0)).parse().unwrap(),
        vm_cidr_ipv6: None,
        guest_access: Default::default(),
        storage_overcommit: 100,
        io_max: Vec::new(),
        cgroups: vireo_handler::settings::LauncherCgroups::Auto,
        launcher: "virt-launcher".into(),
        qemu: None,
        storage_dir: "/absent".into(),
        allowed: AllowedPaths::any(),
        node_name: "node1".to_owned(),
        registries: None,
        image_reader: vireo_handler::storage::ImageReader::InProcess,
    }));
    let unreadable = unreadable_vmis(&world.server.store);
    let cluster = Arc::new(Cluster::new(
        client(&world.server, VIRT_HANDLER, "virt-handler"),
        Arc::clone(&node),
        unreadable,
    ));
    (node, cluster)
}

async fn followed(world: World) -> Followed<impl Source> {
    let (node, cluster) = node_agent(&world);
    let mut running = tokio::task::JoinSet::new();
    let runs = Arc::clone(&cluster);
    running.spawn(async move { runs.run().await });
    let mut source = cluster.source();
    source.ready(Vec::new()).await;
    Followed { world, node, cluster, source, _running: running }
}

fn key(name: &str) -> VmiKey {
    VmiKey::new("default", name)
}

impl<S: Source> Followed<S> {
    async fn create_bound(&self, name: &str, node: &str) {
        assert_eq!(self.world.ask("POST", VMIS, vmi(name)).await.0, 201);
        self.bind(name, node).await;
    }

    async fn bind(&self, name: &str, node: &str) {
        let patch = json!({"metadata": {"labels": {NODE_LABEL: node}}});
        let vmis = vireo_client::Kind::VMI
            .namespaced(&client(&self.world.server, VIRT_CONTROLLER, "virt-controller"), "default");
        vmis.patch(name, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(patch)).await.unwrap();
    }

    /// The next update that names something: a change may have been part of the update before.
    async fn next(&mut self) -> Update {
        loop {
            let changed = tokio::time::timeout(LIMIT, self.source.changed()).await;
            assert!(changed.is_ok(), "nothing changes");
            let update = self.source.update(&BTreeMap::new());
            if update.only.as_ref().is_none_or(|only| !only.is_empty()) {
                return update;
            }
        }
    }

    fn get(&self, name: &str) -> Option<Value> {
        self.world.server.store.get(&kubevirt::VMIS.key("default", name)).map(|found| found.to_value())
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        self.world.until(what, holds, || ()).await;
    }
}

#[tokio::test]
async fn a_vmi_is_validated_once_and_others_cost_nothing() {
    let mut one = followed(World::new()).await;
    assert!(one.source.update(&BTreeMap::new()).desired.entries.is_empty());
    one.create_bound("x", "node1").await;
    let update = one.next().await;
    assert_eq!(update.only, Some([key("x")].into()));
    assert!(matches!(update.desired.entries[&key("x")], Entry::Present { .. }));
    assert_eq!(one.cluster.counts(), Counts { changes: 1, validations: 1 });

    one.world.ask("POST", MAPS, map("a", json!({}))).await;
    one.create_bound("elsewhere", "node2").await;
    assert_eq!(one.world.ask("POST", VMIS, vmi("unbound")).await.0, 201);
    let status = json!({"status": {"phase": "Scheduled"}});
    assert_eq!(one.world.patch(&format!("{VMIS}/x/status"), "merge", status).await.0, 200);
    one.create_bound("y", "node1").await;
    let update = one.next().await;
    assert_eq!(update.only, Some([key("y")].into()), "a status changes nothing of what is wanted");
    assert_eq!(one.cluster.counts(), Counts { changes: 3, validations: 2 }, "x twice and y");
}

#[tokio::test]
async fn what_ended_or_is_invalid_or_cannot_be_read_is_held() {
    let lost = kubevirt::VMIS.key("default", "lost");
    let world = World::with_unreadable(std::slice::from_ref(&lost));
    assert_eq!(world.ask("POST", VMIS, vmi("ended")).await.0, 201);
    let status = json!({"status": {"phase": "Failed"}});
    assert_eq!(world.patch(&format!("{VMIS}/ended/status"), "merge", status).await.0, 200);
    let invalid = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "spec": {},
        "metadata": {"name": "invalid", "namespace": "default", "uid": uuid::Uuid::nil().to_string(),
            "labels": {NODE_LABEL: "node1"}}});
    let put = |_: Option<&Arc<_>>, _: &Store| Ok::<_, ()>(vireo_apiserver::store::Change::Put(invalid));
    world.server.store.write(&kubevirt::VMIS.key("default", "invalid"), put).unwrap();
    let mut one = followed(world).await;
    one.bind("ended", "node1").await;
    let first = one.source.update(&BTreeMap::new());
    assert_eq!(first.only, None);
    let mut held = first.desired.entries;
    while !held.contains_key(&key("ended")) {
        held.extend(one.next().await.desired.entries);
    }
    assert_eq!(held.keys().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["ended", "invalid", "lost"]);
    assert!(held.values().all(|entry| matches!(entry, Entry::Held)));
}

#[tokio::test]
async fn a_deleted_vmi_is_released_when_nothing_is_left_of_it() {
    let mut one = followed(World::new()).await;
    one.create_bound("x", "node1").await;
    one.source.update(&BTreeMap::new());
    while one.cluster.counts().validations == 0 {
        one.next().await;
    }
    let mut other = one.get("x").unwrap();
    other["metadata"]["finalizers"] = json!([VMI_FINALIZER, "example.com/other"]);
    assert_eq!(one.world.ask("PUT", &format!("{VMIS}/x"), other).await.0, 200);
    let soon = json!({"gracePeriodSeconds": 3});
    assert_eq!(one.world.ask("DELETE", &format!("{VMIS}/x"), soon).await.0, 200);
    while one.next().await.desired.graces.get(&key("x")) != Some(&3) {}
    one.source.settle(&|_, _| true);
    one.source.settle(&|_, _| false);
    let released =
        || one.get("x").is_some_and(|x| x["metadata"]["finalizers"] == json!(["example.com/other"]));
    one.until("it is released", released).await;
    assert_eq!(one.get("x").unwrap()["status"]["phase"], "Failed", "it never ran");
}

#[tokio::test]
async fn a_status_is_written_to_its_own_object_with_events() {
    let one = followed(World::new()).await;
    one.create_bound("x", "node1").await;
    let revision = json!({"status": {"virtualMachineRevisionName": "r"}});
    assert_eq!(one.world.patch(&format!("{VMIS}/x/status"), "merge", revision).await.0, 200);
    let mut shown: vireo_api::v1::VirtualMachineInstance =
        serde_json::from_value(one.get("x").unwrap()).unwrap();
    let uid = std::mem::replace(&mut shown.metadata.uid, uuid::Uuid::nil().to_string());
    shown.status = Default::default();
    shown.status.phase = "Failed".to_owned();
    one.node.show(&key("x"), Some(shown.clone()));
    shown.metadata.uid.clone_from(&uid);
    shown.status.phase = "Running".to_owned();
    shown.status.node_name = "node1".to_owned();
    one.node.show(&key("x"), Some(shown));
    one.until("it runs", || one.get("x").is_some_and(|x| x["status"]["phase"] == "Running")).await;
    assert_eq!(one.get("x").unwrap()["status"]["virtualMachineRevisionName"], "r");
    let events = || one.world.server.store.list("events", Some("default")).objects;
    one.until("there are events", || events().len() == 2).await;
    let mut reasons = Vec::new();
    for event in events() {
        let event = event.value();
        assert_eq!(event["involvedObject"]["uid"], uid);
        assert_eq!(event["source"], json!({"component": "virt-handler", "host": "node1"}));
        reasons.push(event["reason"].clone());
    }
    reasons.sort_by_key(ToString::to_string);
    assert_eq!(reasons, ["Created", "Started"]);
}

#[tokio::test]
async fn a_vmi_that_loses_its_label_keeps_its_guest() {
    let mut one = followed(World::new()).await;
    one.create_bound("x", "node1").await;
    one.source.update(&BTreeMap::new());
    while one.cluster.counts().validations == 0 {
        one.next().await;
    }
    let unbind = json!({"metadata": {"labels": {NODE_LABEL: null}}});
    let vmis = vireo_client::Kind::VMI
        .namespaced(&client(&one.world.server, VIRT_CONTROLLER, "virt-controller"), "default");
    let patch = kube::api::Patch::Merge(unbind);
    vmis.patch("x", &kube::api::PatchParams::default(), &patch).await.unwrap();
    // What comes after it is seen after it.
    one.create_bound("y", "node1").await;
    assert_eq!(one.next().await.only, Some([key("y")].into()), "nothing else is wanted of x");

    // One that is gone is no longer wanted.
    let finalizers = json!({"metadata": {"finalizers": null}});
    assert_eq!(one.world.patch(&format!("{VMIS}/y"), "merge", finalizers).await.0, 200);
    assert_eq!(one.world.ask("DELETE", &format!("{VMIS}/y"), Value::Null).await.0, 200);
    let update = one.next().await;
    assert_eq!((update.only, update.desired.entries.len()), (Some([key("y")].into()), 0));
}

#[tokio::test]
async fn a_guest_from_before_is_held_until_its_vmi_is_known_to_be_gone() {
    let mut one = followed(World::new()).await;
    assert_eq!(one.world.ask("POST", VMIS, vmi("unlabelled")).await.0, 201);
    let uid = meta::text(&one.get("unlabelled").unwrap(), "uid").parse().unwrap();
    let gone = uuid::Uuid::nil();
    one.source.ready(vec![(key("unlabelled"), uid), (key("gone"), gone)]).await;
    let first = one.source.update(&BTreeMap::new());
    assert!(first.only.is_none() && matches!(first.desired.entries[&key("unlabelled")], Entry::Held));
    if first.desired.entries.contains_key(&key("gone")) {
        let update = one.next().await;
        assert_eq!((update.only, update.desired.entries.len()), (Some([key("gone")].into()), 0));
    }
    one.bind("unlabelled", "node1").await;
    let bound = one.next().await;
    assert!(matches!(bound.desired.entries[&key("unlabelled")], Entry::Present { .. }));
}

const PODS: &str = "/api/v1/namespaces/default/pods";

impl<S: Source> Followed<S> {
    /// A launcher Pod of a VMI, bound to the node.
    async fn create_pod(&self, of: &str) {
        let uid = self.get(of).unwrap()["metadata"]["uid"].clone();
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": of, "uid": uid,
            "controller": true});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": of, "namespace": "default",
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid}, "ownerReferences": [owner]},
            "spec": {"nodeName": "node1", "containers": [{"name": "compute", "image": "launcher:1"}]}});
        let pods = vireo_client::Kind::POD
            .namespaced(&client(&self.world.server, VIRT_CONTROLLER, "virt-controller"), "default");
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&kube::api::PostParams::default(), &pod).await.unwrap();
    }

    fn pod(&self, name: &str) -> Option<Value> {
        let pods = self.world.server.store.list("pods", Some("default")).objects;
        pods.iter().find(|pod| pod.value()["metadata"]["name"] == name).map(|pod| pod.to_value())
    }

    /// Has the node show a VMI in a phase.
    fn show(&self, name: &str, phase: &str) {
        let mut shown: vireo_api::v1::VirtualMachineInstance =
            serde_json::from_value(self.get(name).unwrap()).unwrap();
        phase.clone_into(&mut shown.status.phase);
        self.node.show(&key(name), Some(shown));
    }

    /// How long the guest of a VMI gets to shut down while its VMI stays.
    async fn stop(&mut self, name: &str) -> u64 {
        loop {
            let update = self.next().await;
            if let Some(Entry::Present { stop: Some(seconds), .. }) = update.desired.entries.get(&key(name)) {
                return *seconds;
            }
        }
    }
}

#[tokio::test]
async fn a_launcher_pod_goes_as_its_guest() {
    let mut one = followed(World::new()).await;
    one.create_bound("x", "node1").await;
    one.create_pod("x").await;
    let state = |state: &str| {
        let pod = one.pod("x").unwrap_or_default();
        pod["status"]["containerStatuses"][0]["state"][state].is_object()
    };
    one.until("it is being created", || state("waiting")).await;
    one.show("x", "Running");
    one.until("it runs", || state("running") && one.pod("x").unwrap()["status"]["phase"] == "Running").await;

    // `kubectl delete pod`, and a drain: the guest is shut down, and then the Pod is gone.
    let soon = json!({"gracePeriodSeconds": 5});
    assert_eq!(one.world.ask("DELETE", &format!("{PODS}/x"), soon).await.0, 200);
    assert_eq!(one.stop("x").await, 5);
    assert!(one.pod("x").is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_string()));
    one.show("x", "Succeeded");
    one.until("the Pod is gone", || one.pod("x").is_none()).await;
}

#[tokio::test]
async fn a_guest_whose_pod_is_removed_by_force_is_ended() {
    let mut one = followed(World::new()).await;
    one.create_bound("x", "node1").await;
    one.create_pod("x").await;
    one.show("x", "Running");
    let runs = || one.pod("x").is_some_and(|pod| pod["status"]["phase"] == "Running");
    one.until("it runs", runs).await;
    let now = json!({"gracePeriodSeconds": 0});
    assert_eq!(one.world.ask("DELETE", &format!("{PODS}/x"), now).await.0, 200);
    assert_eq!(one.stop("x").await, 0);
}

#[tokio::test]
async fn a_pod_stays_while_the_record_of_its_vmi_cannot_be_read() {
    let mut one = followed(World::new()).await;
    one.create_bound("x", "node1").await;
    // As the supervisor does at the start.
    one.node.mark_unreadable(meta::text(&one.get("x").unwrap(), "uid").parse().unwrap());
    one.create_pod("x").await;
    let soon = json!({"gracePeriodSeconds": 5});
    assert_eq!(one.world.ask("DELETE", &format!("{PODS}/x"), soon).await.0, 200);
    assert_eq!(one.stop("x").await, 5, "its guest may run");
    assert!(one.pod("x").is_some());
}
