//! Whatever way a VM goes, nothing of it stays for ever.

use vireo_apiserver::garbage_collector::{Collector, FOREGROUND, ORPHAN};
use vireo_apiserver::resource::Registry;

use super::*;
use std::sync::Arc;

use crate::resource::VMI_FINALIZER;
use crate::resource::kubevirt;

fn collector() -> Collector {
    Collector::new(Arc::new(Registry::new(kubevirt::rows())))
}

impl World {
    /// Runs the controllers and plays the node until nothing changes.
    fn live(&mut self, collector: &mut Collector) {
        for _ in 0..50 {
            let before = self.store.revision();
            collector.round(&self.store, None).unwrap();
            self.settle();
            let held =
                |vmi: &Arc<Object>| meta::finalizers(&vmi.value).iter().any(|one| one == VMI_FINALIZER);
            if self.vmi().filter(|vmi| meta::is_leaving(&vmi.value)).is_some_and(|vmi| held(&vmi)) {
                self.reach("Succeeded", true);
            }
            if self.store.revision() == before {
                return;
            }
        }
        panic!("it never ends: {:#}", self.vmi().unwrap().value);
    }

    fn running(&mut self) -> Collector {
        let mut collector = collector();
        self.live(&mut collector);
        self.reach("Running", false);
        self.live(&mut collector);
        collector
    }

    fn delete_vm(&self, policy: Option<&str>) {
        let vm = self.store.get(&place::vms().key("default", "web")).unwrap();
        place::change(&self.store, &vm, |value| {
            let mut finalizers = meta::finalizers(value);
            finalizers.extend(policy.map(str::to_owned));
            meta::of(value).insert("finalizers".to_owned(), json!(finalizers));
            place::mark_for_deletion(value) == place::Leaving::Held
        })
        .unwrap();
    }

    /// As `kubectl patch` with `finalizers` that lack this one.
    fn strip(&self, key: &vireo_apiserver::store::Key, finalizer: &str) {
        let Some(object) = self.store.get(key) else { return };
        place::change(&self.store, &object, |value| {
            meta::remove_finalizer(value, finalizer);
            !meta::is_leaving(value) || place::is_held(value)
        })
        .unwrap();
    }
}

#[test]
fn nothing_of_a_vm_stays_however_it_is_deleted() {
    for policy in [None, Some(FOREGROUND), Some(ORPHAN)] {
        for by_hand in [false, true] {
            let mut world = World::new("Always");
            let mut collector = world.running();
            world.delete_vm(policy);
            if by_hand {
                world.strip(&place::vms().key("default", "web"), vm::FINALIZER);
            }
            world.live(&mut collector);
            assert_eq!(world.vm(), Value::Null, "{policy:?} {by_hand}");
            if policy == Some(ORPHAN) {
                let vmi = world.vmi().unwrap();
                assert_eq!(
                    (&vmi.value["status"]["phase"], meta::is_leaving(&vmi.value)),
                    (&json!("Running"), false)
                );
                assert_eq!(vmi.value["metadata"]["ownerReferences"], json!([]));
                place::remove(&world.store, &vmi).unwrap();
                world.live(&mut collector);
            }
            assert!(world.vmi().is_none(), "{policy:?} {by_hand}");
        }
    }
}

#[test]
fn a_vm_that_cannot_be_read_well_keeps_no_vmi() {
    let mut world = World::new("Always");
    let mut collector = world.running();
    let vm = world.store.get(&place::vms().key("default", "web")).unwrap();
    place::change(&world.store, &vm, |value| {
        value["spec"]["runStrategy"] = json!("Sometimes");
        true
    })
    .unwrap();
    place::remove(&world.store, &world.vmi().unwrap()).unwrap();
    world.live(&mut collector);
    assert!(world.vmi().is_none());
}

#[test]
fn an_orphan_is_taken_over_by_the_next_vm_of_its_name() {
    let mut world = World::new("Always");
    let mut collector = world.running();
    let first = meta::text(&world.vmi().unwrap().value, "uid").to_owned();
    world.delete_vm(Some(ORPHAN));
    world.live(&mut collector);
    world.put_vm("Always");
    world.live(&mut collector);
    let vmi = world.vmi().unwrap();
    assert_eq!(meta::text(&vmi.value, "uid"), first, "the guest goes on");
    assert_eq!(vmi.value["metadata"]["ownerReferences"][0]["uid"], world.vm()["metadata"]["uid"]);
    assert_eq!(world.vm()["status"]["printableStatus"], "Running");
    assert!(!world.events().contains(&"FailedCreate".to_owned()));
    world.delete_vm(None);
    world.live(&mut collector);
    assert_eq!((world.vmi().is_none(), world.vm()), (true, Value::Null));
}

#[test]
fn what_lost_its_vm_while_nobody_looked_goes_too() {
    let mut world = World::new("Always");
    world.running();
    let vm = world.store.get(&place::vms().key("default", "web")).unwrap();
    place::change(&world.store, &vm, |_| false).unwrap();
    // Another of its name does not own what the first one did.
    world.put_vm("Halted");
    world.rounds = Rounds::of(Machines::default());
    world.live(&mut collector());
    assert!(world.vmi().is_none());
    assert_eq!(world.vm()["status"]["printableStatus"], "Stopped");
}
