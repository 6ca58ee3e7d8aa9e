mod orphans;

use vireo_apiserver::controller::Rounds;

use super::*;
use crate::tests::Settle as _;

struct World {
    _dir: tempfile::TempDir,
    store: Store,
    rounds: Rounds<Machines>,
}

impl World {
    fn new(strategy: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        place::prepare(&store, "node1").unwrap();
        let world = Self { _dir: dir, store, rounds: Rounds::of(Machines::default()) };
        world.put_vm(strategy);
        world
    }

    fn put_vm(&self, strategy: &str) {
        let mut value = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {},
            "spec": {"runStrategy": strategy, "template": {"spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}}}});
        meta::create(&mut value, "default", "web");
        assert_eq!((place::vms().admit)(&mut value, None), []);
        let key = place::vms().key("default", "web");
        self.store.write(&key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
    }

    fn settle(&mut self) {
        self.rounds.settle(&self.store);
    }

    fn vm(&self) -> Value {
        self.store
            .get(&place::vms().key("default", "web"))
            .map(|object| object.value.clone())
            .unwrap_or_default()
    }

    fn vmi(&self) -> Option<Arc<Object>> {
        self.store.get(&place::vmis().key("default", "web"))
    }

    /// The node's part.
    fn reach(&self, phase: &str, gone: bool) {
        place::change(&self.store, &self.vmi().unwrap(), |value| {
            value["status"]["phase"] = json!(phase);
            if let Some(reached) = value["status"]["phaseTransitionTimestamps"].as_array_mut() {
                reached.push(json!({ "phase": phase }));
            }
            if gone {
                meta::remove_finalizer(value, crate::resource::VMI_FINALIZER);
            }
            !meta::is_leaving(value) || place::is_held(value)
        })
        .unwrap();
    }

    fn events(&self) -> Vec<String> {
        let listing = self.store.list("events", None);
        let mut reasons: Vec<_> = listing
            .objects
            .iter()
            .map(|object| object.value["reason"].as_str().unwrap().to_owned())
            .collect();
        reasons.sort();
        reasons
    }
}

#[test]
fn a_machine_gets_an_instance_and_takes_it_along() {
    let mut world = World::new("Always");
    world.settle();
    let vmi = world.vmi().unwrap();
    assert_eq!(vmi.value["metadata"]["ownerReferences"][0]["name"], "web");
    assert_eq!(vmi.value["status"]["phase"], "Pending");
    let revision = vmi.value["status"]["virtualMachineRevisionName"].as_str().unwrap();
    assert!(world.store.get(&place::revisions().key("default", revision)).is_some());
    assert_eq!(world.vm()["status"]["printableStatus"], "Starting");
    world.reach("Running", false);
    world.settle();
    assert_eq!(world.vm()["status"]["printableStatus"], "Running");
    let vm = world.store.get(&place::vms().key("default", "web")).unwrap();
    place::remove(&world.store, &vm).unwrap();
    world.settle();
    assert_eq!(world.vm()["status"]["printableStatus"], "Terminating");
    world.reach("Succeeded", true);
    world.settle();
    assert_eq!((world.vmi().is_none(), world.vm()), (true, Value::Null));
    assert_eq!(world.events(), ["SuccessfulCreate", "SuccessfulDelete"]);
}

#[test]
fn an_instance_that_ended_is_replaced() {
    let mut world = World::new("Always");
    world.settle();
    let first = meta::text(&world.vmi().unwrap().value, "uid").to_owned();
    world.reach("Running", false);
    world.settle();
    world.reach("Succeeded", false);
    world.settle();
    world.reach("Succeeded", true);
    world.settle();
    assert_ne!(meta::text(&world.vmi().unwrap().value, "uid"), first);
}

#[test]
fn a_strangers_instance_is_left_alone_and_told_of_once() {
    let mut world = World::new("Halted");
    world.settle();
    assert!(world.vmi().is_none());
    let mut stranger =
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {}});
    meta::create(&mut stranger, "default", "web");
    let key = place::vmis().key("default", "web");
    world.store.write(&key, |_, _| Ok::<_, Infallible>(Change::Put(stranger))).unwrap();
    let vm = world.store.get(&place::vms().key("default", "web")).unwrap();
    place::change(&world.store, &vm, |value| {
        choose(value, "Always");
        true
    })
    .unwrap();
    world.settle();
    assert_eq!(world.events(), ["FailedCreate"]);
    assert!(world.vmi().unwrap().value["metadata"].get("ownerReferences").is_none());
}
