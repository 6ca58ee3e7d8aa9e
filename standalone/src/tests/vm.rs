//! The controller of VMs, as virt-controller's user of a whole server.

mod deletion;

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::task::JoinSet;
use vireo_apiserver::store::Object;
use vireo_apiserver::{garbage_collector, meta};
use vireo_operators::{Controllers, vm::FINALIZER};

use super::*;
use crate::policy::VIRT_CONTROLLER;
use crate::resource::VMI_FINALIZER;
use crate::resource::kubevirt;
use crate::run::client;
use vireo_apiserver::objects;

const VMS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const VM: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/web";
const VMI: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/web";
const ACTIONS: &str = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/web";
/// How long the controller may take.
const LIMIT: Duration = Duration::from_secs(60);

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
        let controllers = Controllers::new(&client(&self.world.server, VIRT_CONTROLLER, "virt-controller"));
        self.tasks.spawn(async move { controllers.run().await });
        let store = Arc::clone(&self.world.server.store);
        self.tasks.spawn(garbage_collector::run(store, Arc::new(Registry::new(kubevirt::rows()))));
    }

    /// Plays the node for VMIs that are being deleted.
    fn end_deleted_vmis(&mut self) {
        let store = Arc::clone(&self.world.server.store);
        self.tasks.spawn(async move {
            let mut revisions = store.subscribe();
            loop {
                for vmi in store.list(&kubevirt::VMIS.name(), None).objects {
                    let held = meta::finalizers(&vmi.value).iter().any(|one| one == VMI_FINALIZER);
                    if meta::is_leaving(&vmi.value) && held {
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

    /// Waits until something holds after a write.
    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let mut revisions = self.world.server.store.subscribe();
        let waiting = async {
            while !holds() {
                revisions.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(LIMIT, waiting).await;
        let vmi = self.vmi().map(|vmi| vmi.value.clone());
        assert!(waited.is_ok(), "{what}: {:#} with {vmi:#?}, {:?}", self.vm(), self.reasons());
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
        self.stored_vm().map(|object| object.value.clone()).unwrap_or_default()
    }

    fn vmi(&self) -> Option<Arc<Object>> {
        self.world.server.store.get(&kubevirt::VMIS.key("default", "web"))
    }

    fn uid(&self) -> String {
        self.vmi().map(|vmi| meta::text(&vmi.value, "uid").to_owned()).unwrap_or_default()
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
            if let Some(reached) = value["status"]["phaseTransitionTimestamps"].as_array_mut() {
                reached.push(json!({ "phase": phase }));
            }
        });
    }

    fn reasons(&self) -> BTreeSet<String> {
        let events = self.world.server.store.list("events", None).objects;
        events.iter().filter_map(|event| Some(event.value["reason"].as_str()?.to_owned())).collect()
    }

    fn revision(&self, name: &str) -> Option<Arc<Object>> {
        self.world.server.store.get(&vireo_apiserver::resource::CONTROLLER_REVISIONS.key("default", name))
    }
}

/// Plays the node: nothing of the VMI runs any more.
fn end(store: &Store, vmi: &Object) {
    let ended = objects::change(store, vmi, |value| {
        value["status"]["phase"] = json!("Succeeded");
        meta::remove_finalizer(value, VMI_FINALIZER);
        !meta::is_leaving(value) || objects::is_held(value)
    });
    ended.unwrap();
}

#[tokio::test]
async fn a_vm_gets_a_vmi_and_takes_it_along() {
    let vm = Controlled::new("Always").await;
    let name = || {
        let vmi = vm.vmi()?;
        Some(vmi.value["status"].get("virtualMachineRevisionName")?.as_str()?.to_owned())
    };
    vm.until("the name of a revision", || name().is_some()).await;
    let vmi = vm.vmi().unwrap();
    assert_eq!(vmi.value["metadata"]["ownerReferences"][0]["name"], "web");
    assert_eq!(vmi.value["metadata"]["annotations"]["kubevirt.io/vm-generation"], "1");
    assert_eq!(vmi.value["status"]["phase"], "Pending");
    let revision = vm.revision(&name().unwrap()).unwrap();
    let memory = "/data/spec/template/spec/domain/memory/guest";
    assert_eq!(revision.value.pointer(memory), Some(&json!("64Mi")));
    assert_eq!(revision.value["metadata"]["ownerReferences"][0]["uid"], vm.vm()["metadata"]["uid"]);
    vm.is_shown_as("Starting").await;
    vm.runs().await;
    assert_eq!(name().as_deref(), Some(revision.key.name.as_str()), "the node keeps it");

    vm.patch_vm(json!({"spec": {"template": {"spec": {"hostname": "other"}}}})).await;
    let needs_restart = || {
        let vm = vm.vm();
        let conditions = vm["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "RestartRequired")
    };
    vm.until("it needs a restart", needs_restart).await;

    assert_eq!(vm.world.ask("DELETE", VM, Value::Null).await.0, 200);
    vm.is_shown_as("Terminating").await;
    vm.until("the VMI is deleted", || meta::is_leaving(&vm.vmi().unwrap().value)).await;
    end(&vm.world.server.store, &vm.vmi().unwrap());
    vm.until("both are gone", || vm.vmi().is_none() && vm.vm().is_null()).await;
    let reasons = ["SuccessfulCreate", "SuccessfulDelete"].map(str::to_owned);
    assert_eq!(vm.reasons(), BTreeSet::from(reasons));
}

#[tokio::test]
async fn a_vmi_that_ended_is_replaced_once() {
    let vm = Controlled::new("Always").await;
    vm.runs().await;
    let first = vm.uid();
    vm.reach("Succeeded");
    vm.until("the VMI is deleted", || meta::is_leaving(&vm.vmi().unwrap().value)).await;
    end(&vm.world.server.store, &vm.vmi().unwrap());
    vm.until("another VMI", || vm.vmi().is_some_and(|vmi| meta::text(&vmi.value, "uid") != first)).await;
    vm.runs().await;
    let counts = |reason: &str| -> u64 {
        let events = vm.world.server.store.list("events", None).objects;
        let of = events.iter().filter(|event| event.value["reason"] == reason);
        of.map(|event| event.value["count"].as_u64().unwrap()).sum()
    };
    assert_eq!((counts("SuccessfulCreate"), counts("SuccessfulDelete"), counts("FailedCreate")), (2, 1, 0));
}

#[tokio::test]
async fn a_vmi_of_somebody_else_is_left_alone() {
    let vm = Controlled::new("Halted").await;
    vm.is_shown_as("Stopped").await;
    let (code, other) = vm.world.ask("POST", VMIS, vmi("web")).await;
    assert_eq!(code, 201, "{other}");
    vm.patch_vm(json!({"spec": {"runStrategy": "Always"}})).await;
    vm.until("a failure", || vm.reasons().contains("FailedCreate")).await;
    let stored = vm.vmi().unwrap();
    assert_eq!(json!(meta::text(&stored.value, "uid")), other["metadata"]["uid"]);
    assert!(stored.value["metadata"].get("ownerReferences").is_none());
    assert_eq!(vm.reasons(), BTreeSet::from(["FailedCreate".to_owned()]));
    // When it goes, the VM gets one of its own.
    assert_eq!(vm.world.ask("DELETE", VMI, Value::Null).await.0, 200);
    end(&vm.world.server.store, &vm.vmi().unwrap());
    vm.runs().await;
}

#[tokio::test]
async fn a_vm_is_started_and_stopped_on_request() {
    let mut vm = Controlled::new("Halted").await;
    vm.end_deleted_vmis();
    vm.is_shown_as("Stopped").await;
    assert_eq!(vm.world.ask("PUT", &format!("{ACTIONS}/start"), json!({})).await.0, 202);
    vm.runs().await;
    assert_eq!(vm.vm()["spec"]["runStrategy"], "Always");
    assert_eq!(vm.world.ask("PUT", &format!("{ACTIONS}/stop"), json!({})).await.0, 202);
    vm.until("it is stopped", || vm.vmi().is_none()).await;
    vm.is_shown_as("Stopped").await;
    assert_eq!(vm.vm()["spec"]["runStrategy"], "Halted");
}

#[tokio::test]
async fn a_volume_is_plugged_into_the_template_and_the_vmi() {
    let vm = Controlled::new("Always").await;
    vm.runs().await;
    let add = json!({"name": "data", "disk": {},
        "volumeSource": {"persistentVolumeClaim": {"claimName": "data"}}});
    let (code, answer) = vm.world.ask("PUT", &format!("{ACTIONS}/addvolume"), add).await;
    assert_eq!(code, 202, "{answer}");
    let names = |spec: &Value| {
        let names = |list: &Value| {
            list.as_array().map_or(0, |list| list.iter().filter(|one| one["name"] == "data").count())
        };
        (names(&spec["volumes"]), names(&spec["domain"]["devices"]["disks"]))
    };
    let is_done = |count: usize| {
        let (vm, vmi) = (vm.vm(), vm.vmi().unwrap());
        vm["status"].get("volumeRequests").is_none()
            && names(&vm["spec"]["template"]["spec"]) == (count, count)
            && names(&vmi.value["spec"]) == (count, count)
    };
    vm.until("the volume is plugged", || is_done(1)).await;
    assert_eq!(vm.vmi().unwrap().value["spec"]["domain"]["memory"]["guest"], "64Mi");
    let (code, answer) =
        vm.world.ask("PUT", &format!("{ACTIONS}/removevolume"), json!({"name": "data"})).await;
    assert_eq!(code, 202, "{answer}");
    vm.until("the volume is unplugged", || is_done(0)).await;
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
        let volumes = vm.vmi().unwrap().value["spec"]["volumes"].clone();
        vm.vm()["status"].get("volumeRequests").is_none()
            && volumes.as_array().is_some_and(|all| all.len() == 1 && all[0]["name"] == "data")
    };
    vm.until("the other one is plugged", is_done).await;
    assert!(vm.reasons().iter().any(|reason| reason == "HotplugFailed"), "{:?}", vm.reasons());
}

#[tokio::test]
async fn a_vm_keeps_its_instance_type() {
    const TYPES: &str =
        "/apis/instancetype.kubevirt.io/v1beta1/namespaces/default/virtualmachineinstancetypes";
    let mut vm = Controlled { world: World::new(), tasks: JoinSet::new() };
    vm.control();
    vm.end_deleted_vmis();
    let small = |memory: &str| {
        json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineInstancetype",
        "metadata": {"name": "small"}, "spec": {"cpu": {"guest": 2}, "memory": {"guest": memory}}})
    };
    let (code, created) = vm.world.ask("POST", TYPES, small("128Mi")).await;
    assert_eq!(code, 201, "{created}");
    let chosen = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
    let spec = json!({"runStrategy": "Always", "instancetype": chosen, "template": {"spec": {"domain": {"devices": {}}}}});
    let (code, created) = vm.world.ask("POST", VMS, manifest(spec)).await;
    assert_eq!(code, 201, "{created}");
    vm.runs().await;
    let memory = || vm.vmi().unwrap().value["spec"]["domain"]["memory"]["guest"].clone();
    assert_eq!(memory(), "128Mi");
    let kept = vm.vm()["status"]["instancetypeRef"].clone();
    let revision = vm.revision(kept["controllerRevisionRef"]["name"].as_str().unwrap()).unwrap();
    assert_eq!(revision.value["data"]["spec"], small("128Mi")["spec"]);
    assert_eq!(revision.value["metadata"]["ownerReferences"][0]["name"], "web");

    // Another size does not reach a VM that was started before.
    let (code, changed) =
        vm.world.patch(&format!("{TYPES}/small"), "merge", json!({"spec": small("1Gi")["spec"]})).await;
    assert_eq!(code, 200, "{changed}");
    let first = vm.uid();
    assert_eq!(vm.world.ask("PUT", &format!("{ACTIONS}/restart"), json!({})).await.0, 202);
    vm.until("another VMI", || vm.vmi().is_some_and(|vmi| meta::text(&vmi.value, "uid") != first)).await;
    assert_eq!((memory(), &vm.vm()["status"]["instancetypeRef"]), (json!("128Mi"), &kept));
}
