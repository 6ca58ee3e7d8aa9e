//! What a VirtualMachine's status says.

use serde_json::json;
use vireo_api::v1::{Condition, MigrationState};

use super::super::*;
use super::World;

fn shown(world: &mut World) -> String {
    world.step();
    world.vm.status.printable_status.clone()
}

#[test]
fn the_status_for_people_is_that_of_the_instance() {
    let mut world = World::new("Always");
    assert_eq!(shown(&mut world), "Stopped", "it is claimed first");
    assert_eq!(shown(&mut world), "Starting");
    world.settle();
    assert_eq!(shown(&mut world), "Running");
    assert!(world.vm.status.created && world.vm.status.ready);
    for (kind, status, reason, phase, expected) in [
        ("Paused", "True", "PausedByUser", "Running", "Paused"),
        ("Synchronized", "False", "ErrImagePull", "Scheduling", "ErrImagePull"),
        ("Synchronized", "False", "ErrImageNeverPull", "Scheduling", "ErrImagePull"),
        ("Synchronized", "False", "ImagePullBackOff", "Scheduling", "ImagePullBackOff"),
        ("Synchronized", "False", "FailedPvcNotFound", "Pending", "ErrorPvcNotFound"),
        ("Synchronized", "False", "PvcNotPopulated", "Pending", "Provisioning"),
        ("Synchronized", "False", "PvcNotBound", "Pending", "WaitingForVolumeBinding"),
        ("PodScheduled", "False", "Unschedulable", "Scheduling", "ErrorUnschedulable"),
        ("DataVolumesReady", "False", "NotAllDVsReady", "Pending", "Provisioning"),
    ] {
        let condition = Condition {
            r#type: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            ..Condition::default()
        };
        let mut world = World::new("Always");
        world.settle();
        let status = &mut world.instance.as_mut().unwrap().status;
        status.conditions.push(condition.clone());
        status.phase = phase.to_owned();
        assert_eq!(shown(&mut world), expected);
        assert!(world.vm.status.conditions.iter().any(|one| one.r#type == condition.r#type), "{kind}");
    }
    let status = &mut world.instance.as_mut().unwrap().status;
    let migration = MigrationState { start_timestamp: Some("now".to_owned()), ..MigrationState::default() };
    status.migration_state = Some(Box::new(migration));
    assert_eq!(shown(&mut world), "Migrating");
    world.vm.spec.run_strategy = Some("Halted".to_owned());
    assert_eq!(shown(&mut world), "Stopping");
}

#[test]
fn a_changed_template_asks_for_a_restart() {
    let restart = |world: &World| {
        let conditions = &world.vm.status.conditions;
        conditions.iter().any(|one| one.r#type == "RestartRequired" && one.status == "True")
    };
    let mut world = World::new("Always");
    world.settle();
    assert!(!restart(&world));
    let template = world.vm.spec.template.as_mut().unwrap();
    template.spec.hostname = "other".to_owned();
    world.vm.metadata.generation = Some(4);
    world.settle();
    assert!(restart(&world));
    let status = &world.vm.status;
    assert_eq!((status.observed_generation, status.desired_generation), (Some(3), Some(4)));
    world.restart(RestartOptions::default()).unwrap();
    world.settle();
    assert!(!restart(&world));
    world.vm.spec.instancetype.get_or_insert_default().name = "large".to_owned();
    world.vm.metadata.generation = Some(5);
    world.settle();
    assert!(restart(&world), "another choice is a change too");
    assert_eq!(world.instance.as_ref().unwrap().spec.hostname, "other");
}

#[test]
fn a_condition_keeps_the_time_at_which_it_began() {
    let mut world = World::new("Halted");
    let since = |world: &World| {
        let ready = world.vm.status.conditions.iter().find(|one| one.r#type == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "VMINotExists"));
        ready.last_transition_time.clone().unwrap()
    };
    world.settle();
    let began = since(&world);
    world.now += jiff::SignedDuration::from_mins(5);
    world.settle();
    assert_eq!(since(&world), began);
}

#[test]
fn a_vmi_is_the_template_with_its_owner() {
    let mut world = World::new("Always");
    let template = world.vm.spec.template.as_mut().unwrap();
    template.metadata.labels.insert("app".to_owned(), "web".to_owned());
    template.metadata.name = "ignored".to_owned();
    for (name, value) in
        [("vm.kubevirt.io/os", "debian"), (EPHEMERAL_ANNOTATION, "data"), (GENERATION_ANNOTATION, "9")]
    {
        template.metadata.annotations.insert(name.to_owned(), value.to_owned());
    }
    world.settle();
    let instance = world.instance.as_ref().unwrap();
    let metadata = &instance.metadata;
    assert_eq!((metadata.name.as_str(), metadata.labels["app"].as_str()), ("web", "web"));
    let expected = [("vm.kubevirt.io/os", "debian"), (GENERATION_ANNOTATION, "3")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(metadata.annotations, expected.into(), "without those that only components write");
    assert_eq!(metadata.finalizers, [FINALIZER]);
    let owner = &metadata.owner_references[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("VirtualMachine", world.vm.metadata.uid.as_str()));
    // A name always gives the same UUID: KubeVirt's for the name.
    let uuid = instance.spec.domain.firmware.as_ref().unwrap().uuid.clone();
    let namespace = "6a1a24a1-4061-4607-8bf4-a3963d0c5895".parse().unwrap();
    assert_eq!(uuid, uuid::Uuid::new_v5(&namespace, b"web").to_string());
    assert_eq!(world.revision.as_ref().unwrap()["spec"]["runStrategy"], json!("Always"));
}
