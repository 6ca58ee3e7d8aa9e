//! The controller of VMs, as virt-controller's user of a whole server.

mod deletion;

use std::collections::BTreeSet;

use tokio::task::JoinSet;
use vireo_apiserver::store::Object;
use vireo_apiserver::{garbage_collector, meta};
use vireo_operators::config::LiveConfig;
use vireo_operators::{Controllers, vm::FINALIZER};

use super::*;
use crate::compose::client;
use vireo_api::names::VMI_FINALIZER;
use vireo_apiserver::objects;
use vireo_install::policy::VIRT_CONTROLLER;
use vireo_install::resource::kubevirt;

const VMS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const VM: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/web";
const VMI: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/web";

fn domain() -> Value {
    json!({"memory": {"guest": "64Mi"}, "devices": {}})
}

fn manifest(spec: Value) -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "web"}, "spec": spec})
}

/// A server with the VM `web`, which the controller keeps while this lives.
struct Controlled {
    world: World,
    tasks: JoinSet<()>,
}

impl Controlled {
    async fn new(strategy: &str) -> Self {
        let mut controlled = Self { world: World::new(), tasks: JoinSet::new() };
        controlled.control();
        controlled.create_vm(strategy).await;
        controlled
    }

    /// Starts the controllers and the garbage collector.
    fn control(&mut self) {
        let client = client(&self.world.server, VIRT_CONTROLLER, "virt-controller");
        let controllers = Controllers::new(&client, launcher(), LiveConfig::default());
        self.tasks.spawn(async move { controllers.run().await });
        let store = Arc::clone(&self.world.server.store);
        self.tasks.spawn(garbage_collector::run(store, Arc::new(Registry::new(crate::resource::rows()))));
    }

    /// Plays the node for VMIs that are being deleted.
    fn end_deleted_vmis(&mut self) {
        let store = Arc::clone(&self.world.server.store);
        self.tasks.spawn(async move {
            let mut revisions = store.subscribe();
            loop {
                for vmi in store.list(&kubevirt::VMIS.name(), None).objects {
                    let held = meta::finalizers(&vmi.value()).iter().any(|one| one == VMI_FINALIZER);
                    if meta::is_being_deleted(&vmi.value()) && held {
                        end(&store, &vmi);
                    }
                }
                revisions.changed().await.unwrap();
            }
        });
    }

    async fn create_vm(&self, strategy: &str) {
        let spec = json!({"runStrategy": strategy, "template": {"spec": {"domain": domain()}}});
        let (code, created) = self.world.ask("POST", VMS, manifest(spec)).await;
        assert_eq!(code, 201, "{created}");
    }

    async fn patch_vm(&self, patch: Value) {
        let (code, patched) = self.world.patch(VM, "merge", patch).await;
        assert_eq!(code, 200, "{patched}");
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        self.world.until(what, holds, || (self.vm(), self.vmi(), self.reasons())).await;
    }

    /// Waits until the VM has this `printableStatus`.
    async fn is_shown_as(&self, status: &str) {
        self.until(status, || self.vm()["status"]["printableStatus"] == status).await;
    }

    /// Waits until the VM has a VMI, and has it run.
    async fn runs(&self) {
        self.until("a VMI", || self.vmi().is_some()).await;
        self.reach("Running");
        self.is_shown_as("Running").await;
    }

    fn stored_vm(&self) -> Option<Arc<Object>> {
        self.world.server.store.get(&kubevirt::VMS.key("default", "web"))
    }

    fn vm(&self) -> Value {
        self.stored_vm().map(|object| object.to_value()).unwrap_or_default()
    }

    fn vmi(&self) -> Option<Arc<Object>> {
        self.world.server.store.get(&kubevirt::VMIS.key("default", "web"))
    }

    fn uid(&self) -> String {
        self.vmi().map(|vmi| meta::text(&vmi.value(), "uid").to_owned()).unwrap_or_default()
    }

    /// Writes an object as another release would have.
    fn change(&self, object: &Object, change: impl Fn(&mut Value)) {
        let changed = objects::change(&self.world.server.store, object, |value| {
            change(value);
            true
        });
        changed.unwrap();
    }

    /// Plays the node: the VMI reaches a phase.
    fn reach(&self, phase: &str) {
        self.change(&self.vmi().unwrap(), |value| {
            value["status"]["phase"] = json!(phase);
            // What is on a node is ended by the node alone.
            value["status"]["nodeName"] = json!("node1");
            if let Some(reached) = value["status"]["phaseTransitionTimestamps"].as_array_mut() {
                reached.push(json!({ "phase": phase }));
            }
        });
    }

    fn reasons(&self) -> BTreeSet<String> {
        let events = self.world.server.store.list("events", None).objects;
        let its = events.iter().filter(|event| is_about_the_vm(event));
        its.filter_map(|event| Some(event.value()["reason"].as_str()?.to_owned())).collect()
    }
}

fn is_about_the_vm(event: &Object) -> bool {
    event.value()["involvedObject"]["kind"] == "VirtualMachine"
}

/// Plays the node: nothing of the VMI runs any more.
fn end(store: &Store, vmi: &Object) {
    let ended = objects::change(store, vmi, |value| {
        value["status"]["phase"] = json!("Succeeded");
        meta::remove_finalizer(value, VMI_FINALIZER);
        !meta::is_being_deleted(value) || objects::is_held(value)
    });
    ended.unwrap();
}

#[tokio::test]
async fn a_volume_request_that_is_refused_keeps_no_other_one() {
    let vm = Controlled::new("Always").await;
    vm.runs().await;
    let request = |name: &str, bus: &str| {
        json!({"addVolumeOptions": {"name": name, "disk": {"name": name, "disk": {"bus": bus}},
            "volumeSource": {"persistentVolumeClaim": {"claimName": name, "hotpluggable": true}}}})
    };
    let requests = json!([request("odd", "nonsense"), request("data", "scsi")]);
    let (code, _) = vm
        .world
        .patch(&format!("{VM}/status"), "merge", json!({"status": {"volumeRequests": requests}}))
        .await;
    assert_eq!(code, 200);
    let is_done = || {
        let volumes = vm.vmi().unwrap().value()["spec"]["volumes"].clone();
        vm.vm()["status"].get("volumeRequests").is_none()
            && volumes.as_array().is_some_and(|all| all.len() == 1 && all[0]["name"] == "data")
    };
    vm.until("the other one is plugged", is_done).await;
    let is_refused = || vm.reasons().iter().any(|reason| reason == "HotplugFailed");
    vm.until("there is an event of the refused one", is_refused).await;
}
