//! Memory dumps.

use serde_json::{Value, json};
use vireo_api::v1::{VirtualMachineInstanceSpec, VolumeStatus};

use super::world::World;
use super::*;

impl World {
    fn dump(&self, field: &str) -> Option<String> {
        let request = self.vm.status.memory_dump_request.as_ref()?;
        request.get(field).and_then(Value::as_str).map(str::to_owned)
    }

    fn has_dump(&self) -> (bool, bool) {
        let has =
            |spec: &VirtualMachineInstanceSpec| spec.volumes.iter().any(|one| one.memory_dump.is_some());
        let template = self.vm.spec.template.as_ref().is_some_and(|template| has(&template.spec));
        (template, self.instance.as_ref().is_some_and(|instance| has(&instance.spec)))
    }

    /// What the node agent reports of the volume.
    fn shows(&mut self, phase: Option<&str>, message: &str) {
        let shown = phase.map(|phase| VolumeStatus {
            name: "dumps".to_owned(),
            phase: phase.to_owned(),
            message: message.to_owned(),
            memory_dump_volume: Some(
                json!({"claimName": "dumps", "startTimestamp": "s", "endTimestamp": "e",
                "targetFileName": "web.memory.dump"}),
            ),
            ..VolumeStatus::default()
        });
        self.instance.as_mut().unwrap().status.volume_status = shown.into_iter().collect();
        self.settle();
    }
}

fn requested() -> World {
    let mut world = World::new("Always");
    world.settle();
    memory_dump::request(&mut world.vm, "dumps").unwrap();
    assert_eq!(world.dump("phase").as_deref(), Some("Associating"));
    world.settle();
    world
}

#[test]
fn a_dump_goes_through_its_phases() {
    let mut world = requested();
    assert_eq!((world.dump("phase").as_deref(), world.has_dump()), (Some("InProgress"), (true, true)));
    let again = memory_dump::request(&mut world.vm, "dumps").unwrap_err();
    assert_eq!(again.to_string(), "memory dump request for vm [web] already in progress");
    world.shows(Some("MemoryDumpInProgress"), "");
    assert_eq!(world.dump("phase").as_deref(), Some("InProgress"));
    world.shows(Some("MemoryDumpCompleted"), "");
    assert_eq!((world.dump("phase").as_deref(), world.has_dump()), (Some("Unmounting"), (true, false)));
    world.shows(Some("Detaching"), "");
    assert_eq!(world.dump("phase").as_deref(), Some("Unmounting"));
    world.shows(None, "");
    assert_eq!(world.dump("phase").as_deref(), Some("Completed"));
    assert_eq!(world.dump("fileName").as_deref(), Some("web.memory.dump"));
    assert_eq!(
        (world.dump("startTimestamp"), world.dump("endTimestamp")),
        (Some("s".into()), Some("e".into()))
    );
    let conditions = &world.vm.status.conditions;
    assert!(conditions.iter().all(|one| one.r#type != "RestartRequired"), "{conditions:?}");

    // A VMI that is started later does not have it.
    world.restart(RestartOptions::default()).unwrap();
    world.settle();
    assert_eq!((world.dump("phase").as_deref(), world.has_dump()), (Some("Completed"), (true, false)));
    let other = memory_dump::request(&mut world.vm, "others").unwrap_err();
    assert!(other.to_string().contains("the VM web has [dumps]"), "{other}");
    memory_dump::request(&mut world.vm, "dumps").unwrap();
    world.settle();
    world.shows(Some("MemoryDumpCompleted"), "");
    world.shows(None, "");
    memory_dump::remove(&mut world.vm).unwrap();
    assert!(
        memory_dump::remove(&mut world.vm).is_err() && memory_dump::request(&mut world.vm, "dumps").is_err()
    );
    world.settle();
    assert_eq!((&world.vm.status.memory_dump_request, world.has_dump()), (&None, (false, false)));
    let none = memory_dump::remove(&mut world.vm).unwrap_err();
    assert_eq!(none.to_string(), "can't remove memory dump association for vm web, no association found");
}

#[test]
fn a_dump_that_fails_says_why() {
    let mut world = requested();
    world.shows(Some("MemoryDumpFailed"), "no space");
    assert_eq!(
        (world.dump("phase").as_deref(), world.dump("message").as_deref()),
        (Some("Failed"), Some("no space"))
    );
    assert_eq!(world.has_dump(), (true, false));
    assert!(memory_dump::is_left(world.instance.as_ref().unwrap(), "dumps"));
    world.shows(None, "");
    assert!(!memory_dump::is_left(world.instance.as_ref().unwrap(), "dumps"));
    memory_dump::request(&mut world.vm, "dumps").unwrap();
    world.settle();
    assert_eq!((world.dump("phase").as_deref(), world.dump("message")), (Some("InProgress"), None));
    world.stop(StopOptions::default()).unwrap();
    world.settle();
    assert_eq!(world.dump("phase").as_deref(), Some("Failed"));
    assert_eq!(world.dump("message").as_deref(), Some("the VMI ended before its memory was dumped"));
    memory_dump::remove(&mut world.vm).unwrap();
    world.settle();
    assert_eq!((&world.vm.status.memory_dump_request, world.has_dump()), (&None, (false, false)));
}

#[test]
fn a_volume_of_the_same_name_stays() {
    let mut world = World::new("Always");
    let disk = json!({"volumes": [{"name": "dumps", "emptyDisk": {"capacity": "1Mi"}}]});
    let mut object = json!({ "spec": disk });
    memory_dump::set_volume(&mut object, SpecOwner::Vmi, "dumps", false);
    assert_eq!(object["spec"], disk);
    world.vm.spec.template.as_mut().unwrap().spec = serde_json::from_value(disk).unwrap();
    let taken = memory_dump::request(&mut world.vm, "dumps").unwrap_err();
    assert_eq!(taken.to_string(), "the VM web has another volume called [dumps]");
}
