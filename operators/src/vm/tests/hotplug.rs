//! Hotplugged volumes.

use serde_json::json;
use vireo_api::v1::{AddVolumeOptions, VirtualMachineInstanceSpec, VolumeRequest};

use super::world::World;
use super::*;

fn add(name: &str, claim: &str) -> VolumeRequest {
    let options: AddVolumeOptions = serde_json::from_value(json!({
        "name": name, "disk": {}, "volumeSource": {"persistentVolumeClaim": {"claimName": claim}},
    }))
    .unwrap();
    let add = volumes::complete(options).unwrap();
    VolumeRequest { add_volume_options: Some(add), ..VolumeRequest::default() }
}

fn remove(name: &str) -> VolumeRequest {
    serde_json::from_value(json!({"removeVolumeOptions": {"name": name}})).unwrap()
}

fn names(spec: &VirtualMachineInstanceSpec) -> Vec<&str> {
    assert_eq!(spec.volumes.len(), spec.domain.devices.disks.len());
    spec.volumes.iter().map(|volume| volume.name.as_str()).collect()
}

impl World {
    fn ask(&mut self, request: VolumeRequest) -> Result<(), Rejection> {
        volumes::request(&mut self.vm, self.instance.as_ref(), request)
    }

    fn kept(&self) -> Vec<&str> {
        names(&self.vm.spec.template.as_ref().unwrap().spec)
    }

    fn plugged(&self) -> Option<Vec<&str>> {
        self.instance.as_ref().map(|instance| names(&instance.spec))
    }
}

fn running() -> World {
    let mut world = World::new("Always");
    world.settle();
    assert!(world.runs());
    world
}

