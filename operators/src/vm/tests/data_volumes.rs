//! VMs with templates of DataVolumes.

use serde_json::{Value, json};
use vireo_api::v1::VolumeRequest;

use super::super::*;
use super::World;

fn world(strategy: &str) -> World {
    let mut world = World::new(strategy);
    let template = json!({"metadata": {"name": "root"}, "spec": {"source": {"blank": {}}}});
    world.vm.spec.data_volume_templates.push(serde_json::from_value(template).unwrap());
    world
}

impl World {
    fn shown(&mut self) -> &str {
        self.settle();
        &self.vm.status.printable_status
    }

    fn data_volume(&mut self, status: Value) {
        self.storage.add_data_volume("root", status);
    }

    fn failure(&self) -> Option<&str> {
        let conditions = &self.vm.status.conditions;
        conditions.iter().find(|one| one.r#type == "Failure").map(|one| one.message.as_str())
    }
}

#[test]
fn a_vm_waits_for_the_data_volumes_that_it_creates() {
    let mut world = world("Always");
    assert_eq!(world.shown(), "Provisioning");
    assert!(world.storage.data_volumes.contains_key("root"));
    world.data_volume(json!({"phase": "ImportInProgress"}));
    assert_eq!(world.shown(), "Provisioning");
    assert_eq!(world.phase(), None);
    let error = json!([{"type": "Running", "status": "False", "reason": "Error", "message": "no such host"}]);
    world.data_volume(json!({"phase": "ImportInProgress", "conditions": error}));
    assert_eq!(world.shown(), "DataVolumeError");
    assert_eq!(world.failure(), Some("DataVolume root is not being filled: no such host"));
    world.data_volume(json!({"phase": "Succeeded"}));
    assert_eq!(world.shown(), "Running");
    assert_eq!(world.failure(), None);

    world.storage.data_volumes.clear();
    world.settle();
    assert!(world.storage.data_volumes.contains_key("root"), "a deleted one is created again");
    assert!(world.runs(), "it is not ended for that");
    world.stop(StopOptions::default()).unwrap();
    assert_eq!(world.shown(), "Provisioning");
    assert_eq!(world.phase(), None);
}

#[test]
fn a_vm_that_does_not_run_gets_data_volumes_unless_it_says_otherwise() {
    let mut world = world("Halted");
    assert_eq!(world.shown(), "Provisioning");
    world.data_volume(json!({"phase": "Succeeded"}));
    assert_eq!(world.shown(), "Stopped");

    for strategy in ["Halted", "Manual"] {
        let mut world = self::world(strategy);
        let annotation = "kubevirt.io/immediate-data-volume-creation".to_owned();
        world.vm.metadata.annotations.insert(annotation, "false".to_owned());
        assert_eq!(world.shown(), "Stopped");
        assert!(world.storage.data_volumes.is_empty());
        world.start(StartOptions::default()).unwrap();
        assert_eq!(world.shown(), "Provisioning");
        world.data_volume(json!({"phase": "Succeeded"}));
        assert_eq!(world.shown(), "Running");
    }
}

#[test]
fn a_vm_whose_data_volumes_cannot_be_created_says_why() {
    let mut world = world("Always");
    world.refused = Some("Not authorized to create DataVolume root: ...");
    assert_eq!(world.shown(), "Stopped");
    assert_eq!(world.failure(), world.refused);
    assert_eq!(world.phase(), None);
    world.refused = None;
    assert_eq!(world.shown(), "Provisioning");
    assert_eq!(world.failure(), None);

    let mut world = self::world("Always");
    world.storage.has_cdi = false;
    assert_eq!(world.shown(), "Stopped");
    assert!(world.failure().unwrap().contains("the cluster has no DataVolumes"));
    world.delete_vm();
    world.settle();
    assert!(world.vm.metadata.finalizers.is_empty(), "it can be deleted");
}

#[test]
fn a_request_for_a_volume_does_not_wait_for_data_volumes() {
    let mut world = world("Always");
    world.refused = Some("no");
    let remove: VolumeRequest =
        serde_json::from_value(json!({"removeVolumeOptions": {"name": "data"}})).unwrap();
    let volumes =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}}]);
    let template = world.vm.spec.template.as_mut().unwrap();
    template.spec.volumes = serde_json::from_value(volumes).unwrap();
    world.vm.status.volume_requests.push(remove);
    world.settle();
    assert!(world.vm.spec.template.as_ref().unwrap().spec.volumes.is_empty());
    assert!(world.vm.status.volume_requests.is_empty());
}