#[test]
fn a_vm_keeps_a_volume_and_its_vmi_gets_it() {
    let mut world = running();
    let uid = world.uid();
    world.ask(add("data", "c")).unwrap();
    assert!(world.ask(remove("data")).is_err(), "one request about it at a time");
    world.settle();
    assert_eq!((world.kept(), world.plugged()), (vec!["data"], Some(vec!["data"])));
    assert!(world.vm.status.volume_requests.is_empty());
    let conditions = &world.vm.status.conditions;
    assert!(
        conditions.iter().all(|one| one.r#type != "RestartRequired"),
        "it has it already: {conditions:?}"
    );
    world.restart(RestartOptions::default()).unwrap();
    world.settle();
    assert_ne!(world.uid(), uid);
    assert_eq!(world.plugged(), Some(vec!["data"]));
    world.ask(remove("data")).unwrap();
    world.settle();
    assert_eq!((world.kept(), world.plugged()), (vec![], Some(vec![])));
}

#[test]
fn an_instance_alone_loses_a_volume_with_its_end() {
    let mut world = running();
    let instance = world.instance.as_mut().unwrap();
    let mut marked = json!(instance);
    mark_ephemeral(&mut marked, &add("data", "c"));
    *instance = serde_json::from_value(marked).unwrap();
    volumes::apply(&add("data", "c"), &mut instance.spec);
    world.settle();
    assert_eq!((world.kept(), world.plugged()), (vec![], Some(vec!["data"])));
    assert!(world.ask(add("data", "c")).is_err());
    world.restart(RestartOptions::default()).unwrap();
    world.settle();
    assert_eq!(world.plugged(), Some(vec![]));
}

#[test]
fn a_stopped_vm_keeps_it_for_later() {
    let mut world = World::new("Halted");
    world.settle();
    world.ask(add("data", "c")).unwrap();
    world.settle();
    assert_eq!((world.kept(), world.plugged()), (vec!["data"], None));
    world.ask(remove("data")).unwrap();
    world.settle();
    assert!(world.kept().is_empty() && world.vm.status.volume_requests.is_empty());
}

#[test]
fn what_makes_no_sense_is_turned_down() {
    let mut world = running();
    world.ask(add("data", "c")).unwrap();
    world.settle();
    for (request, reported) in [
        (add("data", "other"), "already exists"),
        (add("more", "c"), "volume [data] is of the same claim"),
        (remove("none"), "does not exist"),
    ] {
        let Err(Rejection::Conflict(why)) = world.ask(request) else { panic!("{reported} is accepted") };
        assert!(why.contains(reported), "{why}");
    }
    let instance = world.instance.as_mut().unwrap();
    instance.spec.volumes[0].persistent_volume_claim.as_mut().unwrap().hotpluggable = None;
    let refused = volumes::fits(&remove("data"), &instance.spec);
    assert!(matches!(refused, Err(Rejection::Conflict(why)) if why.contains("not hotpluggable")));

    assert!(volumes::plugs(instance, &add("more", "d")).is_ok());
    instance.status.phase = "Scheduled".into();
    assert!(
        matches!(volumes::plugs(instance, &add("more", "d")), Err(Rejection::Conflict(why)) if why == "VMI is not running")
    );
}

impl World {
    /// Edits the template.
    fn edit(&mut self, spec: serde_json::Value) {
        self.vm.spec.template.as_mut().unwrap().spec = serde_json::from_value(spec).unwrap();
        self.settle();
    }

    /// The volumes of the instance with their claims, and whether the VM waits for a restart.
    fn follows(&self) -> (Vec<String>, bool) {
        let volumes = &self.instance.as_ref().unwrap().spec.volumes;
        let text = |volume: &vireo_api::v1::Volume| {
            let claim = volume.claim().map(|claim| claim.name.to_owned());
            format!("{} {}", volume.name, claim.unwrap_or_default())
        };
        let conditions = &self.vm.status.conditions;
        (volumes.iter().map(text).collect(), conditions.iter().any(|one| one.r#type == "RestartRequired"))
    }
}

/// Disks and drives, and the claims of their volumes.
fn spec(disks: &[(&str, &str)], claims: &[(&str, &str)]) -> serde_json::Value {
    let disks: Vec<_> = disks.iter().map(|(name, kind)| json!({"name": name, *kind: {}})).collect();
    let source = |claim: &str| json!({"claimName": claim, "hotpluggable": true});
    let volumes: Vec<_> = claims
        .iter()
        .map(|(name, claim)| json!({"name": name, "persistentVolumeClaim": source(claim)}))
        .collect();
    json!({"domain": {"devices": {"disks": disks}}, "volumes": volumes})
}

#[test]
fn an_instance_follows_the_hotpluggable_volumes_of_the_template() {
    let drive = ("cd", "cdrom");
    let mut world = World::new("Always");
    world.edit(spec(&[drive], &[]));
    assert!(world.runs());
    let follows =
        |volumes: &[&str], restart| (volumes.iter().map(|one| (*one).to_owned()).collect(), restart);
    for (disks, claims, expected) in [
        (&[drive][..], &[("cd", "one")][..], follows(&["cd one"], false)),
        (&[drive], &[("cd", "two")], follows(&["cd two"], false)),
        (&[drive, ("data", "disk")], &[("data", "c"), ("cd", "two")], follows(&["cd two", "data c"], false)),
        (&[drive], &[], follows(&[], false)),
        (&[drive, ("new", "cdrom")], &[("new", "one")], follows(&[], true)),
        (&[drive], &[], follows(&[], false)),
    ] {
        world.edit(spec(disks, claims));
        assert_eq!(world.follows(), expected, "{disks:?} {claims:?}");
        let disks = &world.instance.as_ref().unwrap().spec.domain.devices.disks;
        assert!(disks.iter().any(|disk| disk.name == "cd"), "the drive stays: {disks:?}");
    }
}

#[test]
fn a_volume_of_the_instance_alone_stays_until_the_template_has_it() {
    let mut world = World::new("Always");
    world.edit(spec(&[], &[]));
    assert!(world.runs());
    let instance = world.instance.as_mut().unwrap();
    instance.spec = serde_json::from_value(spec(&[("data", "disk")], &[("data", "c")])).unwrap();
    instance.metadata.annotations.insert(EPHEMERAL_ANNOTATION.to_owned(), "data".to_owned());
    let follows = |volumes: &[&str]| (volumes.iter().map(|one| (*one).to_owned()).collect(), false);
    for (disks, claims, volumes, is_alone) in [
        (&[][..], &[][..], &["data c"][..], true),
        (&[("data", "disk")], &[("data", "other")], &["data c"], true),
        (&[("data", "disk")], &[("data", "c")], &["data c"], false),
        (&[], &[], &[], false),
    ] {
        world.edit(spec(disks, claims));
        assert_eq!(world.follows(), follows(volumes), "{claims:?}");
        let annotations = &world.instance.as_ref().unwrap().metadata.annotations;
        assert_eq!(annotations.contains_key(EPHEMERAL_ANNOTATION), is_alone, "{claims:?}");
    }
}

#[test]
fn an_instance_follows_the_links_of_the_template() {
    let mut world = World::new("Always");
    let nics = |state: &str| json!({"domain": {"devices": {"interfaces": [{"name": "a", "state": state}, {"name": "b"}]}}});
    world.edit(nics(""));
    assert!(world.runs());
    for (state, expected) in
        [("down", ["down", ""]), ("up", ["up", ""]), ("down", ["down", ""]), ("", ["up", ""])]
    {
        world.edit(nics(state));
        let interfaces = &world.instance.as_ref().unwrap().spec.domain.devices.interfaces;
        let states: Vec<_> = interfaces.iter().map(|one| one.state.as_str()).collect();
        assert_eq!((states, world.follows().1), (expected.to_vec(), false), "{state}");
    }
}

#[test]
fn a_medium_is_requested_for_a_drive() {
    let mut world = World::new("Always");
    world.edit(spec(&[("cd", "cdrom")], &[]));
    world.ask(add("cd", "one")).unwrap();
    world.settle();
    assert_eq!(world.follows(), (vec!["cd one".to_owned()], false));
    world.ask(remove("cd")).unwrap();
    world.settle();
    assert_eq!(world.follows(), (vec![], false));
    for spec in [&world.instance.as_ref().unwrap().spec, &world.vm.spec.template.as_ref().unwrap().spec] {
        assert_eq!(spec.domain.devices.disks.len(), 1, "the drive stays");
    }
    let mut other = add("other", "one");
    other.add_volume_options.as_mut().unwrap().disk.as_mut().unwrap().cdrom = Some(Default::default());
    assert!(matches!(world.ask(other), Err(Rejection::Conflict(why)) if why.contains("no CD-ROM drive")));
}

#[test]
fn options_are_completed_or_refused() {
    let reported = |options: serde_json::Value| {
        let done = volumes::complete(serde_json::from_value(options).unwrap());
        done.map(|done| serde_json::to_value(done.disk.unwrap()).unwrap())
    };
    let source = json!({"persistentVolumeClaim": {"claimName": "c"}});
    let long = "a-name-of-more-than-twenty-letters";
    for (name, disk, expected) in [
        ("data", json!({}), json!({"name": "data", "disk": {"bus": "scsi"}, "serial": "data"})),
        ("data", json!({"serial": "S"}), json!({"name": "data", "disk": {"bus": "scsi"}, "serial": "S"})),
        (
            long,
            json!({"disk": {"bus": "virtio"}}),
            json!({"name": long, "disk": {"bus": "virtio"}, "serial": "a-name-of-more-than-"}),
        ),
    ] {
        assert_eq!(reported(json!({"name": name, "disk": disk, "volumeSource": source})), Ok(expected));
    }
    let two = json!({"persistentVolumeClaim": {"claimName": "c"}, "dataVolume": {"name": "c"}});
    for (options, part) in [
        (json!({"disk": {}, "volumeSource": source}), "name"),
        (json!({"name": "data", "volumeSource": source}), "disk"),
        (json!({"name": "data", "disk": {}}), "VolumeSource"),
        (json!({"name": "data", "disk": {}, "volumeSource": {}}), "volumeSource"),
        (json!({"name": "data", "disk": {}, "volumeSource": two}), "volumeSource"),
    ] {
        let Err(Rejection::BadRequest(why)) = reported(options) else { panic!("{part} is not missed") };
        assert!(why.contains(part), "{why}");
    }
    assert!(volumes::checked(Default::default()).is_err());
}
